"""Combines the cost of a plan and its saved bytes in one integer, with Lagrange multipliers.

With a byte budget, the problem contains a knapsack. With a multiplier on bytes instead, it is a minimum cut again, and
the cut is a bound for every budget (Lagrangian duality): if no plan has a smaller `cost * C + byte * B` than F, then a
plan that saves B <= budget bytes costs C >= (F - byte * budget) / cost.
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
    """Holds the weights of one unit of cost and of one saved byte. With `Multipliers()`, bytes are free.

    Attributes:
        cost, byte: non-negative integers, not both 0.

    Raises:
        InvalidOption: one of them is no such integer, or both are 0.
    """

    cost: int = 1
    byte: int = 0

    def __post_init__(self) -> None:
        # NumPy's integers overflow silently, and a bound that is computed with them may be false.
        numbers = [int(number) if is_whole(number) else -1 for number in (self.cost, self.byte)]
        if min(numbers) < 0 or max(numbers) == 0:
            raise InvalidOption(f"Multipliers must be whole numbers, non-negative and not both 0, got {self!r}")
        for label, number in zip(("cost", "byte"), numbers, strict=True):
            object.__setattr__(self, label, number)

    @classmethod
    def equalizing(cls, fewer_bytes: tuple[int, int], more_bytes: tuple[int, int]) -> Multipliers:
        """Returns the multipliers under which two points (bytes, cost) of a trade-off weigh the same."""
        byte, cost = fewer_bytes[1] - more_bytes[1], more_bytes[0] - fewer_bytes[0]
        common = math.gcd(byte, cost)
        return cls(cost // common, byte // common)

    def __str__(self) -> str:
        return f"{self.byte}/{self.cost} per byte" if self.cost else "bytes only"

    def weigh(self, saved_bytes: int, cost: int) -> int:
        """Returns the weight of a plan, one integer, from its saved bytes and its cost."""
        return self.cost * cost + self.byte * saved_bytes

    def bound(self, least: int, budget_bytes: int | None) -> int | None:
        """Returns a lower bound on the cost of any plan within the budget, if no plan weighs less than `least`.

        None means that no plan fits the budget; only a `cost` of 0 can show that.
        """
        paid = self.byte * (budget_bytes or 0)
        if self.cost == 0:
            return 0 if least <= paid else None
        return max(-((paid - least) // self.cost), 0)

    def coarser(self, bits: int) -> Multipliers:
        """Returns about the same ratio in numbers of at most `bits` bits; no number becomes 0."""
        if not self.cost or not self.byte or max(self.cost, self.byte) < 2**bits:
            return self
        ratio = Fraction(min(self.byte, self.cost), max(self.byte, self.cost))
        near = ratio.limit_denominator(2**bits - 1) or Fraction(1, 2**bits - 1)
        small, large = near.numerator, near.denominator
        return Multipliers(small, large) if self.cost < self.byte else Multipliers(large, small)

    def ever_coarser(self) -> Iterator[Multipliers]:
        """Yields these multipliers, then about the same ratio in ever fewer bits, and finally `BY_COST`."""
        last = self
        yield last
        if self.cost and self.byte:
            for bits in _COARSER_BITS:
                if (coarser := self.coarser(bits)) != last:
                    yield (last := coarser)
            yield BY_COST


BY_COST = Multipliers()
"""The multipliers with which bytes are free."""

BY_BYTES = Multipliers(cost=0, byte=1)
"""The multipliers with which only bytes count."""
