"""Counts the bytes that are saved by computing values again within a pass: `python -m experiments.bench.duplicates`.

For each model of `experiments.models.workloads.KERNEL_ZOO`, TorchInductor plans the kernels of a training step twice:
as it is, and with the post-grad pass `remat.pytorch.inductor.duplicate.DuplicateAcrossKernels`. PyTorch's own
partitioner chooses what is saved, so that nothing but the pass differs. Kernels are counted after all fusion and before
code generation; nothing is compiled or run. Arithmetic counts as free. `took_s` is processor time of the compiler, from
Dynamo to the schedule of both passes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx

from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.pytorch.inductor.duplicate import DuplicateAcrossKernels
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.seam.restore import put_back


def measure(name: str) -> Iterator[Row]:
    """Counts kernels and bytes without and with the pass."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    warnings.filterwarnings("error", message="DuplicateAcrossKernels leaves a graph")  # a bug, not a result
    options = {"post_grad_custom_post_pass": DuplicateAcrossKernels()}
    yield {"before": counted(model, args, {}), "after": counted(model, args, options)}


def counted(model: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, float]:
    """Counts what Inductor schedules of a model that trains, with these settings of Inductor."""
    kernels: list[InductorKernel] = []

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches=dict(options))

    start = time.process_time()
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))), put_back(model, args, {}):
        torch.compile(model, backend=backend, dynamic=False)(*args)
    took_s = time.process_time() - start
    passes = [[kernel for kernel in kernels if kernel.backward == backward] for backward in (False, True)]
    moved = [sum(kernel.bytes for kernel in found) for found in passes]
    return {
        "forward_bytes": moved[0],
        "backward_bytes": moved[1],
        "forward_kernels": len(passes[0]),
        "backward_kernels": len(passes[1]),
        "took_s": round(took_s, 2),
    }


def fewer(row: Row) -> float:
    """Returns by which part the kernels of both passes move fewer bytes with the pass."""
    before, after = (row[side]["forward_bytes"] + row[side]["backward_bytes"] for side in ("before", "after"))
    return 1 - after / before


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says where the pass pays."""
    pays = [f"{row['case']} {fewer(row):.1%}" for row in rows if fewer(row)]
    return [bullets([f"fewer bytes moved on {len(pays)} of {len(rows)} models: {', '.join(pays)}"])]


TABLE = ResultTable(
    "experiments.bench.duplicates",
    "Bytes that kernels move, with values computed again within a pass",
    cases=lambda: KERNEL_ZOO,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
