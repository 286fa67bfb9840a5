"""Holds what the parts of a search within one limit of the peak have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from remat.answer.choice import Choice
from remat.facts.columns import IntArray
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.predict.memory import Timeline

PAYS = 0.0005
"""A change that makes a step faster by less than this part of it does not pay."""


class Ranking(Protocol):
    """Ranks choices, by step time in nanoseconds or otherwise; less is better (`remat.improve.step_ranking`)."""

    def of(self, choice: Choice, /) -> float: ...

    def effects(self, before: Choice, changed: Sequence[Sequence[Choice]], /) -> list[float]: ...

    def seems_worse(self, choice: Choice, best: Choice, /) -> bool: ...


@dataclass(frozen=True, eq=False)
class LimitedSearch:
    """Holds a limit, and the functions that make and judge plans.

    Attributes:
        limit_bytes: the most bytes that the peak may have.
        plans: makes choices legal; its prices say which changes are the most promising.
        plan: predicts the peak of a choice; the text says where the choice comes from.
        ranking: says which of two plans is better.
        timeline: predicts the live bytes of a choice.
        classes: (k,) the class of each value of the problem; equal values are changed together.
    """

    limit_bytes: int
    plans: PeakPlans
    plan: Callable[[Choice, str], PeakPlan]
    ranking: Ranking
    timeline: Callable[[Choice], Timeline]
    classes: IntArray

    def is_better(self, plan: PeakPlan, best: PeakPlan) -> bool:
        """Says whether a plan keeps the limit and is better than the best one so far."""
        return plan.peak_bytes <= self.limit_bytes and self.ranking.of(plan.choice) < self.ranking.of(best.choice)
