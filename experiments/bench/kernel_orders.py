"""Compares peaks in two orders of the kernels: `python -m experiments.bench.kernel_orders`.

`torch_bytes` is the predicted peak of a plan of PyTorch's (`remat.improve.one_liners`) with the order of kernels that
TorchInductor finds on its own, and `bytes` that of the same plan with the two more orders that `remat.compile` offers
(`remat.pytorch.KernelOrder`). The kernels are the same, so the modelled time is, too. The steps are those of
`users_table`, predicted for an H100, and that of ResNet-50 for an A100. No device was used.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.bench.users_table import STEPS, captured
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat.improve.for_device import for_device
from remat.improve.one_liners import one_liners
from remat.predict.buffers import StepMemory
from remat.predict.buffers.orders import with_torchs_order


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Predicts the peak of each of PyTorch's plans of one step, in both orders."""
    graph = for_device(captured(name), STEPS[name])
    ours, torchs = StepMemory(graph), StepMemory(with_torchs_order(graph))
    for rival, saved in one_liners(graph):
        yield {"rival": rival, "torch_bytes": torchs.peak(saved), "bytes": ours.peak(saved)}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how many peaks change, and by how much, for all steps and for each that changes."""
    changes = [row["bytes"] / row["torch_bytes"] - 1 for row in rows]
    lower, higher = [c for c in changes if c < -0.005], [c for c in changes if c > 0.005]
    lines = [
        f"plans: {len(rows)}; with a peak that is lower by more than 0.5 %: {len(lower)}, by {-min(changes):.0%} at "
        f"most; higher: {len(higher)}, by {max(changes):.1%} at most"
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [change for row, change in zip(rows, changes, strict=True) if row["case"] == case]
        if min(own) < -0.005:
            lines.append(f"{case}: {-statistics.median(own):.0%} lower in the median, {-min(own):.0%} at most")
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.kernel_orders",
    "Peaks in two orders of the kernels",
    cases=lambda: STEPS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
