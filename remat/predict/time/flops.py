"""Estimates recompute time by arithmetic alone, without any figure of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat.facts.columns import IntArray
from remat.facts.graph import Graph
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator


@dataclass(frozen=True)
class Flops(Estimator):
    """Prices each operator by its floating-point operations; memory traffic costs nothing.

    Matrix products, convolutions and attention count by torch's formulas; any other operator counts one operation
    an element, which is next to nothing beside a product. PyTorch's partitioner, with "flops", counts by the same
    formulas, and 1 for an operator without one.
    """

    name: ClassVar[str] = "flops"
    unit: ClassVar[str] = "flops"

    def recompute_cost(self, graph: Graph) -> IntArray:
        """Returns `Graph.flops`, but 0 for what needs no kernel: (n,)."""
        return whole_prices("flops", Work.of(graph).flops)
