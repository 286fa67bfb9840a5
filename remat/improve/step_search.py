"""Searches for the best plan whose compiled step keeps a limit of memory (`remat.predict.buffers`).

To predict a compiled step takes as long as a hundred simulations by value, so few plans are predicted: without a time
limit, some forty, and more of small graphs. They come from several sources, and one ranking judges them all
(`remat.improve.step_ranking`):

- Budgets of saved bytes. Mostly the peak occurs when all saved values are alive, and falls by the bytes that are not
  saved. So the next budget is lower by the bytes by which the last plan exceeds the limit. Once one plan is above the
  limit and one within it, the next budget lies between theirs.
- Minimum cuts at prices of memory that depend on the moment (`remat.improve.time_prices`): they save more of what is
  not alive at the peak.
- Repairs of plans above the limit (`remat.improve.repairs`).
- What a user of PyTorch gets by one line of code (`remat.improve.one_liners`), so that no such plan is better than the
  result, and no limit that such a plan keeps is called unreachable.
- The best plan within the limit, saving more of what it recomputes: single values, or all small ones; and exchanges,
  which save more of some values and less of others (`remat.improve.exchanges`).
- For the smallest peak: searches for the best plan with the lowest peak so far, which can lead to a lower one, and
  descents, by changes of what is alive at the peak (`remat.improve.peak_descent`), in turn.
- Mixtures of two plans (`remat.improve.mixtures`). One keeps the limit: it is the best such plan, or the one with the
  lowest peak. The other one exceeds the limit: it is the fastest such plan, or the one that gains most per byte.

The logger of this module says at level DEBUG of each plan where it comes from, its peak and its rank.

The ranking may know several sets of prices. The last set leads to the first plans. In the end, budgets of saved bytes
are tried with each set, also for less than the limit: where memory is plenty, a plan that saves less can be faster.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from statistics import median

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan_facts import distinct_bytes
from remat.facts.columns import BoolArray, IntArray
from remat.improve.byte_budgets import default_choice, default_saved
from remat.improve.equivalence_classes import equivalence_classes
from remat.improve.exchanges import Exchanges
from remat.improve.limited_search import PAYS, LimitedSearch
from remat.improve.mixtures import Mixtures
from remat.improve.peak_descent import lowered
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import OutOfTime, count_prediction, go_on, predicting_at_most
from remat.improve.repairs import Repairs
from remat.improve.step_predictor import StepPredictor
from remat.improve.step_ranking import ByCost, ByStepTime
from remat.predict.buffers import ALONE, Exchanged, StepMemory
from remat.predict.memory import Timeline

_LOGGER = logging.getLogger(__name__)

# At most this many budgets of saved bytes are tried on the way to a limit.
_BUDGETS = 5
# Two budgets are never closer than this part of what lies between those above and within the limit.
_APART = 0.2
# A plan that is far below a limit uses less than this part of it. In the end, plans within this part are tried, too.
_LESS = 0.85
# Differences up to this part do not matter: what a limit leaves unused, or the difference of two peaks.
_NEAR = 0.01
# A byte that is alive all the time is priced between these multiples of what it costs on average to recompute a byte;
# so many prices are tried.
_FACTORS, _CUTS = (0.25, 64), 4
# How fast a price falls where less is alive than at the peak (`TimeIndexedPrices.priced`).
_FOCUS = 12
# The best plan is improved at most this often, as long as that pays.
_TRIES = 8
# A plan that is slower than the fastest one by less than this part of a step is not improved. In 19 searches for a ViT
# and two Llamas, what followed gained 0.08 % of a step at most, and took two thirds of the predictions.
_ENOUGH = 0.01
# Peaks that differ by less than this part of them count as equally small: 256 bytes of 5 MB cost 4% of a step.
_TIE = 0.001
# The descents to the smallest peak begin at this many plans.
_DESCENTS = 3
# Values are equal if their surroundings are equal up to this distance.
_DISTANCE = 4
# Single values of what the best plan recomputes are saved at most this often.
_ROUNDS = 3
# Without a time limit, a search predicts so many steps, and if they are small, as many as have so many values together.
# At 15 of the 83 limits of `experiments.bench.users_table`, an earlier search, with 50 to 200 predictions, had found a
# step that was faster by more than 0.5% of PyTorch's default.
_PREDICTIONS, _VALUES = 40, 50_000
# A plan is not predicted if its peak is above the limit even if the ratio of predicted and simulated peaks is this part
# of the smallest ratio so far.
_LOWER = 0.9
# A one-liner is not predicted if, by an estimate, it is slower by this part of a step than the best plan.
_SLACK = 0.03


class StepPlans:
    """Holds plans of one graph that records its calls, each with the peak of its compiled step.

    Args:
        plans: the plans by simulation.
        predictor: predicts the step times that rank the plans; None ranks the plans by cost.
        peak: predicts the peak of the plan that saves the values of a mask; None predicts the step of the graph alone,
            with as many calls in flight as `plans` counts.
        exchanged: which results and tangents other graphs take over; with a predictor, that of the predictor counts.
    """

    def __init__(
        self,
        plans: PeakPlans,
        predictor: StepPredictor | None = None,
        peak: Callable[[BoolArray], int] | None = None,
        exchanged: Exchanged = ALONE,
    ) -> None:
        self._plans, self._graph, self._problem = plans, plans.graph, plans.problem
        self._step = StepMemory(plans.graph, exchanged=exchanged) if predictor is None else predictor
        self._peak = peak or partial(plans.peak_by, self._step)
        self._ranking = (
            ByCost(plans.graph, plans.problem) if predictor is None else ByStepTime(plans.problem, predictor)
        )
        others = self._ranking.priced_problems[1:]
        self._at_prices = [plans, *(plans.at_prices_of(one) for one in others)]
        self._predicted: dict[bytes, PeakPlan] = {}
        self._searched: set[int] = set()

    @cached_property
    def cheapest(self) -> PeakPlan:
        """Returns the plan of least cost, that of `PeakPlans.cheapest`."""
        return self._plan(self._plans.cheapest.choice, "least cost")

    @cached_property
    def default_peak_bytes(self) -> int:
        """Returns the peak of PyTorch's default plan, or that of the cheapest plan if there is none."""
        saved = default_saved(self._graph)
        return self.cheapest.peak_bytes if saved is None else self._peak(saved)

    @cached_property
    def default(self) -> PeakPlan:
        """Returns a legal plan that saves what PyTorch's default saves, or the cheapest plan if there is none."""
        choice = default_choice(self._graph, self._problem)
        return self.cheapest if choice is None else self._plan(choice, "PyTorch's default")

    @cached_property
    def smallest(self) -> PeakPlan:
        """Returns the best plan with the smallest peak found; it is not proven that no plan has a smaller one."""
        # Other plans are put aside: what a search finds depends on the plans before it, and this one must not.
        others, self._predicted = self._predicted, {self.cheapest.choice.key: self.cheapest}
        with suppress(OutOfTime):
            self._try_low_plans()
        before = math.inf
        while self._least_bytes < (1 - _NEAR) * before:
            before = self._least_bytes
            self._lower_peaks()
        self._predicted |= others
        smallest = self._best(int((1 + _TIE) * self._least_bytes))
        assert smallest is not None  # at least the plan with that peak
        return smallest

    @property
    def smallest_of_one_round(self) -> PeakPlan:
        """Returns the plan with the lowest peak after one round of the search for `smallest`, which makes several."""
        _ = self.cheapest
        with suppress(OutOfTime):
            self._try_low_plans()
        self._lower_peaks()
        return min(self._predicted.values(), key=_peak)

    def _try_low_plans(self) -> None:
        self._plan(self.default.choice, "PyTorch's default")  # other plans are mixed with it, which lowers peaks
        lowest = self._plan(self._plans.lowest.choice, "least simulated peak")
        for choice in self._one_liners_near(lowest.peak_bytes):
            self._plan(choice, "one-liner")

    def _lower_peaks(self) -> None:
        with suppress(OutOfTime), self._effort():
            self._search(self._least_bytes)
        with suppress(OutOfTime), self._effort():
            for start in self._apart():
                lowered(start, self._plans, self._plan, self._timeline, self._classes)

    @property
    def _least_bytes(self) -> int:
        return min(map(_peak, self._predicted.values()))

    def _apart(self) -> list[PeakPlan]:
        """Returns a few plans of the lowest peaks, of plans with nearly the same peak only the best one."""
        starts, least_bytes = list[PeakPlan](), 0
        for plan in sorted(self._predicted.values(), key=_peak):
            if not starts or plan.peak_bytes > (1 + _NEAR) * least_bytes:
                starts, least_bytes = [*starts, plan], plan.peak_bytes
            elif self.rank(plan) < self.rank(starts[-1]):
                starts[-1] = plan
        return starts[:_DESCENTS]

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the best plan found with a peak of at most `limit_bytes`; None if there is none."""
        if limit_bytes not in self._searched:
            self._searched.add(limit_bytes)
            _ = self.cheapest
            with suppress(OutOfTime), self._effort():
                self._search(limit_bytes)
            if self._best(limit_bytes) is None:
                self._find_any(limit_bytes)
            # From a plan that the search for the smallest peak has found, faster ones within the limit are reached.
            if self._best(limit_bytes) is None and self.smallest.peak_bytes <= limit_bytes:
                with suppress(OutOfTime), self._effort():
                    self._search(limit_bytes)
        return self._best(limit_bytes)

    def _effort(self) -> AbstractContextManager[None]:
        return predicting_at_most(max(_VALUES, _PREDICTIONS * len(self._graph)))

    def _find_any(self, limit_bytes: int) -> None:
        """Predicts one-liners until one keeps the limit, though the search is over: by ascending simulated peaks."""
        for choice in sorted(self._one_liners_near(limit_bytes), key=self._plans.simulated_peak):
            if self._predict(choice, "one-liner, after the search").peak_bytes <= limit_bytes:
                break

    def next_within(self, limit_bytes: int, tighter_bytes: int, tried: Sequence[PeakPlan]) -> PeakPlan | None:
        """Returns the best one of the plan within a tighter limit and the untried one-liners within the limit."""
        tighter, one_liners = self.within(tighter_bytes), {choice.key for choice in self._ranking.one_liners}
        within = [plan for key, plan in self._predicted.items() if key in one_liners and plan.peak_bytes <= limit_bytes]
        untried = [plan for plan in within if not any(plan is other for other in tried)]
        may_keep = [*untried, *([] if tighter is None else [tighter])]
        return min(may_keep, key=self.rank, default=None)

    @property
    def predicted(self) -> list[PeakPlan]:
        """Returns all plans that were predicted."""
        return [*self._predicted.values()]

    def rank(self, plan: PeakPlan) -> float:
        """Returns the rank of a plan: the time of its step in nanoseconds, or its cost; less is better."""
        return self._ranking.of(plan.choice)

    def _best(self, limit_bytes: int) -> PeakPlan | None:
        within = (plan for plan in self._predicted.values() if plan.peak_bytes <= limit_bytes)
        return min(within, key=lambda plan: (self.rank(plan), plan.peak_bytes), default=None)

    def _search(self, limit_bytes: int) -> None:
        plans = self._at_prices[-1]
        if self._approach(plans, limit_bytes) >= 1 - _NEAR and len(self._at_prices) == 1:
            self._try_one_liners(limit_bytes)  # the plan is cheap at the very prices that rank it
            return
        self._cut_at_prices(plans, limit_bytes)
        search = LimitedSearch(limit_bytes, plans, self._plan, self._ranking, self._timeline, self._classes)
        exchanges = Exchanges(search)
        Repairs(search).make(self._predicted.values())
        self._try_one_liners(limit_bytes)
        self._improve_best(search, exchanges)
        if len(self._at_prices) == 1:
            return  # a budget that is not used up makes no plan cheaper
        before = self._best(limit_bytes)
        for plans in self._at_prices[:-1]:
            self._approach(plans, limit_bytes)
        for plans in self._at_prices:
            self._approach(plans, int(_LESS * limit_bytes))
        if self._best(limit_bytes) is not before:
            self._improve_best(search, exchanges)

    def _improve_best(self, search: LimitedSearch, exchanges: Exchanges) -> None:
        limit_bytes = search.limit_bytes
        for tried in range(_TRIES):
            best = self._best(limit_bytes)
            if best is None or self._is_fast(best):
                break
            self._improve(best, search, exchanges, first=not tried)
            now = self._best(limit_bytes) or best
            if self.rank(now) >= (1 - PAYS) * self.rank(best):
                break

    def _cut_at_prices(self, plans: PeakPlans, limit_bytes: int) -> None:
        """Prices memory at each moment by what is alive then in the step with the lowest peak, and tries minimum cuts.

        A higher price lowers the peak, until so much is recomputed at once that the peak rises again. So the price goes
        up if the peak is above the limit, and down if it is within the limit or rises: by bisection of its logarithm.
        """
        best = self._best(limit_bytes)
        if best is not None and self._is_fast(best):
            return
        average = int(plans.problem.recompute_cost.sum()) / max(int(plans.problem.save_bytes.sum()), 1)
        (low, high), at = _FACTORS, math.inf
        lowest = min(self._predicted.values(), key=_peak)
        for _ in range(_CUTS):
            factor = math.sqrt(low * high)
            moments = plans.moments(lowest.choice, self._timeline(lowest.choice))
            plan = self._plan(plans.cut_at_prices(moments, average * factor, _FOCUS), "cut at prices")
            rises = factor > at and plan.peak_bytes > lowest.peak_bytes
            low, high = (low, factor) if rises or plan.peak_bytes <= limit_bytes else (factor, high)
            if plan.peak_bytes < lowest.peak_bytes:
                lowest, at = plan, factor

    def _is_fast(self, best: PeakPlan) -> bool:
        """Says whether a plan is nearly as fast as PyTorch's default plan and all plans so far, whatever their peaks.

        If plans are ranked by cost, the answer is False, because a cost is only a part of a step.
        """
        if len(self._at_prices) == 1:
            return False
        fastest = min(self.rank(plan) for plan in (self.default, *self._predicted.values()))
        return self.rank(best) <= (1 + _ENOUGH) * fastest

    def _improve(self, best: PeakPlan, search: LimitedSearch, exchanges: Exchanges, *, first: bool) -> None:
        best, mixtures = self._save_values(best, search), Mixtures(search)
        if first:
            best = exchanges.with_small_values(best)
        best = self._save_values(exchanges.improved(best), search)
        mixtures.make(best, self._predicted.values())
        mixtures.make(min(self._predicted.values(), key=_peak), self._predicted.values())

    def _approach(self, plans: PeakPlans, limit_bytes: int) -> float:
        """Tries budgets of saved bytes, and returns the fraction of the limit that the last plan within it uses.

        The budget of a plan above the limit is lowered by its excess, of which each call in flight has a part. Between
        a plan above and one within, peaks are taken to lie on a straight line. Without a plan within the limit the
        fraction is 0. If plans are ranked by cost, it is also 0 for a budget far below the first guess: at half of the
        peak of a GPT-2, such a plan used the whole limit and cost twice as much as the best one.
        """
        above = self._plan(plans.cheapest.choice, "least cost")
        if above.peak_bytes <= limit_bytes:
            return 1  # nothing is cheaper
        most, least, fitting = above.choice.saved_bytes(self._problem), 0, None
        budget = guess = most - (above.peak_bytes - limit_bytes) // plans.in_flight
        for _ in range(_BUDGETS):
            budget = max(budget, plans.least_saved_bytes)
            if (choice := plans.within_saved_bytes(budget)) is None:
                break
            plan = self._plan(choice, "saved bytes")
            if plan.peak_bytes > limit_bytes:
                if budget == plans.least_saved_bytes or plan.peak_bytes > above.peak_bytes:
                    break  # what is recomputed makes the peak
                most, above = budget, plan
            else:
                least, fitting = budget, plan
                if plan.peak_bytes >= (1 - _NEAR) * limit_bytes:
                    break
            if fitting is None:
                budget = most - (above.peak_bytes - limit_bytes) // plans.in_flight
            else:
                part = (limit_bytes - fitting.peak_bytes) / (above.peak_bytes - fitting.peak_bytes)
                budget = least + int((most - least) * min(max(part, _APART), 1 - _APART))
        is_far = len(self._at_prices) == 1 and least < _LESS * guess
        return 0 if fitting is None or is_far else fitting.peak_bytes / max(limit_bytes, 1)

    def _timeline(self, choice: Choice) -> Timeline:
        return self._step.timeline(self._graph.for_all_values(choice.saved))

    def _try_one_liners(self, limit_bytes: int) -> None:
        """Predicts one-liners that may be better, whatever effort is left; first those that seem to keep the limit.

        By its prices, one is compared with the dearest one so far that costs less, or with PyTorch's default plan.
        """
        parts = [plan.peak_bytes / max(self._plans.simulated_peak(plan.choice), 1) for plan in self._predicted.values()]
        problem, near = self._at_prices[-1].problem, list[tuple[bool, int, Choice]]()
        for choice in self._one_liners_near(limit_bytes):
            simulated = self._plans.simulated_peak(choice)
            if _LOWER * min(parts) * simulated <= limit_bytes:
                near.append((median(parts) * simulated > limit_bytes, choice.cost(problem), choice))
        ranks = {self.default.choice.cost(problem): self.rank(self.default)}
        for _, cost, choice in sorted(near, key=lambda one: one[:2]):
            best, other = self._best(limit_bytes), max((one for one in ranks if one <= cost), default=min(ranks))
            if best is None or ranks[other] + cost - other <= (1 + _SLACK) * self.rank(best):
                go_on()
                ranks[cost] = self.rank(self._predict(choice, "one-liner"))

    def _one_liners_near(self, limit_bytes: int) -> Iterator[Choice]:
        return (choice for choice in self._ranking.one_liners if self._saved_bytes(choice) <= limit_bytes)

    # All that is saved is alive between the two passes, so the peak is at least this.
    def _saved_bytes(self, choice: Choice) -> int:
        return distinct_bytes(self._graph, self._graph.for_all_values(choice.saved))

    @cached_property
    def _classes(self) -> IntArray:
        return equivalence_classes(self._graph, _DISTANCE)[self._graph.plannable]

    def _save_values(self, best: PeakPlan, search: LimitedSearch) -> PeakPlan:
        """Saves single values while the simulated peak fits: the simulation knows what is freed before it.

        If the predicted peak does not fit, others are recomputed.
        """
        for _ in range(_ROUNDS):
            more = self._plans.saving_more(best.choice, search.limit_bytes / max(best.peak_bytes, 1))
            if more is None:
                break
            before, plan = best, self._plan(more, "single values")
            added = np.flatnonzero(more.saved & ~best.choice.saved)
            best = plan if search.is_better(plan, best) else Repairs(search).repair(plan, best, added)
            if best is before:
                break
        return best

    def _plan(self, choice: Choice, source: str) -> PeakPlan:
        if choice.key not in self._predicted and self._predicted:  # the first plan is there however long it takes
            count_prediction(len(self._graph))
        return self._predict(choice, source)

    def _predict(self, choice: Choice, source: str) -> PeakPlan:
        if choice.key not in self._predicted:
            peak_bytes = self._peak(self._graph.for_all_values(choice.saved))
            self._predicted[choice.key] = self._plans.record(choice, peak_bytes)
            if _LOGGER.isEnabledFor(logging.DEBUG):
                _LOGGER.debug("%s: peak %d bytes, rank %.6g", source, peak_bytes, self._ranking.of(choice))
        return self._predicted[choice.key]


def _peak(plan: PeakPlan) -> int:
    return plan.peak_bytes
