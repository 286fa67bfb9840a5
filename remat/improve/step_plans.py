"""Finds plans whose compiled step keeps a limit of memory (`remat.predict.buffers`).

To predict a compiled step takes as long as a hundred simulations by value, so few plans are predicted. Mostly the peak
occurs where all that is saved is alive, and falls by what is saved less. Then the plan that saves less by as many bytes
as the last one exceeds the limit is nearly there, and two or three steps are enough. Where recomputed values make the
peak, it does not follow. There the plans that `remat.improve.peak_plans` finds by simulation are tried.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from typing import Protocol

from remat.facts.columns import BoolArray
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import OutOfTime, go_on
from remat.predict.buffers import StepMemory

# At most so many plans are predicted on the way to a limit; each has at most half the excess of the last.
_STEPS = 5
# Differences up to this part do not matter: what a limit leaves unused, or the difference of two peaks.
_NEAR = 0.01


class PredictsPeaks(Protocol):
    """Predicts the peak of the compiled step that saves (n,) some values of a graph, in bytes."""

    def peak(self, saved: BoolArray, /) -> int: ...


class StepPlans:
    """Holds plans of one graph that records its calls, each with the peak of its compiled step.

    Args:
        plans: the plans by simulation.
        memory: predicts peaks; None for a `StepMemory` of its own.
    """

    def __init__(self, plans: PeakPlans, memory: PredictsPeaks | None = None) -> None:
        self._plans = plans
        self._memory: PredictsPeaks = StepMemory(plans.graph) if memory is None else memory
        self._compiled_plans: dict[bytes, PeakPlan] = {}
        self._within: dict[int, PeakPlan | None] = {}
        self._least_bytes = -1  # the smallest peak by simulation; -1 until it is computed

    @cached_property
    def cheapest(self) -> PeakPlan:
        """Returns the plan of least cost, that of `PeakPlans.cheapest`."""
        return self._compiled(self._plans.cheapest)

    @property
    def smallest(self) -> PeakPlan:
        """Returns the cheapest plan near the smallest peak found; it is not proven that no plan has a smaller one."""
        _ = self.cheapest
        with suppress(OutOfTime):
            self._compiled(self._plans.lowest)
            self._try_default()
        enough = (1 + _NEAR) * min(plan.peak_bytes for plan in self._compiled_plans.values())
        return min((plan for plan in self._compiled_plans.values() if plan.peak_bytes <= enough), key=_by_cost)

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the cheapest plan found with a peak of at most `limit_bytes`; None if there is none."""
        if self.cheapest.peak_bytes <= limit_bytes:
            return self.cheapest
        if limit_bytes not in self._within:
            with suppress(OutOfTime):
                self._search(limit_bytes)
            self._within[limit_bytes] = self.best_so_far(limit_bytes)
        return self._within[limit_bytes]

    def approach(self, limit_bytes: int) -> PeakPlan | None:
        """Returns a cheap plan near a limit, and within it, by a few predictions; None if these find none."""
        if self.cheapest.peak_bytes > limit_bytes:
            self._approached(self.cheapest, limit_bytes)
        return self.best_so_far(limit_bytes)

    def _search(self, limit_bytes: int) -> None:
        if limit_bytes <= self._least_bytes:
            return
        if not self._approached(self.cheapest, limit_bytes) and not self._simulation_says_no(limit_bytes):
            for limit in {limit_bytes, max(limit_bytes, self._compiled(self._plans.front[0]).peak_bytes)}:
                self._try_simulated(limit)
            if (plan := self.best_so_far(limit_bytes)) is not None:
                self._approached(plan, limit_bytes)
            else:
                self._look_about(limit_bytes)
        if self.best_so_far(limit_bytes) is None:
            self._try_default()
        if self.best_so_far(limit_bytes) is None:  # the same plans for every limit that is hard to keep
            self._look_about(self.cheapest.peak_bytes // 2)

    def _try_default(self) -> None:
        # A limit that is kept without this search is to be kept with it.
        if self._plans.default is not None:
            self._compiled(self._plans.default)

    def _look_about(self, limit_bytes: int) -> None:
        for plan in self._plans.from_saved_budgets[:_STEPS]:
            self._compiled(plan)
        self._approached(self.cheapest, (limit_bytes + self.cheapest.peak_bytes) // 2)

    def best_so_far(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the cheapest plan within a limit of those that were predicted; None if there is none."""
        return min(
            (p for p in self._compiled_plans.values() if p.peak_bytes <= limit_bytes), key=_by_cost, default=None
        )

    def _simulation_says_no(self, limit_bytes: int) -> bool:
        # Where the compiled step is near its simulation, no plan is known to have a smaller peak than this one.
        simulated = self._plans.lowest
        compiled = self._compiled(simulated).peak_bytes
        if abs(compiled - simulated.peak_bytes) <= _NEAR * compiled:
            self._least_bytes = compiled
        return limit_bytes <= self._least_bytes

    def _approached(self, plan: PeakPlan, limit_bytes: int) -> bool:
        """Saves less, or more, by as many bytes as the peak of the last plan is above, or below, the limit.

        Returns whether this finds a plan that leaves little of the limit unused.
        """
        for _ in range(_STEPS):
            excess_bytes = plan.peak_bytes - limit_bytes
            next_plan = self._saving(plan.choice.saved_bytes(self._plans.problem) - excess_bytes)
            if next_plan is None:
                break
            unused_bytes = limit_bytes - next_plan.peak_bytes
            if 0 <= unused_bytes <= _NEAR * limit_bytes:
                return True
            if 2 * abs(unused_bytes) > abs(excess_bytes):
                break
            plan = next_plan
        return False

    def _saving(self, budget_bytes: int) -> PeakPlan | None:
        if budget_bytes < self._plans.least_saved_bytes:
            return None
        plan = self._plans.within_saved_budget(budget_bytes)
        return None if plan is None else self._compiled(plan)

    def _try_simulated(self, limit_bytes: int) -> None:
        """Bisects the simulated front for the limit: compiled peaks mostly rise along it, but not always."""
        front = self._plans.front
        first, last = 0, len(front)
        at = bisect_right(front, limit_bytes, key=lambda plan: plan.peak_bytes) - 1
        while first < last:
            at = min(max(at, first), last - 1)
            first, last = (at + 1, last) if self._compiled(front[at]).peak_bytes <= limit_bytes else (first, at)
            at = (first + last) // 2

    def _compiled(self, plan: PeakPlan) -> PeakPlan:
        key = plan.choice.saved.tobytes()
        if key not in self._compiled_plans:
            if self._compiled_plans:  # the first plan is there however long it takes
                go_on()
            peak_bytes = self._memory.peak(self._plans.graph.for_all_values(plan.choice.saved))
            self._compiled_plans[key] = self._plans.record(plan.choice, peak_bytes)
        return self._compiled_plans[key]


def _by_cost(plan: PeakPlan) -> tuple[int, int]:
    return plan.cost, plan.peak_bytes
