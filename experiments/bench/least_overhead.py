"""Bounds what any plan recomputes at the peaks of `users_table`: `python -m experiments.bench.least_overhead`.

Within many of these peaks, every plan recomputes some matrix products, convolutions or calls of attention.
`least_overhead` is a proven lower bound of their time, as a share of the step of PyTorch's default plan, which
recomputes none of them. The bound holds for the predicted memory of a compiled step and the roofline's prices
(`remat.improve.step_bound`; `remat.certify` checks each flow). It says nothing about other kernels, which may take more
time than the default's, or less. Of a product with a bias, the price includes the read of the bias, and the predicted
time of its kernel does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import remat
from costmodels import RecomputeTime
from experiments.bench.users_table import STEPS, captured, default_ns, our_overhead_at, slower_points
from experiments.models.measured_models import CHECKPOINTED
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Graph, Problem
from remat.improve.step_bound import step_bounds
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Bounds the overhead of one step at the peak of each of PyTorch's plans that has one."""
    device = STEPS[name]
    predictor = StepPredictor.of(captured(name), find_device(device), device)
    graph = predictor.graph
    prices = RecomputeTime(f"roofline:device={device}").pose(graph)
    products = replace(prices, recompute_cost=np.where(graph.compute_bound[graph.plannable], prices.recompute_cost, 0))
    for point in slower_points(name):
        yield point | {"least_overhead": least_ns(graph, products, point["peak_bytes"]) / default_ns(predictor)}


def least_ns(graph: Graph, problem: Problem, peak_bytes: int) -> int:
    """Returns a lower bound, proven by flows, of what a plan within a peak costs."""
    proven = 0
    for relaxation in step_bounds(graph, problem, peak_bytes):
        solution = remat.solve(relaxation, "lagrangian")
        remat.certify(relaxation, solution)
        proven = max(proven, solution.bound or 0)
    return proven


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how much less overhead than that of checkpointed layers is possible, and how much less ours have."""
    bounded = sum(row["least_overhead"] > 0 for row in rows)
    told = [f"points where every plan recomputes some products: {bounded} of {len(rows)}"]
    if layers := [row for row in rows if row["rival"].startswith(CHECKPOINTED)]:
        most = statistics.median(1 - row["least_overhead"] / row["rival_overhead"] for row in layers)
        ours = statistics.median(1 - our_overhead_at(row) / row["rival_overhead"] for row in layers)
        told.append(
            "at the peaks of every layer checkpointed, if all other kernels take at least as long as the default's: "
            f"at most {most:.0%} less overhead is possible in the median; ours is {ours:.0%} less"
        )
    return [bullets(told)]


TABLE = ResultTable(
    "experiments.bench.least_overhead",
    "The least overhead within PyTorch's peaks",
    cases=lambda: STEPS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
