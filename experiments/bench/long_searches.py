"""Asks what a longer search finds where PyTorch saves most: `python -m experiments.bench.long_searches`.

A search without a time limit ends after some thirty predictions. Here it has 20 ms for each value of the graph, 40 s
for 2,000 values, at the peaks of checkpointed layers in `users_table`, and begins with no predictions of earlier
searches. Such a search ends when its time is up, or when no change makes the step faster. So rows depend on the
machine, and on what else it runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import remat
from costmodels import MemoryBudget
from experiments.bench.users_table import STEPS, captured, default_ns, our_overhead_at, slower_points
from experiments.models.measured_models import CHECKPOINTED
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

S_PER_VALUE = 20e-3


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Searches within the peak of each of PyTorch's plans of one step that checkpoints every layer."""
    device, graph = STEPS[name], captured(name)
    predictor = StepPredictor.of(graph, find_device(device), device)
    for point in slower_points(name):
        if not point["rival"].startswith(CHECKPOINTED):
            continue
        model = MemoryBudget(point["peak_bytes"], of="peak", estimator=f"roofline:device={device}")
        new_graph = replace(graph, meta={**graph.meta})  # a graph remembers what was predicted of it
        limit_s, begin_s = S_PER_VALUE * len(graph), time.monotonic()
        step = remat.choose(new_graph, model, time_limit_s=limit_s, throw=False).step
        long = None if step is None else step.ns / default_ns(predictor) - 1
        took_s = round(time.monotonic() - begin_s, 1)
        yield point | {"long_overhead": long, "limit_s": round(limit_s, 1), "took_s": took_s}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how much less a step takes after a longer search."""
    found = [row for row in rows if row["long_overhead"] is not None]
    gains = [our_overhead_at(row) - row["long_overhead"] for row in found]
    better, worse = sum(gain > 1e-3 for gain in gains), sum(gain < -1e-3 for gain in gains)
    less = statistics.median(1 - row["long_overhead"] / row["rival_overhead"] for row in found)
    default = statistics.median(1 - our_overhead_at(row) / row["rival_overhead"] for row in found)
    lines = [
        f"points: {len(rows)}; no plan found: {len(rows) - len(found)}; a step that is faster than without a time "
        f"limit by more than 0.1 %: {better}; slower: {worse}",
        f"overhead against that of PyTorch's plans at the same peak: {less:.0%} less in the median; without a time "
        f"limit {default:.0%}",
    ]
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.long_searches",
    "Longer searches within the peaks of checkpointed layers",
    cases=lambda: STEPS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
