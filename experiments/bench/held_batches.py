"""Predicts Table 2 of the paper again, as a compiler that frees no saved value before the end of the backward pass.

Until October 2022, functions that PyTorch compiled held their arguments until they returned, so all that was saved
stayed in memory during the whole backward pass (pytorch#83137, torchdynamo#1600, pytorch#88247: the last one measures
its gain on a ResNet-18). Today a saved value is freed after its last reader, or a gradient is written over it. The
steps, batches and plans are those of `experiments.bench.largest_batches`, and kernels are still those of today.

Command: `python -m experiments.bench.held_batches`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.bench.largest_batches import PUBLISHED, extrapolated_batch, predictors, published_methods, summary
from experiments.report.result_table import ResultTable, Row
from remat.answer.choice import Choice
from remat.facts.columns import BoolArray
from remat.predict.buffers import StepMemory
from remat.predict.buffers.allocated import AllocatedPass
from remat.predict.kernels.fuser import ScheduledPass


class HoldingMemory(StepMemory):
    """Simulates steps in which saved values are neither freed nor written over before the backward pass ends."""

    def _allocated(self, scheduled: ScheduledPass, **_: bool) -> AllocatedPass:
        return super()._allocated(scheduled, frees=False)

    def held_peak(self, saved: BoolArray) -> int:
        """Returns the most bytes alive at once."""
        of = self.lifetimes(saved)
        steps = int(of.end.max()) + 2
        change = np.zeros(steps, np.int64)
        np.add.at(change, of.start, of.size)
        np.subtract.at(change, np.where(of.saved, steps - 1, of.end + 1), of.size)
        return int(np.cumsum(change).max())


def predicted(name: str) -> Iterator[Row]:
    """Predicts the largest batch of each method, if saved values are held."""
    graphs = {batch: step.graph for batch, step in predictors(name).items()}
    memory = {batch: HoldingMemory(graph) for batch, graph in graphs.items()}
    for method, plan in published_methods(max(graphs.items())[1]).items():
        peaks = {batch: memory[batch].held_peak(Choice.from_plan(graph, plan).saved) for batch, graph in graphs.items()}
        published, batch = PUBLISHED[name][method], extrapolated_batch(peaks)
        yield {"method": method, "published": published, "batch": batch, "error": batch / published - 1}


TABLE = ResultTable(
    "experiments.bench.held_batches",
    "The largest batch on an A100 of 40 GB, if saved values are held",
    cases=lambda: PUBLISHED,
    measure=predicted,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
