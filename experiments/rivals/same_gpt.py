"""One GPT for all rivals: what PyTorch's partitioner and ours save of it, and which matrix products they compute twice.

Four layers, float32, attention written out: so that a product is a product in every framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import remat
from costmodels import RecomputeTime
from experiments.bench.budgets import best
from experiments.models.zoo import gpt2
from remat import Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.plugin import Estimator, IntArray
from remat.pytorch.measure.torch_budgets import torchs_plans

SIZES: dict[str, Any] = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 512, "context": 128, "batch": 4}


@dataclass(frozen=True)
class Products(Estimator):
    """The operations of matrix products; all else is free."""

    name: ClassVar[str] = "products"
    unit: ClassVar[str] = "flops"

    def recompute_cost(self, graph: Graph) -> IntArray:
        """(n,) `Graph.flops` of what is compute-bound, outside of the tangents' closure."""
        return np.where(graph.compute_bound & ~graph.in_tangents, graph.flops, 0)


def captured() -> tuple[Graph, dict[float, Plan]]:
    """The joint graph, and PyTorch's plan at each of its budgets; 1.0 is its default."""
    model, args = gpt2(**SIZES)
    ((graph, plans),) = torchs_plans(model, *args)
    return graph, plans


def of_pytorch(graph: Graph, plans: dict[float, Plan]) -> list[dict[str, Any]]:
    """What PyTorch saves and computes twice at each of its budgets."""
    problem = RecomputeTime(Products()).pose(graph)
    return [
        {
            "case": "default" if budget == 1 else f"budget {budget}",
            "saved_bytes": PlanFacts.of(graph, plan).saved_bytes,
            "extra_flops": remat.Choice.from_plan(problem, plan).cost(problem),
        }
        for budget, plan in sorted(plans.items(), reverse=True)
    ]


def beside(graph: Graph, rows: Iterable[dict[str, Any]], time_limit_s: float) -> list[dict[str, Any]]:
    """Adds to each row the fewest operations of products that a plan of ours computes twice within the same bytes."""
    problem = RecomputeTime(Products()).pose(graph)
    found: list[dict[str, Any]] = []
    for row in rows:
        ours = best(problem, row["saved_bytes"], time_limit_s)
        found.append(row | {"ours_flops": ours and ours.objective, "bound_flops": ours and ours.bound})
    return found
