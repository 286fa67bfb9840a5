"""What an estimator is: how long computing a value once more takes, in the backward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from remat.errors import InvalidProblem
from remat.facts.columns import IntArray, checked_prices
from remat.facts.graph import Graph


class Estimator(ABC):
    """A price of recomputing each value of a graph. Implementations are frozen dataclasses.

    A cost model that weighs memory against time takes one, by name or as an instance
    (`remat.plugin.find_estimator`). What an estimator says of a value does not depend on the plan: it is the
    price of computing that value alone, given its arguments.

    Attributes:
        name: what users type.
        unit: of the prices: "ns" or "flops".
    """

    name: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    def recompute_cost(self, graph: Graph) -> IntArray:
        """What computing each value once more in the backward pass costs.

        Args:
            graph: a graph of n values.

        Returns:
            (n,) non-negative integers in `unit`, below 2**62 in sum. 0 for what is never computed
            again or needs no kernel: inputs, views, elements of tuples, and the tangents' closure.
        """

    def prices(self, graph: Graph) -> IntArray:
        """What `recompute_cost` answers, checked.

        Raises:
            InvalidProblem: it is no (n,) array of non-negative integers, or they add up to 2**62 or more.
        """
        answer = self.recompute_cost(graph)
        return checked_prices(f"{self!r}: what recompute_cost() returns", answer, len(graph), InvalidProblem)

    def data(self) -> str:
        """What its prices depend on beside its options and the graph: a measured file, for one.

        It is part of torch's cache key (`remat.pytorch.Partitioner.uuid`), so a plan is chosen again where it
        differs.
        """
        return ""
