"""Asks how much a short search finds at the peaks of `users_table`: `python -m experiments.bench.quick_searches`.

Each search has a time limit of 1.5 ms for each value of the graph, 3 s for 2,000 values, and begins with no predictions
of earlier searches. So rows depend on the machine, and on what else it runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import remat
from costmodels import MemoryBudget
from experiments.bench.users_table import STEPS, captured, default_ns, slower_points
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

S_PER_VALUE = 1.5e-3


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Searches within the peak of each of PyTorch's plans of one step that is slower than its default."""
    device, graph = STEPS[name], captured(name)
    predictor = StepPredictor.of(graph, find_device(device), device)
    for point in slower_points(name):
        model = MemoryBudget(point["peak_bytes"], of="peak", estimator=f"roofline:device={device}")
        new_graph = replace(graph, meta={**graph.meta})  # a graph remembers what was predicted of it
        limit_s, begin_s = S_PER_VALUE * len(graph), time.monotonic()
        step = remat.choose(new_graph, model, time_limit_s=limit_s, throw=False).step
        quick = None if step is None else step.ns / default_ns(predictor) - 1
        took_s = round(time.monotonic() - begin_s, 1)
        yield point | {"quick_overhead": quick, "limit_s": round(limit_s, 1), "took_s": took_s}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how much of the whole search's gain a short search finds."""
    found = [row for row in rows if row["quick_overhead"] is not None]
    slower = sum(row["quick_overhead"] > row["rival_overhead"] + 1e-3 for row in found)
    less, whole = (
        statistics.median(1 - row[key] / row["rival_overhead"] for row in found)
        for key in ("quick_overhead", "our_overhead")
    )
    lines = [
        f"points: {len(rows)}; no plan found in time: {len(rows) - len(found)}; slower than the plan of PyTorch by "
        f"more than 0.1 %: {slower}",
        f"overhead against that of PyTorch's plans at the same peak: {less:.0%} less in the median; without a time "
        f"limit {whole:.0%}",
    ]
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.quick_searches",
    "Short searches within PyTorch's peaks",
    cases=lambda: STEPS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
