"""Arithmetic alone: the estimate that needs to know nothing about a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat.facts.columns import IntArray
from remat.facts.graph import Graph
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator


@dataclass(frozen=True)
class Flops(Estimator):
    """The floating-point operations of each operator; memory traffic costs nothing.

    Matrix products, convolutions and attention by torch's formulas, any other operator one operation an
    element: next to a product it is practically free, as in PyTorch's partitioner, where "flops"
    counts the same formulas and 1 for an operator without one.
    """

    name: ClassVar[str] = "flops"
    unit: ClassVar[str] = "flops"

    def recompute_cost(self, graph: Graph) -> IntArray:
        """`Graph.flops`, but 0 for what needs no kernel."""
        return whole_prices("flops", Work.of(graph).flops)
