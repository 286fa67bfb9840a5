"""Defines estimators, which price the recomputation of each value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from remat.errors import InvalidProblem
from remat.facts.columns import IntArray, checked_prices
from remat.facts.graph import Graph


class Estimator(ABC):
    """Sets the price of recomputing each value of a graph. Implementations are frozen dataclasses.

    A cost model that trades memory for time has an estimator, by name or as an instance
    (`remat.plugin.find_estimator`). The price of a value does not depend on the plan: it is that of computing the value
    alone, from its operands.

    Attributes:
        name: the name that users type.
        unit: the unit of the prices: "ns" or "flops".
    """

    name: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    def recompute_cost(self, graph: Graph) -> IntArray:
        """Returns the price of computing each value once more in the backward pass.

        Args:
            graph: a graph of n values.

        Returns:
            (n,) non-negative integers in `unit`, with a sum below 2**62. 0 for values that are never recomputed or need
            no kernel: inputs, views, elements of tuples, and the tangents' closure.
        """

    def prices(self, graph: Graph) -> IntArray:
        """Returns the checked result of `recompute_cost`.

        Raises:
            InvalidProblem: the result is no (n,) array of non-negative integers, or they add up to 2**62 or more.
        """
        answer = self.recompute_cost(graph)
        return checked_prices(f"{self!r}: what recompute_cost() returns", answer, len(graph), InvalidProblem)

    @property
    def step_device(self) -> object:
        """Returns the device of these times: a name, a file or a profile; None if there is none."""
        return None

    def data(self) -> str:
        """Returns a text of everything besides options and graph on which the prices depend, such as a measured file.

        The text is part of torch's cache key (`remat.pytorch.Partitioner.uuid`), so a plan is chosen again if it
        changes.
        """
        return ""
