"""Defines a choice: which values of a problem are saved and which are recomputed, as two masks.

Searches, solvers and proofs use choices; a `remat.Plan` holds these decisions by name, for files and for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from remat.answer.plan import Plan
from remat.errors import InvalidPlan
from remat.facts.columns import BoolArray, FrozenColumns, any_set, bool_column
from remat.facts.graph import Graph
from remat.facts.lazy_field import Deferred
from remat.facts.uses import propagate_to_operands
from remat.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Choice(FrozenColumns):
    """Holds what the forward pass saves and what the backward pass recomputes; nothing else is available there.

    A saved value stays on the device unless it is offloaded: then it waits on the host, and is copied back. A choice
    need not be legal (see `remat.check_plan`). Equal choices have equal hashes.

    Attributes:
        saved, recomputed: (n,) masks over the values of a problem; in some functions, over those of a graph.
        offloaded: (n,) the saved values that wait on the host; none by default.

    Raises:
        InvalidPlan: a mask contains anything other than true and false, or the lengths differ.
    """

    saved: BoolArray
    recomputed: BoolArray
    offloaded: BoolArray = None  # type: ignore[assignment]  # after __post_init__ an array of n flags

    def __post_init__(self) -> None:
        n = np.size(self.saved)
        if self.offloaded is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "offloaded", np.zeros(n, np.bool_))
        for name in ("saved", "recomputed", "offloaded"):
            object.__setattr__(self, name, bool_column(f"Choice.{name}", getattr(self, name), n, InvalidPlan))

    @classmethod
    def from_saved(cls, owner: Problem | Graph, saved: BoolArray, offloaded: BoolArray | None = None) -> Choice:
        """Returns the choice that saves these values and recomputes the others that are needed.

        Saved values that the backward pass never reads are dropped. The choice may break bans.

        Args:
            owner: a problem or a graph of n values.
            saved: (n,) the values to save.
            offloaded: (n,) the values of `saved` to offload; none by default.
        """
        saved = bool_column("saved", saved, len(owner), InvalidPlan)
        available = propagate_to_operands(owner.operands, owner.needed, ~saved)
        is_saved = available & saved
        hosted = None if offloaded is None else is_saved & bool_column("offloaded", offloaded, len(owner), InvalidPlan)
        return cls(is_saved, available & ~saved, cast(BoolArray, hosted))

    @classmethod
    def from_plan(cls, owner: Problem | Graph, plan: Plan, *, offload: bool = False) -> Choice:
        """Returns the choice of a plan, over the values of a problem or of a graph.

        Args:
            owner: a problem or a graph of n values.
            plan: a plan for it.
            offload: whether a plan for a graph may offload values; a plan for a problem always may.

        Raises:
            InvalidPlan: a name is unknown or appears twice, or the plan offloads values without `offload`.
        """
        if plan.offloaded and isinstance(owner, Graph) and not offload:
            raise InvalidPlan(
                f"the plan offloads {plan.offloaded[0]!r}, but offloading is not allowed here: take a plan that "
                f"offloads nothing"
            )
        labels = ("saved", "recomputed", "offloaded")
        return cls(*(_named(label, getattr(plan, label), owner) for label in labels))

    @cached_property
    def key(self) -> bytes:
        """Returns the decisions packed into bytes, which are equal for equal choices."""
        masks = [self.saved, self.recomputed]
        return np.packbits([*masks, self.offloaded] if any_set(self.offloaded) else masks).tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and len(self.saved) == len(other.saved) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def on_device(self) -> BoolArray:
        """Returns a mask (n,) of the saved values that are not offloaded."""
        return self.saved & ~self.offloaded if any_set(self.offloaded) else self.saved

    def cost(self, problem: Problem) -> int:
        """Returns the cost of the choice, in the unit of the problem's prices.

        In a problem without offloading, an offloaded value costs nothing.
        """
        copies = 0 if problem.offload is None else problem.offload.cost[self.offloaded].sum()
        return int(problem.save_cost[self.on_device].sum() + problem.recompute_cost[self.recomputed].sum() + copies)

    def saved_bytes(self, problem: Problem) -> int:
        """Returns the sum of the bytes of the saved values on the device."""
        return int(problem.save_bytes[self.on_device].sum())

    def keeps_bans(self, problem: Problem) -> bool:
        """Returns whether the choice breaks no ban on saving or recomputing."""
        banned = self.saved & problem.cannot_save.mask | self.recomputed & problem.cannot_recompute.mask
        return not any_set(banned)

    def keeps_budget(self, problem: Problem) -> bool:
        """Returns whether the saved bytes fit every budget of the problem."""
        return all(int(sizes[self.on_device].sum()) <= limit for _, sizes, limit in problem.budgets)

    def keeps_ties(self, problem: Problem) -> bool:
        """Returns whether no group of tied values is partly saved and partly recomputed."""
        return not any(any_set(self.saved[g]) and any_set(self.recomputed[g]) for g in problem.tied_groups)

    def plan(self, owner: Problem | Graph) -> Plan:
        """Returns the plan of the choice: names in the order of the values, and the signature of the graph."""
        names = owner.names

        def named(mask: BoolArray) -> tuple[str, ...]:
            positions: list[int] = np.flatnonzero(mask).tolist()
            return tuple([names[i] for i in positions])

        return Plan(named(self.saved), named(self.recomputed), Deferred(lambda: owner.signature), named(self.offloaded))


def _named(label: str, names: tuple[str, ...], owner: Problem | Graph) -> BoolArray:
    mask = np.zeros(len(owner), np.bool_)
    try:
        positions = [owner.index[name] for name in names]
    except KeyError as error:
        raise InvalidPlan(f"Plan.{label} names {error.args[0]!r}, which is not a value of {owner!r}") from None
    mask[positions] = True
    if int(np.count_nonzero(mask)) != len(names):
        raise InvalidPlan(f"Plan.{label} must name each value once")
    return mask
