"""A choice: which values of a problem are saved and which are recomputed, as two masks.

Searches, solvers and proofs work on choices; `remat.Plan` says the same by name, for files and for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.answer.plan import Plan
from remat.errors import InvalidPlan
from remat.facts.columns import BoolArray, FrozenColumns, bool_column
from remat.facts.graph import Graph
from remat.facts.uses import spread
from remat.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Choice(FrozenColumns):
    """What the forward pass saves and what the backward pass recomputes; nothing else is available there.

    A choice says nothing about whether it is legal (see `remat.check_plan`). Equal choices have equal hashes.

    Attributes:
        saved, recomputed: (n,) masks over the values of a problem; or over those of a graph, where that is said.

    Raises:
        InvalidPlan: the masks are no flags, or of different lengths.
    """

    saved: BoolArray
    recomputed: BoolArray

    def __post_init__(self) -> None:
        n = np.size(self.saved)
        for name in ("saved", "recomputed"):
            object.__setattr__(self, name, bool_column(f"Choice.{name}", getattr(self, name), n, InvalidPlan))

    @classmethod
    def from_saved(cls, about: Problem | Graph, saved: BoolArray) -> Choice:
        """The choice that follows from a set of saved values: whatever else is needed is recomputed.

        Saved values that the backward pass never reads are dropped. The choice may break bans.

        Args:
            about: a problem or a graph of n values.
            saved: (n,) which of them to save.
        """
        saved = bool_column("saved", saved, len(about), InvalidPlan)
        available = spread(about.operands, about.needed, ~saved)
        return cls(available & saved, available & ~saved)

    @classmethod
    def from_plan(cls, about: Problem | Graph, plan: Plan) -> Choice:
        """The choice that a plan names, over the values of a problem or of a graph.

        Raises:
            InvalidPlan: a name is unknown, or appears twice.
        """
        return cls(_named("saved", plan.saved, about), _named("recomputed", plan.recomputed, about))

    @cached_property
    def key(self) -> bytes:
        """The decisions in few bytes: equal for equal choices."""
        return np.packbits([self.saved, self.recomputed]).tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and len(self.saved) == len(other.saved) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def cost(self, problem: Problem) -> int:
        """What the choice costs, in the unit of the problem's prices."""
        return int(problem.save_cost[self.saved].sum() + problem.recompute_cost[self.recomputed].sum())

    def saved_bytes(self, problem: Problem) -> int:
        """How many bytes the saved values take, each counted by itself."""
        return int(problem.save_bytes[self.saved].sum())

    def plan(self, about: Problem | Graph) -> Plan:
        """The same by name, in the order of the values, with a note of the graph."""
        saved: list[int] = np.flatnonzero(self.saved).tolist()
        recomputed: list[int] = np.flatnonzero(self.recomputed).tolist()
        names = about.names
        return Plan(tuple([names[i] for i in saved]), tuple([names[i] for i in recomputed]), about.signature)


def _named(label: str, names: tuple[str, ...], about: Problem | Graph) -> BoolArray:
    mask = np.zeros(len(about), np.bool_)
    try:
        positions = [about.index[name] for name in names]
    except KeyError as error:
        raise InvalidPlan(f"Plan.{label} names {error.args[0]!r}, which is not a value of {about!r}") from None
    mask[positions] = True
    if int(np.count_nonzero(mask)) != len(names):
        raise InvalidPlan(f"Plan.{label} must name each value once")
    return mask
