"""Estimates recompute time by arithmetic alone, without figures of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from remat.facts.columns import IntArray
from remat.facts.graph import Graph
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator


@dataclass(frozen=True)
class Flops(Estimator):
    """The recompute cost of an operator is its floating-point operations; memory traffic costs nothing.

    Matrix products, convolutions and attention count by torch's formulas. Any other operator counts one operation per
    element, which is negligible compared with a product. PyTorch's partitioner with "flops" uses the same formulas, and
    1 for operators without a formula.
    """

    name: ClassVar[str] = "flops"
    unit: ClassVar[str] = "flops"

    def recompute_cost(self, graph: Graph) -> IntArray:
        """Returns `Graph.flops` (n,), and 0 for values without a kernel."""
        return whole_prices("flops", Work.of(graph).flops)
