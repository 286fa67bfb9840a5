"""Measures what fused attention takes on a GPU beside its tensors.

`python -m experiments.accuracy.attention_workspaces` needs a GPU. Each backend that torch has there is called alone,
forward and backward. The heads lie side by side in each row (as parts of one product), or one after the other. cuDNN
and the memory-efficient kernel have an additive mask that all heads share. `taken` is the most memory that torch's
caching allocator hands out during the call, without the results, as in the check of a plan
(`remat.pytorch.inductor.rehearsed`). `predicted` needs no GPU (`remat.predict.buffers.workspaces`). The allocator
rounds up: to 512 bytes, and above 10 MiB by less than 1 MiB where a block is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.predict.buffers.workspaces import gpu_call_bytes
from remat.predict.kernels.ir import Buffer
from remat.pytorch.inductor.rehearsed import measured_bytes

# What the backward pass of each backend takes after gradient, queries, keys and values, given the mask and the results.
_ATTENTION: dict[str, Callable[[Tensor, Any], list[Any]]] = {
    "cudnn": lambda mask, made: [*made[:2], *made[6:8], mask, *made[2:6], 0.0, False],
    "flash": lambda _, made: [*made[:6], 0.0, False, *made[6:8]],
    "efficient": lambda mask, made: [mask, *made, 0.0, [True, True, True, False]],
}


@dataclass(frozen=True)
class Case:
    """Describes a call.

    Attributes:
        backend: whose kernel it is.
        sizes: batch, heads, heads of keys and values, rows, width of a head.
        heads_inside: whether heads lie side by side in each row.
        dtype: of all tensors.
    """

    backend: str
    sizes: tuple[int, int, int, int, int]
    heads_inside: bool = True
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        batch, heads, shared, rows, width = self.sizes
        on = f" on {shared}" if shared < heads else ""
        order = "side by side" if self.heads_inside else "one after the other"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.backend}, {dtype}: {batch} x {heads} heads{on} {order}, {rows} rows, width {width}"


_SIZES = (
    (2, 32, 32, 4096, 128),
    (2, 32, 32, 2048, 128),
    (1, 32, 32, 4096, 128),
    (8, 16, 16, 1024, 64),
    (4, 32, 8, 2048, 128),
    (4, 16, 16, 1024, 80),
    (2, 12, 12, 1000, 64),
    (1, 8, 8, 256, 64),
)
CASES = (
    *(
        Case(backend, sizes, heads_inside)
        for backend in _ATTENTION
        for sizes in _SIZES
        for heads_inside in (True, False)
        if backend != "efficient" or sizes[1] == sizes[2]  # which takes no heads that share keys and values
    ),
    *(Case("efficient", (2, 8, 8, 1000, width), dtype=torch.float32) for width in (32, 64, 96, 128, 256)),
)


def measured(case: Case) -> Iterator[Row]:
    """Calls one backend forward and backward; a row for each pass."""
    if not torch.cuda.is_available():
        raise RuntimeError("needs a GPU; none is here")
    batch, heads, shared, rows, width = case.sizes

    def tensor(heads: int) -> Tensor:
        if case.heads_inside:
            return torch.randn(batch, rows, heads, width, dtype=case.dtype, device="cuda").transpose(1, 2)
        return torch.randn(batch, heads, rows, width, dtype=case.dtype, device="cuda")

    query, key, value = tensor(heads), tensor(shared), tensor(shared)
    mask = torch.zeros(batch, 1, rows, rows, dtype=case.dtype, device="cuda").expand(-1, heads, -1, -1)
    calls: Any = torch.ops.aten
    name = f"_scaled_dot_product_{case.backend}_attention"
    forward, backward = getattr(calls, name).default, getattr(calls, f"{name}_backward").default
    arguments: list[Any] = [query, key, value, *([0.0] if case.backend == "flash" else [mask, True])]
    results = forward(*arguments)
    given: list[Any] = [tensor(heads), query, key, value, *_ATTENTION[case.backend](mask, results)]
    for operator, args in ((forward, arguments), (backward, given)):
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        buffers = [Buffer(i, tuple(one.shape), one.itemsize, one.stride()) for i, one in enumerate(tensors)]
        yield {
            "pass": "backward" if operator is backward else "forward",
            "taken bytes": measured_bytes(operator, args, {}),
            "predicted bytes": gpu_call_bytes(str(operator), buffers),
        }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says for each backend and pass how far predictions are from what was taken."""
    lines: list[str] = []
    for backend in dict.fromkeys(row["case"].split(",")[0] for row in rows):
        for name in ("forward", "backward"):
            own = [row for row in rows if row["case"].startswith(backend) and row["pass"] == name]
            missed = [row["taken bytes"] - row["predicted bytes"] for row in own]
            lines.append(
                f"{backend}, {name}: {len(own)} calls take up to {max(row['taken bytes'] for row in own):,} bytes, "
                f"{min(missed):,} to {max(missed):,} more than predicted"
            )
    return [bullets(lines)]


TABLE: ResultTable[Case] = ResultTable(
    "experiments.accuracy.attention_workspaces",
    "What fused attention takes beside its tensors",
    cases=lambda: CASES,
    measure=measured,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
