"""Makes plans keep a limit of the peak: of what they save, they recompute more.

All equal layers change at the same price of memory, so minimum cuts lead to few plans, and one that exceeds the limit a
little can be worth more than the next one that keeps it. Values that are saved and not yet read could be absent at the
moments at which too much is alive. Those are recomputed that cost least per byte by which they lower what is above the
limit, at all these moments together: a greedy cover. What is recomputed takes memory later, and kernels change. So the
result is predicted, and repaired again if it still exceeds the limit.

Of several plans above the limit, the one is repaired first that is the fastest after what its repair costs. What is
above the limit is that of one call alone. So few plans are repaired if a limit is for several calls or graphs together.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import IntArray
from remat.improve.equivalence_classes import by_class
from remat.improve.limited_search import PAYS, LimitedSearch
from remat.improve.peak_plans import PeakPlan

# At most this many moments above the limit are looked at, and this many classes of values, the largest ones.
_MOMENTS, _CLASSES = 64, 48
# This many plans above the limit wait for a repair, those with the lowest peaks; and so many repairs are made.
_WAITING, _REPAIRS = 4, 8
_NONE = np.array([], np.int64)


class Repairs:
    """Repairs plans above one limit of the peak."""

    def __init__(self, search: LimitedSearch) -> None:
        self._plans, self._plan, self._timeline = search.plans, search.plan, search.timeline
        self._rank, self._classes, self._limit_bytes = search.ranking.of, search.classes, search.limit_bytes
        self._is_better = search.is_better
        self._offers: dict[tuple[bytes, bytes], tuple[float, Choice] | None] = {}

    def make(self, predicted: Collection[PeakPlan]) -> None:
        """Makes the most promising repairs.

        Args:
            predicted: all plans that were predicted, a view: the plans that are made here are added to it.
        """
        for _ in range(_REPAIRS):
            within = (self._rank(plan.choice) for plan in predicted if plan.peak_bytes <= self._limit_bytes)
            best, done = min(within, default=math.inf), {plan.choice.key for plan in predicted}
            offers = [self._offer(plan) for plan in self._waiting(predicted)]
            useful = [offer for offer in offers if offer and offer[0] < best and offer[1].key not in done]
            if not useful:
                break
            _, choice = min(useful, key=lambda offer: offer[0])
            self._plan(choice, "repair")

    def repair(self, plan: PeakPlan, best: PeakPlan, pinned: IntArray) -> PeakPlan:
        """Repairs a plan once; returns the best plan so far if that is not better.

        By its price, a small value is the first to be recomputed; but that can read a whole activation.

        Args:
            pinned: positions of values that stay saved.
        """
        offer = self._offer(plan, pinned)
        if offer is None or offer[0] >= self._rank(best.choice):
            return best
        repaired = self._plan(offer[1], "repair")
        return repaired if self._is_better(repaired, best) else best

    def _waiting(self, predicted: Collection[PeakPlan]) -> list[PeakPlan]:
        above = [plan for plan in predicted if plan.peak_bytes > self._limit_bytes]
        waiting, least = list[PeakPlan](), math.inf
        for plan in sorted(above, key=lambda one: (one.peak_bytes, self._rank(one.choice))):
            if self._rank(plan.choice) < (1 - PAYS) * least:  # otherwise its larger peak does not pay
                waiting, least = [*waiting, plan], self._rank(plan.choice)
        return waiting[:_WAITING]

    def _offer(self, plan: PeakPlan, pinned: IntArray = _NONE) -> tuple[float, Choice] | None:
        """Returns a repaired choice after an estimate of its rank; None if no repair is found."""
        before, problem, key = plan.choice, self._plans.problem, (plan.choice.key, pinned.tobytes())
        if key not in self._offers:
            after = self._repaired(before, pinned)
            more = 0 if after is None else after.cost(problem) - before.cost(problem)
            self._offers[key] = None if after is None else (self._rank(before) + more, after)
        return self._offers[key]

    def _repaired(self, choice: Choice, pinned: IntArray) -> Choice | None:
        moments = self._plans.moments(choice, self._timeline(choice))
        above = self._plans.above_limit(moments, self._limit_bytes, _MOMENTS)
        price = self._prices(choice, np.where(choice.saved[:, None], above.waiting_bytes, 0).max(1, initial=0))
        price[pinned] = np.inf
        dropped, excess = list[int](), above.excess_bytes
        while excess.any():
            worth = np.minimum(above.waiting_bytes, excess).sum(1) / price
            best = int(worth.argmax())
            if not worth[best]:
                return None
            dropped.append(best)
            price[best] = np.inf
            excess = np.maximum(excess - above.waiting_bytes[best], 0)
        after = self._plans.legal.also_recomputing(choice, np.array(dropped, np.int64))
        return None if after.key == choice.key else after

    def _prices(self, choice: Choice, freed_bytes: IntArray) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Returns the prices (k,) of recomputing values that the choice saves.

        A price is infinite if to recompute the value frees nothing, or if the price was not computed: only the classes
        that free most get one.
        """
        problem, legal = self._plans.problem, self._plans.legal
        groups = sorted(
            by_class(np.flatnonzero(freed_bytes), self._classes), key=lambda group: -int(freed_bytes[group].sum())
        )
        cost, saved_bytes, price = choice.cost(problem), choice.saved_bytes(problem), np.full(len(problem), np.inf)
        for group in groups[:_CLASSES]:
            other = legal.also_recomputing(choice, group)
            if other.saved_bytes(problem) < saved_bytes:
                price[group] = max((other.cost(problem) - cost) / len(group), 1)
        return price
