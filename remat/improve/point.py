"""A plan as a point of a trade-off: what it saves, what it costs, and what it costs at least."""

from __future__ import annotations

from dataclasses import dataclass

from remat.answer.plan import Plan


@dataclass(frozen=True)
class Point:
    """A plan on, or near, the frontier.

    Attributes:
        budget_bytes: the budget that it was found for; of a hull vertex, its own bytes.
        saved_bytes: what the plan saves.
        cost: what the plan costs, in the frontier's unit.
        bound: no plan that saves up to `budget_bytes` costs less, and that is proven.
        claimed_bound: the same, where the word of an exact solver is taken for it.
        plan: what to save and recompute.
        solver: who found it.
        is_vertex: a vertex of the convex hull.
    """

    budget_bytes: int
    saved_bytes: int
    cost: int
    bound: int
    claimed_bound: int
    plan: Plan
    solver: str
    is_vertex: bool = False

    @property
    def point(self) -> tuple[int, int]:
        """(saved bytes, cost)."""
        return self.saved_bytes, self.cost

    @property
    def gap(self) -> float:
        """(cost - bound) / cost: how far from optimal the plan may be at most, and that is proven."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0

    @property
    def is_proven(self) -> bool:
        """No plan within the budget costs less."""
        return self.cost == self.bound
