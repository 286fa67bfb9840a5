"""Describes offloading: a saved value is copied to host memory, and takes no device memory meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat.errors import InvalidProblem
from remat.facts.bans import Bans
from remat.facts.columns import FrozenColumns, IntArray, any_set, int_column, is_whole
from remat.facts.graph import Graph, checked_graph


@dataclass(frozen=True, eq=False)
class Offload(FrozenColumns):
    """Holds the cost of offloading each of n values, and bans. Only saved values can be offloaded.

    Attributes:
        cost: (n,) non-negative integer prices of the two copies, to the host and back, in the unit of the problem's
            other prices. They replace `Problem.save_cost` of an offloaded value.
        banned: the values that cannot be offloaded, with reasons.

    Raises:
        InvalidProblem: a price is negative or not an integer, or the lengths differ.
    """

    cost: IntArray
    banned: Bans

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", int_column("Offload.cost", self.cost, None, InvalidProblem))
        if type(self.banned) is not Bans or len(self.banned) != len(self.cost):
            raise InvalidProblem(f"Offload.banned must be Bans of {len(self.cost)} values, got {self.banned!r}")
        if any_set(self.cost < 0):
            raise InvalidProblem(f"Offload.cost must not be negative, got {int(self.cost.min())}")

    def __len__(self) -> int:
        return len(self.cost)

    def __add__(self, other: Offload) -> Offload:
        if len(self) != len(other):
            raise InvalidProblem(f"an Offload of {len(self)} values must be added to one of as many, got {len(other)}")
        return Offload(self.cost + other.cost, self.banned | other.banned)

    def take(self, positions: IntArray) -> Offload:
        """Returns the prices and bans of the values at k positions."""
        return replace(self, cost=self.cost[positions], banned=self.banned.take(positions))


def checked_budget(label: str, budget: int | None) -> int | None:
    """Returns a budget as a Python integer, because NumPy's integers overflow silently; None stays None.

    Raises an `InvalidProblem` that begins with `label` for anything but a non-negative integer or None.
    """
    budget = int(budget) if budget is not None and is_whole(budget) else budget
    if budget is not None and (type(budget) is not int or budget < 0):
        raise InvalidProblem(f"{label} must be a non-negative integer or None, got {budget!r}")
    return budget


def cannot_offload(graph: Graph) -> Bans:
    """Returns the bans on offloading, over all n values of the graph, with reasons.

    It bans values that cannot be saved, values whose memory stays on the device anyway because the caller holds it,
    and values that would come back in another layout, because copies are contiguous. `.take(graph.plannable)` selects
    the values about which a plan decides.
    """
    returned = checked_graph(graph).owners(graph.output)
    tensor = (graph.bytes > 0) & np.fromiter((dtype != "symint" for dtype in graph.dtypes), np.bool_, len(graph))
    bans = graph.cannot_save.also(graph.in_tangents, "only the backward pass computes it")
    for mask, reason in (
        (graph.input[graph.base], "an input's memory, which the caller holds"),
        (graph.leaf[graph.base], "a constant's memory, which is there all the time"),
        (returned[graph.base], "memory of an output, which the caller holds"),
        (graph.base != np.arange(len(graph)), "a view: what owns its memory can be"),
        (~tensor, "no tensor with a size"),
        (graph.noncontiguous, "not contiguous: it would come back in rows"),
    ):
        bans = bans.also(mask, reason)
    return bans
