"""Finds plans whose compiled step stays within a limit of memory (`remat.predict.buffers`).

To predict a compiled step takes as long as a hundred simulations by value, so few plans are asked about. Mostly the
peak lies where all that is saved is alive, and falls by what is saved less. So the plan that saves as many bytes less
as the last one had too many is nearly there: two or three steps. Where what is recomputed makes the peak, it does not
follow. There the plans that `remat.improve.peak_plans` finds by simulation are tried.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import cached_property

from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import OutOfTime, go_on
from remat.predict.buffers import StepMemory

_STEPS = 5
"""Plans to ask about on the way to a limit; each has at most half the excess of the last."""

_NEAR = 0.01
"""What does not matter, as a part: of a limit that is left unused, of a peak, of a cost."""


class StepPlans:
    """Holds plans of one problem of one graph that records its calls, each with the peak of its compiled step.

    Args:
        plans: those found by simulation.
    """

    def __init__(self, plans: PeakPlans) -> None:
        self._plans, self._memory = plans, StepMemory(plans.graph)
        self._known: dict[bytes, PeakPlan] = {}
        self._within: dict[int, PeakPlan | None] = {}
        self._least_bytes = -1  # what the simulation says is the smallest peak, once it is asked

    @cached_property
    def cheapest(self) -> PeakPlan:
        """The plan that costs least, as `PeakPlans.cheapest`."""
        return self._compiled(self._plans.cheapest)

    @property
    def smallest(self) -> PeakPlan:
        """The cheapest plan of those near the smallest peak found. It is not proven that there is no smaller one."""
        _ = self.cheapest
        with suppress(OutOfTime):
            self._compiled(self._plans.lowest)
            self._try_default()
        enough = (1 + _NEAR) * min(plan.peak_bytes for plan in self._known.values())
        return min((plan for plan in self._known.values() if plan.peak_bytes <= enough), key=_by_cost)

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the cheapest plan found with a peak of at most `limit_bytes`, if any."""
        if self.cheapest.peak_bytes <= limit_bytes:
            return self.cheapest
        if limit_bytes not in self._within:
            with suppress(OutOfTime):
                self._search(limit_bytes)
            self._within[limit_bytes] = self._known_within(limit_bytes)
        return self._within[limit_bytes]

    def _search(self, limit_bytes: int) -> None:
        if limit_bytes <= self._least_bytes:
            return
        if not self._approached(self.cheapest, limit_bytes) and not self._simulation_says_no(limit_bytes):
            for limit in {limit_bytes, max(limit_bytes, self._compiled(self._plans.front[0]).peak_bytes)}:
                self._try_simulated(limit)
            if (found := self._known_within(limit_bytes)) is not None:
                self._approached(found, limit_bytes)
            else:
                self._look_about(limit_bytes)
        if self._known_within(limit_bytes) is None:
            self._try_default()
        if self._known_within(limit_bytes) is None:  # the same plans for every limit that is hard to keep
            self._look_about(self.cheapest.peak_bytes // 2)

    def _try_default(self) -> None:
        """Tries PyTorch's default plan: a limit that is kept without us is to be kept with us."""
        if self._plans.default is not None:
            self._compiled(self._plans.default)

    def _look_about(self, limit_bytes: int) -> None:
        for plan in self._plans.from_saved_budgets[:_STEPS]:
            self._compiled(plan)
        self._approached(self.cheapest, (limit_bytes + self.cheapest.peak_bytes) // 2)

    def _known_within(self, limit_bytes: int) -> PeakPlan | None:
        return min((p for p in self._known.values() if p.peak_bytes <= limit_bytes), key=_by_cost, default=None)

    def _simulation_says_no(self, limit_bytes: int) -> bool:
        """Says if a limit is not above the smallest simulated peak, where the compiled step is near the simulation."""
        simulated = self._plans.lowest
        compiled = self._compiled(simulated).peak_bytes
        if abs(compiled - simulated.peak_bytes) <= _NEAR * compiled:
            self._least_bytes = compiled
        return limit_bytes <= self._least_bytes

    def _approached(self, plan: PeakPlan, limit_bytes: int) -> bool:
        """Saves less, or more, by what the last plan has too much, or too little.

        Returns:
            whether that leads to a plan that leaves little of the limit unused.
        """
        for _ in range(_STEPS):
            excess = plan.peak_bytes - limit_bytes
            after = self._saving(plan.choice.saved_bytes(self._plans.problem) - excess)
            if after is None:
                break
            left = limit_bytes - after.peak_bytes
            if 0 <= left <= _NEAR * limit_bytes:
                return True
            if 2 * abs(left) > abs(excess):
                break
            plan = after
        return False

    def _saving(self, budget_bytes: int) -> PeakPlan | None:
        if budget_bytes < self._plans.least_saved_bytes:
            return None
        plan = self._plans.within_saved_budget(budget_bytes)
        return None if plan is None else self._compiled(plan)

    def _try_simulated(self, limit_bytes: int) -> None:
        """Tries plans found by simulation around where compiled peaks pass a limit: they follow, but not quite.

        The first to be tried is where the simulation says so, then it goes by halves.
        """
        front = self._plans.front
        low, high = 0, len(front)
        at = bisect_right(front, limit_bytes, key=lambda plan: plan.peak_bytes) - 1
        while low < high:
            at = min(max(at, low), high - 1)
            low, high = (at + 1, high) if self._compiled(front[at]).peak_bytes <= limit_bytes else (low, at)
            at = (low + high) // 2

    def _compiled(self, plan: PeakPlan) -> PeakPlan:
        key = plan.choice.saved.tobytes()
        if key not in self._known:
            if self._known:  # the first plan is there however long it takes
                go_on()
            peak_bytes = self._memory.peak(self._plans.graph.for_all_values(plan.choice.saved))
            self._known[key] = self._plans.record(plan.choice, peak_bytes)
        return self._known[key]


def _by_cost(plan: PeakPlan) -> tuple[int, int]:
    return plan.cost, plan.peak_bytes
