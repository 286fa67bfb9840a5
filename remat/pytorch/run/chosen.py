"""Holds a plan with what is known of how it was chosen."""

from __future__ import annotations

from dataclasses import dataclass

from remat.answer.plan import Plan
from remat.answer.solution import Solution

TOGETHER = ("all graphs together", "price of memory", "least saved", "another rank")
"""What `Chosen.by` says where a graph has no budget to itself."""


@dataclass(frozen=True)
class Chosen:
    """Holds a plan, and how it was chosen.

    Attributes:
        plan: what to save and recompute.
        by: the solver, or in words how it was found.
        gap: how far above the best it may cost, at most, as a part of its cost; None if nobody knows.
        is_proven: it is optimal, and the proof was verified.
        checked_peak_bytes: its peak by the code that Inductor writes for it; None where that was not asked for.
        check: what the check has come to, in a sentence; "" where there was none.
    """

    plan: Plan
    by: str
    gap: float | None = None
    is_proven: bool = False
    checked_peak_bytes: int | None = None
    check: str = ""

    @classmethod
    def of(cls, solution: Solution) -> Chosen:
        """Takes what a solution says of its plan."""
        assert solution.plan is not None  # whoever calls has it raise where there is none
        return cls(solution.plan, solution.solver, solution.gap, solution.is_proven)
