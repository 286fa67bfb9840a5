"""The third choice: a saved value waits in the memory of the host, and takes none of the device's."""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import InvalidProblem
from remat.facts.bans import Bans
from remat.facts.columns import FrozenColumns, IntArray, int_column, some


@dataclass(frozen=True, eq=False)
class Offload(FrozenColumns):
    """What it costs to offload each of n values, and what cannot be. Only what is saved can be offloaded.

    Attributes:
        cost: (n,) non-negative integer prices of the two copies, to the host and back, in the unit of the
            problem's other prices. An offloaded value costs this in the place of `Problem.save_cost`.
        banned: what cannot be offloaded, with reasons.

    Raises:
        InvalidProblem: a price is negative or not an integer, or the lengths differ.
    """

    cost: IntArray
    banned: Bans

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", int_column("Offload.cost", self.cost, None, InvalidProblem))
        if type(self.banned) is not Bans or len(self.banned) != len(self.cost):
            raise InvalidProblem(f"Offload.banned must be remat.Bans of {len(self.cost)} values, got {self.banned!r}")
        if some(self.cost < 0):
            raise InvalidProblem(f"Offload.cost must not be negative, got {int(self.cost.min())}")

    def __len__(self) -> int:
        return len(self.cost)
