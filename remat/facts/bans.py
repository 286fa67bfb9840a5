"""Defines bans: which values are forbidden, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from remat.errors import InvalidProblem
from remat.facts.columns import (
    BoolArray,
    FrozenColumns,
    IntArray,
    any_set,
    frozen,
    int_column,
    is_frozen,
    is_whole,
    name_column,
)


def cannot_be(action: Literal["saved", "recomputed", "offloaded"], reason: str) -> str:
    """Returns the text with which all messages say that a value is never saved, recomputed or offloaded, and why."""
    return f"cannot be {action} ({reason})"


@dataclass(frozen=True, eq=False)
class Bans(FrozenColumns):
    """Holds a column of reasons: `codes[i] == 0` allows value i, `k > 0` forbids it for `reasons[k-1]`.

    With numbers instead of texts, a million bans take one numpy operation.
    """

    codes: IntArray
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if is_frozen(self.codes):  # made by the methods below
            return
        object.__setattr__(self, "codes", int_column("Bans.codes", self.codes, None, InvalidProblem))
        object.__setattr__(self, "reasons", name_column("Bans.reasons", self.reasons, InvalidProblem))
        if any_set((self.codes < 0) | (self.codes > len(self.reasons))):
            raise InvalidProblem(f"Bans.codes must be from 0 to {len(self.reasons)}, the number of reasons")

    @classmethod
    def none(cls, length: int) -> Bans:
        """Returns bans that forbid none of `length` values."""
        return cls(frozen(np.zeros(length, np.int64)))

    @classmethod
    def of(cls, length: int, reason_of: Mapping[int, str]) -> Bans:
        """Returns bans over `length` values that forbid the positions in `reason_of`, each for its reason."""
        if not isinstance(reason_of, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidProblem(f"bans must map positions of values to reasons, got {reason_of!r}")
        for index, reason in reason_of.items():
            if not is_whole(index) or not 0 <= index < length or not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidProblem(
                    f"a ban is a position from 0 to {length - 1} and a reason, got {index!r}: {reason!r}"
                )
        reasons = tuple(dict.fromkeys(reason_of.values()))
        code_of = {reason: code for code, reason in enumerate(reasons, start=1)}
        codes = np.zeros(length, np.int64)
        for index, reason in reason_of.items():
            codes[index] = code_of[reason]
        return cls(frozen(codes), reasons)

    @cached_property
    def mask(self) -> BoolArray:
        """Returns a mask (n,) of the forbidden values."""
        return frozen(self.codes > 0)

    def __len__(self) -> int:
        return len(self.codes)

    def reason(self, index: int) -> str | None:
        """Returns why value `index` is forbidden; None if it is allowed."""
        code = int(self.codes[index])
        return self.reasons[code - 1] if code else None

    def by_reason(self, mask: BoolArray) -> Iterator[tuple[str, BoolArray]]:
        """Yields each reason that forbids values of `mask`, with a mask (n,) of these values."""
        for code in sorted(set(self.codes[mask & self.mask].tolist())):
            yield self.reasons[code - 1], mask & (self.codes == code)

    def also(self, mask: BoolArray, reason: str) -> Bans:
        """Returns these bans, and bans of the values of `mask`; a value that is forbidden already keeps its reason."""
        fresh = mask & ~self.mask
        if not any_set(fresh):
            return self
        reasons = self.reasons if reason in self.reasons else (*self.reasons, reason)
        return Bans(frozen(np.where(fresh, reasons.index(reason) + 1, self.codes)), reasons)

    def __or__(self, other: Bans) -> Bans:
        """Returns both sets of bans; a value that both forbid has the reason of `self`."""
        merged = self
        for code, reason in enumerate(other.reasons, start=1):
            merged = merged.also(other.codes == code, reason)
        return merged

    def take(self, indices: IntArray) -> Bans:
        """Returns the bans of the values at k positions, in that order."""
        return Bans(frozen(self.codes[indices]), self.reasons)

    def without(self, mask: BoolArray) -> Bans:
        """Returns these bans, except those of the values of `mask`."""
        return Bans(frozen(np.where(mask, 0, self.codes)), self.reasons) if any_set(mask) else self

    def as_dict(self) -> dict[int, str]:
        """Returns the forbidden positions with their reasons: the inverse of `of`."""
        return {int(i): self.reasons[int(self.codes[i]) - 1] for i in np.flatnonzero(self.codes)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bans) and len(self) == len(other) and self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # arrays inside: equal, but not hashable
