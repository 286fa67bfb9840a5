"""Holds changes of a plan with their effects, and says which changes make room for another one within a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.improve.time_prices import AboveLimit

# An effect is large if it is more than this part of that of an exchange; others are not predicted one by one.
_LARGE = 0.1


@dataclass(frozen=True, eq=False)
class Change:
    """Holds a change of a plan, and its effects.

    Attributes:
        values: (m,) positions of the values that change, in the order of the forward pass.
        saves: whether they are saved from then on; if not, they are recomputed.
        ns: the step time after the change, minus the one before; in the unit of the rank, if plans are ranked by cost.
            An estimate is that of one value, times the number of values.
        bytes_factor: the bytes that the change adds or frees, divided by the bytes that are estimated from the live
            ranges of its values; 1 if nothing was predicted.
        is_predicted: whether both effects were predicted for all values together; if not, they are estimates.
    """

    values: IntArray
    saves: bool
    ns: float
    bytes_factor: float = 1
    is_predicted: bool = False

    def first(self, count: int) -> Change:
        """Returns the change of so many values: the last ones if it saves them, the first ones if it recomputes them.

        What is saved late in the forward pass is read, and freed, first in the backward pass.
        """
        at = np.arange(len(self.values))
        return self.where(at >= len(at) - count if self.saves else at < count)

    def freeing(self, above: AboveLimit, excess_bytes: IntArray) -> tuple[Change, IntArray]:
        """Returns the change of as few values as free as much of an excess (m,) as all do, and what they free (m,)."""
        bytes_of = np.cumsum(above.waiting_bytes[self.values], axis=0)
        freed_bytes: IntArray = (self.bytes_factor * bytes_of).astype(np.int64)
        useful: IntArray = np.sum(np.minimum(freed_bytes, excess_bytes), axis=1)
        last = int(np.argmax(useful))  # the first one of the largest
        return self.first(last + 1), freed_bytes[last]

    def left(self, choice: Choice) -> Change:
        """Returns the part of the change that a plan has not made yet."""
        return self.where((choice.recomputed if self.saves else choice.saved)[self.values])

    def where(self, mask: BoolArray) -> Change:
        """Returns the change of some of the values, a mask (m,), with their part of the step time."""
        return replace(self, values=self.values[mask], ns=float(mask.mean()) * self.ns)


@dataclass(frozen=True, eq=False)
class Payment:
    """Holds a change that makes room for another one."""

    payer: Change
    part: Change  # the part of the payer that is needed
    useful_bytes: int  # what it frees of the bytes above the limit, summed over all moments


@dataclass(frozen=True, eq=False)
class Offer:
    """Holds a change, and others that make room for it."""

    change: Change
    part: Change  # the part of the change for which there is room
    paid: list[Payment]

    @property
    def ns(self) -> float:
        return self.part.ns + sum(payment.part.ns for payment in self.paid)

    @property
    def largest_estimate(self) -> Change | None:
        """Returns the change with the largest effect of those that were not predicted; None if no effect is large.

        An effect is large if it is a large part of what the exchange gains, or of what makes room.
        """
        ns, useful_bytes = max(abs(self.part.ns), 1e-9), max(sum(one.useful_bytes for one in self.paid), 1)
        sizes = [(1.0, self.change)]
        sizes += [(max(abs(one.part.ns) / ns, one.useful_bytes / useful_bytes), one.payer) for one in self.paid]
        estimates = [(size, one) for size, one in sizes if size > _LARGE and not one.is_predicted]
        return max(estimates, key=lambda estimate: estimate[0], default=(0, None))[1]


def paid_by(above: AboveLimit, worth: float, payers: Sequence[Change]) -> tuple[list[Payment], IntArray]:
    """Chooses changes that free what is above a limit, until a byte of them costs too much.

    Each time, the change is taken that costs least per byte that is still needed, at all moments together. So a large
    value does not count as cheap where a few bytes are needed.

    Args:
        worth: the most that a byte may cost, in the unit of `Change.ns`.

    Returns:
        the changes, each with the part of it that is needed; and (m,) the bytes that are still above the limit.
    """
    left, paid, excess = [payer for payer in payers if not payer.saves], list[Payment](), above.excess_bytes
    while left and excess.any():
        parts = [payer.freeing(above, excess) for payer in left]
        useful = [int(np.minimum(freed_bytes, excess).sum()) for _, freed_bytes in parts]
        prices = [part.ns / some if some else math.inf for (part, _), some in zip(parts, useful, strict=True)]
        at = prices.index(min(prices))
        if prices[at] >= worth:
            break
        part, freed_bytes = parts[at]
        excess = np.maximum(excess - freed_bytes, 0)
        paid.append(Payment(left.pop(at), part, useful[at]))
    return paid, excess
