"""A price on memory: what a plan costs and what it saves, weighed into one integer.

With a byte budget the problem contains a knapsack. With a price on memory instead it is a minimum
cut again, and the cut bounds every budget (Lagrangian duality): if no plan has a smaller
`cost * C + byte * B` than F, then a plan that saves B <= budget bytes costs C >= (F - byte * budget) / cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from remat.errors import InvalidOption
from remat.facts.columns import is_whole

_COARSER_BITS = (48, 40, 32, 24, 16, 8, 4, 2, 1)


@dataclass(frozen=True)
class Multipliers:
    """How much one unit of cost and one saved byte count. `Multipliers()` ignores the bytes.

    Attributes:
        cost, byte: non-negative integers, not both 0.

    Raises:
        InvalidOption: they are something else.
    """

    cost: int = 1
    byte: int = 0

    def __post_init__(self) -> None:
        # Integers of numpy wrap: a bound that comes of them may prove what is not so. Checked are the plain ones.
        plain = [int(one) if is_whole(one) else -1 for one in (self.cost, self.byte)]
        if min(plain) < 0 or max(plain) == 0:
            raise InvalidOption(f"Multipliers must be whole numbers, non-negative and not both 0, got {self!r}")
        for label, one in zip(("cost", "byte"), plain, strict=True):
            object.__setattr__(self, label, one)

    @classmethod
    def equalizing(cls, fewer_bytes: tuple[int, int], more_bytes: tuple[int, int]) -> Multipliers:
        """The weights under which two points (bytes, cost) of a trade-off weigh the same."""
        byte, cost = fewer_bytes[1] - more_bytes[1], more_bytes[0] - fewer_bytes[0]
        common = math.gcd(byte, cost)
        return cls(cost // common, byte // common)

    def __str__(self) -> str:
        return f"{self.byte}/{self.cost} per byte" if self.cost else "bytes only"

    def weigh(self, saved_bytes: int, cost: int) -> int:
        """One integer for a point (bytes, cost)."""
        return self.cost * cost + self.byte * saved_bytes

    def bound(self, least: int, budget_bytes: int | None) -> int | None:
        """What any plan within the budget costs at least, if none weighs less than `least`.

        None if no plan fits the budget, which weights without cost can tell.
        """
        paid = self.byte * (budget_bytes or 0)
        if self.cost == 0:
            return 0 if least <= paid else None
        return max(-((paid - least) // self.cost), 0)

    def coarser(self, bits: int) -> Multipliers:
        """About the same ratio in numbers of at most `bits` bits, never 0 where it was not."""
        if not self.cost or not self.byte or max(self.cost, self.byte) < 2**bits:
            return self
        ratio = Fraction(min(self.byte, self.cost), max(self.byte, self.cost))
        near = ratio.limit_denominator(2**bits - 1) or Fraction(1, 2**bits - 1)
        small, large = near.numerator, near.denominator
        return Multipliers(small, large) if self.cost < self.byte else Multipliers(large, small)

    def ever_coarser(self) -> Iterator[Multipliers]:
        """These, then about the same ratio in ever fewer bits; in the end bytes are free."""
        last = self
        yield last
        if self.cost and self.byte:
            for bits in _COARSER_BITS:
                if (coarser := self.coarser(bits)) != last:
                    yield (last := coarser)
            yield BY_COST


BY_COST = Multipliers()
"""Bytes are free."""

BY_BYTES = Multipliers(cost=0, byte=1)
"""Only bytes count."""
