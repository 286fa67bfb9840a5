"""Trains within a limit on all memory of a GPU: `python -m experiments.accuracy.device_limits`.

Each model trains for three steps with AdamW, first by PyTorch's default, then by `MemoryBudget(limit, of="device")`.
The limit lies between what weights, gradients and the optimizer's state take together and the most that PyTorch's
default took: at a quarter and at a half of the way. `taken` is the most that torch's allocator handed out since the
process began, with the workspaces of libraries.
"""

# transformers and torch have partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import remat
from costmodels import MemoryBudget
from experiments.bench.measured_steps import device_of
from experiments.models.measured_models import CASES, Case
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.predict.time.roofline import Roofline
from remat.pytorch.seam.torch_names import torch_compile

MODELS = ("GPT-2 medium, 12 of 24 layers", "Llama 2 7B, 6 of 32 layers")
WAY = (0.25, 0.5)


def trained(case: Case, compiled: Callable[[Callable[..., Tensor]], Any]) -> Row:
    """Trains three steps, and says what they took at most, and what was still held then."""
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, args = case.make()
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5)

    def loss(*args: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=case.autocast):
            return model(*args)

    step = compiled(loss)
    for _ in range(3):
        optimizer.zero_grad()
        step(*args).backward()
        optimizer.step()
        torch.cuda.synchronize()
    return {"taken_bytes": torch.cuda.max_memory_allocated(), "held_bytes": torch.cuda.memory_allocated()}


def measured(case: Case) -> Iterator[Row]:
    """Trains a model by PyTorch's default, then within limits: a row for each."""
    default = trained(case, lambda loss: torch_compile(loss, dynamic=False))
    yield {"limit_bytes": None, **default, "error": ""}
    held, taken = default["held_bytes"], default["taken_bytes"]
    for way in WAY:
        limit = int(held + way * (taken - held))
        model = MemoryBudget(limit, of="device", estimator=Roofline(device=device_of("cuda")))

        def ours(loss: Callable[..., Tensor], model: MemoryBudget = model) -> Any:
            return remat.compile(loss, cost_model=model, dynamic=False)

        try:
            yield {"limit_bytes": limit, **trained(case, ours), "error": ""}
        except remat.RematError as error:  # the limit is too small: what is said of it is the result
            yield {"limit_bytes": limit, "error": f"{type(error).__name__}: {error}"[:300]}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says whether limits are kept."""
    return [
        bullets(
            f"{row['case']}: limit {row['limit_bytes'] / 1e9:.3f} GB, taken {row['taken_bytes'] / 1e9:.3f} GB "
            f"({row['taken_bytes'] / row['limit_bytes'] - 1:+.2%})"
            for row in rows
            if row["limit_bytes"] and not row["error"]
        )
    ]


TABLE = ResultTable(
    "experiments.accuracy.device_limits",
    "Limits on all memory of a GPU",
    cases=lambda: [case for case in CASES if case.name in MODELS],
    key=lambda case: case.name,
    measure=measured,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
