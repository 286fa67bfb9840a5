"""Describes one plan of a trade-off: its saved bytes, its cost, and a lower bound on the cost."""

from __future__ import annotations

from dataclasses import dataclass

from remat.answer.plan import Plan


@dataclass(frozen=True)
class Point:
    """Describes a plan by its saved bytes and its cost, with a lower bound on the cost within its budget.

    Attributes:
        budget_bytes: the budget that the plan was searched for; for a hull vertex, its own saved bytes.
        saved_bytes: how many bytes the plan saves.
        cost: what the plan costs, in the frontier's unit.
        bound: a proven lower bound: no plan that saves at most `budget_bytes` costs less.
        claimed_bound: the larger one of `bound` and of the bound that the solver claims without a proof.
        plan: what to save and recompute.
        solver: the name of the solver that found the plan.
        is_vertex: whether the plan is a vertex of the convex hull.
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
        """Returns the pair (saved bytes, cost)."""
        return self.saved_bytes, self.cost

    @property
    def gap(self) -> float:
        """Computes (cost - bound) / cost: no plan within the budget is cheaper by more than this share."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0

    @property
    def is_proven(self) -> bool:
        """Says if it is proven that no plan within the budget costs less."""
        return self.cost == self.bound
