"""Improves a plan by exchanges: it saves more of some values, and in return fewer of others.

For each class of equal values, two changes are possible: the plan saves what it recomputes of the class, or recomputes
what it saves. For one value of each class it is predicted what the change does to the step time
(`remat.improve.joint_effects`); what it does to the peak is estimated from the live ranges and live bytes of the plan
before it. These effects are taken to be proportional to the number of values that change, and to add up. So to make
room for one change, those changes are made that cost least time per byte that is needed, the last one in part: nearly
as in the fractional knapsack of Dantzig (1957), but no value is divided. The exchange is predicted before it is made.
Once an exchange has failed, changes are predicted one by one, for all values of a class, before their exchanges are.

An exchange that exceeds the limit has its peak at another moment than the plan before it. Then it also recomputes
values that are alive at that moment; or it saves only as many values as fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.improve.equivalence_classes import by_class
from remat.improve.limited_search import LimitedSearch
from remat.improve.peak_descent import saved_at_peak
from remat.improve.peak_plans import PeakPlan
from remat.improve.repairs import Repairs

# At most this many classes are saved, and this many recomputed, to predict what that changes.
_CLASSES = 16
# The effect of a class is not predicted if it changes the saved bytes by less than this part of the limit.
_WORTH = 0.001
# Values that take at most this part of the limit are small; this many groups of them are tried.
_SMALL, _GROUPS = 1e-4, 7
# Of the exchanges that are possible for one plan, this many are refused after all their changes were predicted. For one
# that exceeds the limit, more values are recomputed this often.
_TRIES, _PAYMENTS = 8, 2
# The effects of changes are predicted again at most this often, as long as the step gets faster by this part of it.
_REFRESHED, _PAYS = 4, 0.0002
# An exchange is predicted if it is expected to make the step faster by this part of it, and is made if it does.
_GAIN = 1e-4


@dataclass(frozen=True, eq=False)
class Change:
    """Holds a change of a plan, and its effects.

    Attributes:
        values: (m,) positions of the values that change, in the order of the forward pass.
        saves: whether they are saved from then on; if not, they are recomputed.
        ns: the step time after the change, minus the one before; in the unit of the rank, if plans are ranked by cost.
            An estimate is that of one value, times the number of values.
        peak_bytes: the peak after the change, minus the one before.
        is_predicted: whether both effects were predicted for all values together; if not, they are estimates.
    """

    values: IntArray
    saves: bool
    ns: float
    peak_bytes: int
    is_predicted: bool = False

    @property
    def ns_per_byte(self) -> float:
        return self.ns / max(abs(self.peak_bytes), 1)

    def freeing(self, bytes_needed: int) -> Change:
        """Returns the change of the fewest values that free so many bytes; of all values, if they free fewer."""
        count = len(self.values)
        return self.of_count(min(count, -(-bytes_needed * count // -self.peak_bytes)))

    def of_count(self, count: int) -> Change:
        """Returns the change of so many values: the last ones if it saves them, the first ones if it recomputes them.

        What is saved late in the forward pass is read, and freed, first in the backward pass.
        """
        at = np.arange(len(self.values))
        return self.of(at >= len(at) - count if self.saves else at < count)

    def left(self, choice: Choice) -> Change:
        """Returns the part of the change that a plan has not made yet."""
        return self.of((choice.recomputed if self.saves else choice.saved)[self.values])

    def of(self, some: BoolArray) -> Change:
        """Returns the change of some of the values, a mask (m,), with their part of the effects."""
        part = float(some.mean())
        return replace(self, values=self.values[some], ns=part * self.ns, peak_bytes=round(part * self.peak_bytes))


@dataclass(frozen=True, eq=False)
class _Offer:
    change: Change
    part: float  # of the change, for which there is room
    paid: list[tuple[Change, Change]]  # the changes that make room, each with the part of it that is needed

    @property
    def ns(self) -> float:
        return self.part * self.change.ns + sum(part.ns for _, part in self.paid)


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
            if self._rank(best.choice) > (1 - _PAYS) * self._rank(before.choice):
                break
        return best

    def with_small_values(self, best: PeakPlan) -> PeakPlan:
        """Also saves small values, such as the statistics of a normalization.

        All are saved at once. If that makes the step faster but exceeds the limit, the plan is repaired. If the repair
        does not help, each half is tried. On a ResNet-50 whose layers were checkpointed, this lowered the overhead from
        15.5% to 10.8% without a byte at the peak: each statistic that is recomputed reads a whole activation.
        """
        problem = self._plans.problem
        is_small = (
            best.choice.recomputed & ~problem.cannot_save.mask & (problem.save_bytes <= _SMALL * self._limit_bytes)
        )
        small = np.flatnonzero(is_small)
        groups = [small[np.argsort(self._classes[small], kind="stable")]]
        for _ in range(_GROUPS):
            if not groups or not len(values := groups.pop(0)):
                break
            plan = self._plan(self._plans.legal.also_saving(best.choice, values), "small values")
            if self._rank(plan.choice) >= (1 - _PAYS) * self._rank(best.choice):
                continue
            before = best
            best = plan if plan.peak_bytes <= self._limit_bytes else self._repairs.repair(plan, best, values)
            if best is before and len(values) > 1:
                groups += np.array_split(values, 2)
        return best

    def _best_exchange(self, best: PeakPlan, changes: list[Change]) -> PeakPlan | None:
        """Returns the plan after the best exchange; changes lose what is made, and get the effects predicted here."""
        changes[:] = [left for change in changes if len((left := change.left(best.choice)).values)]
        refused = list[Change]()
        while len(refused) < _TRIES:
            offers = [self._offer(best, one, changes) for one in changes if one.ns < 0 and one not in refused]
            offer = min(offers, key=lambda offer: offer.ns, default=None)
            if offer is None or offer.ns >= -_GAIN * self._rank(best.choice):
                return None
            estimated = [one for one in (offer.change, *(payer for payer, _ in offer.paid)) if not one.is_predicted]
            if estimated and not self._trusts_estimates:
                changes[changes.index(estimated[0])] = self._predicted(best, estimated[0])
            elif (better := self._tried(best, offer, changes)) is not None:
                return better
            elif estimated:
                self._trusts_estimates = False
            else:
                refused.append(offer.change)
        return None

    def _predicted(self, best: PeakPlan, change: Change) -> Change:
        plan = self._plan(self._after(best.choice, change), "change")
        ns, peak_bytes = self._rank(plan.choice) - self._rank(best.choice), plan.peak_bytes - best.peak_bytes
        return replace(change, ns=ns, peak_bytes=peak_bytes, is_predicted=True)

    def _offer(self, best: PeakPlan, change: Change, payers: Sequence[Change]) -> _Offer:
        need = best.peak_bytes + change.peak_bytes - self._limit_bytes
        paid = list(_paid(need, -change.ns_per_byte, [p for p in payers if p is not change and p.peak_bytes < 0]))
        missing = need + sum(part.peak_bytes for _, part in paid)
        return _Offer(change, 1 - max(0, missing) / max(change.peak_bytes, 1), paid)

    def _tried(self, best: PeakPlan, offer: _Offer, payers: Sequence[Change]) -> PeakPlan | None:
        count = max(1, math.floor(round(offer.part * len(offer.change.values), 6)))
        choice, paid, first = self._after(best.choice, offer.change.of_count(count)), offer.paid, None
        for _ in range(1 + _PAYMENTS):
            for _, part in paid:
                choice = self._after(choice, part)
            if choice.key == best.choice.key:
                return None
            plan = self._plan(choice, "exchange")
            left_ns = self._rank(best.choice) - self._rank(choice)
            if left_ns <= _GAIN * self._rank(best.choice):
                return None
            if (over := plan.peak_bytes - self._limit_bytes) <= 0:
                return plan
            first = first or plan
            paid = list(_paid(over, left_ns / over, self._payers_at_peak(plan, payers)))
            if sum(part.peak_bytes for _, part in paid) > -over:
                break
        assert first is not None
        part = (self._limit_bytes - best.peak_bytes) / (first.peak_bytes - best.peak_bytes)
        return self._in_part(best, offer, math.floor(part * count))

    def _in_part(self, best: PeakPlan, offer: _Offer, count: int) -> PeakPlan | None:
        """Returns the plan after an exchange for so many values of the class, if that keeps the limit and pays."""
        if not count:
            return None
        choice = self._after(best.choice, offer.change.of_count(count))
        for _, part in offer.paid:
            choice = self._after(choice, part)
        plan = self._plan(choice, "exchange in part")
        pays = self._rank(choice) < (1 - _GAIN) * self._rank(best.choice)
        return plan if plan.peak_bytes <= self._limit_bytes and pays else None

    def _payers_at_peak(self, plan: PeakPlan, payers: Sequence[Change]) -> list[Change]:
        """Returns changes of what a plan saves and has alive at its peak, with the bytes that they free then."""
        bytes_of = saved_at_peak(self._plans.problem, plan.choice, self._timeline(plan.choice))
        useful = [payer for payer in payers if not (payer.saves or (payer.is_predicted and payer.peak_bytes >= 0))]
        drops = (payer.of(bytes_of[payer.values] > 0) for payer in useful)
        return [replace(drop, peak_bytes=-int(bytes_of[drop.values].sum())) for drop in drops if len(drop.values)]

    def _after(self, choice: Choice, change: Change) -> Choice:
        return self._plans.legal.changed(choice, change.values, saves=change.saves)

    def _changes(self, best: PeakPlan) -> list[Change]:
        """Returns what might be exchanged: the most promising classes, with the effects of changing them."""
        chosen = [
            (values, saves, other)
            for saves, of in ((True, best.choice.recomputed), (False, best.choice.saved))
            for values, other in self._most_promising(best.choice, of, saves)
        ]
        changed = [
            [self._plans.legal.changed(best.choice, values[[at]], saves=saves) for at in _places(len(values))]
            for values, saves, _ in chosen
        ]
        effects = self._effects(best.choice, changed)
        line = self._timeline(best.choice)
        peaks = self._plans.peaks_with(best.choice, line, [other.saved & ~best.choice.saved for *_, other in chosen])
        freed = saved_at_peak(self._plans.problem, best.choice, line)
        changes = list[Change]()
        for (values, saves, _), ns, peak_bytes in zip(chosen, effects, peaks, strict=True):
            if saves:
                changes.append(Change(values, saves, len(values) * ns, max(peak_bytes - line.peak_bytes, 0)))
            else:  # two changes: of what is alive at this peak, and of what may be alive at that of another plan
                pays = freed[values] > 0
                parts = values[pays], values[~pays]
                changes += [Change(part, saves, len(part) * ns, -int(freed[part].sum())) for part in parts if len(part)]
        return changes

    def _most_promising(self, choice: Choice, of: BoolArray, saves: bool) -> list[tuple[IntArray, Choice]]:
        """Lists classes, those first whose change costs least, or gains most, per byte, by prices of single values.

        Each is listed with the choice after its change.
        """
        problem, values, classes = self._plans.problem, np.flatnonzero(of), list[tuple[float, IntArray, Choice]]()
        cost, saved_bytes = problem.recompute_cost, choice.saved_bytes(problem)
        before = int(cost[choice.recomputed].sum())
        for members in by_class(values, self._classes):
            other = self._plans.legal.changed(choice, members, saves=saves)
            more, change = other.saved_bytes(problem) - saved_bytes, int(cost[other.recomputed].sum()) - before
            # To recompute a value can free nothing: a GPU that recomputes the mask of a dropout must save its random
            # numbers instead, which take more bytes.
            frees_nothing = more > 0 and not saves
            if abs(more) > _WORTH * self._limit_bytes and not frees_nothing:
                classes.append((change / max(abs(more), 1), members, other))
        return [(members, other) for _, members, other in sorted(classes, key=lambda one: one[0])[:_CLASSES]]


def _places(count: int) -> list[int]:
    # The first and the last of many equal layers have neighbours of other kinds.
    return list(dict.fromkeys((count // 2, count // 4, 3 * count // 4)))


def _paid(need_bytes: int, worth: float, payers: Sequence[Change]) -> Iterator[tuple[Change, Change]]:
    """Yields changes that free memory, each with the part of it that is needed, until a byte of them costs too much.

    Each time, the change is taken that costs least per byte that is still needed. So a large value does not count as
    cheap where a few bytes are needed.
    """
    left = list(payers)
    while left and need_bytes > 0:
        parts = [payer.freeing(need_bytes) for payer in left]
        prices = [part.ns / min(need_bytes, max(1, -part.peak_bytes)) for part in parts]
        if min(prices) >= worth:
            return
        at = prices.index(min(prices))
        need_bytes += parts[at].peak_bytes
        yield left.pop(at), parts[at]
