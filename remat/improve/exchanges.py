"""Improves a plan by exchanges: it saves more of some values, and in return fewer of others.

For each class of equal values, two changes are possible: the plan saves what it recomputes of the class, or recomputes
what it saves. For one value of each class it is predicted what the change does to the step time
(`remat.improve.joint_effects`). What it does to the bytes alive at each moment is estimated from live ranges
(`TimeIndexedPrices.after`). Both effects are taken to be proportional to the number of values that change, and to add
up.

If a change exceeds the limit at some moments, others make room: they recompute what the plan saves. The one is taken
first that costs least time per byte that is still needed, summed over these moments. Of each class, only as many values
change as are needed. If all this does not make enough room, or costs too much, fewer values are saved.

An exchange is predicted before it is made. If it exceeds the limit, more values are recomputed, or fewer are saved.
Once an exchange has failed, each of its changes that has a large effect is predicted, for all values of its class,
before another exchange is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.improve.changes import Change, Offer, Payment, paid_by
from remat.improve.equivalence_classes import by_class
from remat.improve.limited_search import LimitedSearch
from remat.improve.peak_plans import PeakPlan
from remat.improve.repairs import Repairs
from remat.improve.time_prices import Liveness

# At most this many classes are saved, and this many recomputed, to predict what that changes.
_CLASSES = 16
# The effect of a class is not predicted if it changes the saved bytes by less than this part of the limit.
_WORTH = 0.001
# Values that take at most this part of the limit are small; this many groups of them are tried.
_SMALL, _GROUPS = 1e-4, 7
# The search for an exchange ends after this many have failed.
_TRIES = 8
# If an exchange exceeds the limit, more values are recomputed at most this often.
_PAYMENTS = 2
# An exchange that exceeds the limit is tried in part at most this often.
_PARTS = 3
# If there is room for all of a value but this part, it may well fit: estimates are not exact. One prediction changes an
# estimate of bytes at most by this factor.
_NEARLY, _FACTOR = 0.2, 8
# At most about so many moments above the limit are looked at.
_MOMENTS = 16
# The effects of changes are predicted again at most this often, as long as the step gets faster by this part of it.
_REFRESHED, _PAYS = 4, 0.0002
# An exchange is predicted if it is expected to make the step faster by this part of it, and is made if it does.
_GAIN = 1e-4


class Exchanges:
    """Makes exchanges within a limit of the peak."""

    def __init__(self, search: LimitedSearch) -> None:
        self._plans, self._plan, self._timeline = search.plans, search.plan, search.timeline
        self._rank, self._effects = search.ranking.of, search.ranking.effects
        self._classes, self._limit_bytes = search.classes, search.limit_bytes
        self._repairs, self._trusts_estimates = Repairs(search), True
        self._exhausted: set[bytes] = set()  # keys of choices that no exchange makes faster

    def improved(self, best: PeakPlan) -> PeakPlan:
        """Returns the plan, which keeps the limit, after all exchanges that make its step faster."""
        for _ in range(_REFRESHED):
            if best.choice.key in self._exhausted:
                break
            before, changes, self._trusts_estimates = best, self._changes(best), True
            while (better := self._best_exchange(best, changes)) is not None:
                best = better
            if best is before:
                self._exhausted.add(best.choice.key)
            if not self._pays(best.choice, before):
                break
        return best

    def with_small_values(self, best: PeakPlan) -> PeakPlan:
        """Also saves small values, such as the statistics of a normalization.

        All are saved at once. If that makes the step faster but exceeds the limit, the plan is repaired. If the repair
        does not help, each half is tried. On a ResNet-50 whose layers were checkpointed, this lowered the overhead from
        15.5% to 10.8% without a byte at the peak: each statistic that is recomputed reads a whole activation.
        """
        problem = self._plans.problem
        is_small = ~problem.cannot_save.mask & (problem.save_bytes <= _SMALL * self._limit_bytes)
        small = np.flatnonzero(is_small & best.choice.recomputed)
        groups = [small[np.argsort(self._classes[small], kind="stable")]]
        for _ in range(_GROUPS):
            if not groups or not len(values := groups.pop(0)):
                break
            plan, before = self._plan(self._plans.legal.also_saving(best.choice, values), "small values"), best
            if not self._pays(plan.choice, before):
                continue
            pinned = np.flatnonzero(is_small & plan.choice.saved)
            best = plan if plan.peak_bytes <= self._limit_bytes else self._repairs.repair(plan, best, pinned)
            if len(values) > 1 and not self._pays(best.choice, before):
                groups += np.array_split(values, 2)
        return best

    def _pays(self, choice: Choice, before: PeakPlan) -> bool:
        return self._rank(choice) <= (1 - _PAYS) * self._rank(before.choice)

    def _best_exchange(self, best: PeakPlan, changes: list[Change]) -> PeakPlan | None:
        """Returns the plan after the best exchange; changes lose what is made, and get the effects predicted here."""
        changes[:] = [left for change in changes if len((left := change.left(best.choice)).values)]
        before, refused = self._liveness(best.choice), list[Change]()
        while len(refused) < _TRIES:
            useful = (one for one in changes if one.ns < 0 and one not in refused)
            offers = (self._offer(best, before, one, changes) for one in useful)
            offer = min((one for one in offers if len(one.part.values)), key=lambda offer: offer.ns, default=None)
            if offer is None or offer.ns >= -_GAIN * self._rank(best.choice):
                return None
            estimate = offer.largest_estimate
            if estimate is not None and not self._trusts_estimates:
                changes[changes.index(estimate)] = self._predicted(best, before, estimate)
            elif (better := self._tried(best, before, offer, changes)) is not None:
                return better
            elif estimate is not None:
                self._trusts_estimates = False
            else:
                refused.append(offer.change)
        return None

    def _predicted(self, best: PeakPlan, before: Liveness, change: Change) -> Change:
        """Returns a change with the effects of all its values together, as predicted."""
        plan = self._plan(choice := self._after(best.choice, change), "change")
        ns = self._rank(plan.choice) - self._rank(best.choice)
        rise = self._of_one_call(plan.peak_bytes - best.peak_bytes)
        after = self._plans.after(before, best.choice, choice)
        factor, added_bytes = 1.0 if rise <= 0 else 0.0, after.alive_bytes - before.alive_bytes
        if change.saves and (grows := added_bytes > 0).any():
            # So many times the estimate that the peak is the predicted one, or stays what it is.
            room = before.peak_bytes + max(rise, 0) - before.alive_bytes[grows]
            factor = float((room / added_bytes[grows]).min())
            factor = min(max(factor, 1 / _FACTOR), _FACTOR if rise > 0 else 1)
        elif not change.saves and after.peak_bytes < before.peak_bytes:
            factor = min(max(rise / (after.peak_bytes - before.peak_bytes), 0), 1)
        return replace(change, ns=ns, bytes_factor=factor, is_predicted=True)

    def _offer(self, best: PeakPlan, before: Liveness, change: Change, payers: Sequence[Change]) -> Offer:
        """Returns the exchange that saves as many of the values as there is room for, at less than what they gain."""
        after = self._plans.after(before, best.choice, self._after(best.choice, change))
        added_bytes, count = change.bytes_factor * (after.alive_bytes - before.alive_bytes), len(change.values)
        limit_bytes = self._limit_of_one_call(best, before)
        others, paid = [payer for payer in payers if payer is not change], list[Payment]()
        for at_any_price in (True, False, False):  # each time, for as many values as there is room for
            part = count / len(change.values)
            alive_bytes = before.alive_bytes + (part * added_bytes).astype(np.int64)
            above = self._plans.above_limit(replace(before, alive_bytes=alive_bytes), limit_bytes, _MOMENTS)
            most_ns = -part * change.ns / max(int(above.excess_bytes.sum()), 1)
            paid, missing = paid_by(above, math.inf if at_any_price else most_ns, others)
            fits = 1 - float((missing / (part * added_bytes[above.moments])).max(initial=0))
            if (count := math.floor(fits * count + _NEARLY)) < 1:
                break
        return Offer(change, change.first(count), paid)

    def _tried(self, best: PeakPlan, before: Liveness, offer: Offer, payers: Sequence[Change]) -> PeakPlan | None:
        """Returns the plan after an exchange, paid by more changes if it exceeds the limit, or made in part."""
        choice, paid, first = self._after(best.choice, offer.part), offer.paid, None
        for _ in range(1 + _PAYMENTS):
            choice = self._after(choice, *(payment.part for payment in paid))
            if choice.key == best.choice.key:
                break
            plan = self._plan(choice, "exchange")
            left_ns = self._rank(best.choice) - self._rank(choice)
            if left_ns <= _GAIN * self._rank(best.choice):
                break
            if plan.peak_bytes <= self._limit_bytes:
                return plan
            first = first or plan
            moments = self._liveness(choice)
            above = self._plans.above_limit(moments, self._limit_of_one_call(plan, moments), _MOMENTS)
            left = [one for payer in payers if len((one := payer.left(choice)).values)]
            paid, missing = paid_by(above, left_ns / max(int(above.excess_bytes.sum()), 1), left)
            if missing.any():
                break
        return None if first is None else self._in_part(best, before, offer, first.peak_bytes)

    def _in_part(self, best: PeakPlan, before: Liveness, offer: Offer, peak_bytes: int) -> PeakPlan | None:
        """Returns the plan after an exchange for fewer values of the class; None if none keeps the limit and pays.

        The peak is taken to be proportional to the number of values.

        Args:
            peak_bytes: the peak after the exchange, which exceeds the limit.
        """
        paid, count = [payment.part for payment in offer.paid], len(offer.part.values)
        after = self._plans.after(before, best.choice, self._after(best.choice, *paid))
        freed_bytes = (before.peak_bytes - after.peak_bytes) * self._plans.in_flight
        least = best.peak_bytes - freed_bytes  # if no value of the class is saved
        for _ in range(_PARTS):
            count = min(count - 1, (self._limit_bytes - least) * count // max(peak_bytes - least, 1))
            if count < 1:
                break
            plan = self._plan(self._after(best.choice, offer.change.first(count), *paid), "exchange in part")
            if self._rank(plan.choice) >= (1 - _GAIN) * self._rank(best.choice):
                break
            if (peak_bytes := plan.peak_bytes) <= self._limit_bytes:
                return plan
        return None

    # The peak of a plan can count several calls; the bytes alive at each moment, and what values free, are of one.
    def _of_one_call(self, peak_bytes: int) -> int:
        return peak_bytes // self._plans.in_flight

    def _limit_of_one_call(self, plan: PeakPlan, moments: Liveness) -> int:
        return moments.peak_bytes + self._of_one_call(self._limit_bytes - plan.peak_bytes)

    def _liveness(self, choice: Choice) -> Liveness:
        return self._plans.moments(choice, self._timeline(choice))

    def _after(self, choice: Choice, *changes: Change) -> Choice:
        for change in changes:
            choice = self._plans.legal.changed(choice, change.values, saves=change.saves)
        return choice

    def _changes(self, best: PeakPlan) -> list[Change]:
        """Returns what might be exchanged: the most promising classes, with the effects of changing them."""
        chosen = [
            (values, saves)
            for saves, among in ((True, best.choice.recomputed), (False, best.choice.saved))
            for values in self._most_promising(best.choice, among, saves)
        ]
        changed = [
            [self._plans.legal.changed(best.choice, values[[at]], saves=saves) for at in _places(len(values))]
            for values, saves in chosen
        ]
        effects = self._effects(best.choice, changed)
        return [Change(v, saves, len(v) * ns) for (v, saves), ns in zip(chosen, effects, strict=True)]

    def _most_promising(self, choice: Choice, among: BoolArray, saves: bool) -> list[IntArray]:
        """Lists classes, those first whose change costs least, or gains most, per byte, by prices of single values."""
        problem, classes = self._plans.problem, dict[bytes, tuple[float, IntArray]]()
        cost, saved_bytes = problem.recompute_cost, choice.saved_bytes(problem)
        before = int(cost[choice.recomputed].sum())
        for members in by_class(np.flatnonzero(among), self._classes):
            other = self._plans.legal.changed(choice, members, saves=saves)
            more_bytes, more_cost = other.saved_bytes(problem) - saved_bytes, int(cost[other.recomputed].sum()) - before
            # To recompute a value can free nothing: a GPU that recomputes the mask of a dropout must save its random
            # numbers instead, which take more bytes.
            frees_nothing = more_bytes > 0 and not saves
            changing = members[self._changes_something(choice, other)[members]]
            if len(changing) and abs(more_bytes) > _WORTH * self._limit_bytes and not frees_nothing:
                classes.setdefault(other.key, (more_cost / max(abs(more_bytes), 1), changing))
        return [members for _, members in sorted(classes.values(), key=lambda one: one[0])[:_CLASSES]]

    def _changes_something(self, choice: Choice, other: Choice) -> BoolArray:
        """Returns (k,) which values are saved in one choice only.

        A value that cannot be saved counts if a value that is computed from it does.
        """
        problem, differs = self._plans.problem, choice.saved != other.saved
        stands_for_others = np.zeros(len(differs), np.bool_)
        stands_for_others[problem.producers[differs[problem.consumers]]] = True
        return differs | stands_for_others & problem.cannot_save.mask


def _places(count: int) -> list[int]:
    # The first and the last of many equal layers have neighbours of other kinds.
    return list(dict.fromkeys((count // 2, count // 4, 3 * count // 4)))
