"""Reads budgets of saved bytes as users give them: numbers, sizes such as "8GB", or so many of them."""

from __future__ import annotations

from remat.errors import InvalidOption
from remat.facts.columns import is_whole
from remat.words import parse_bytes


def read_budget(budget: int | str) -> int:
    """Reads one budget, in bytes or as a size such as "8GB".

    Raises:
        InvalidOption: it is neither, or negative.
    """
    if isinstance(budget, str):
        return parse_bytes(budget, "budget")
    if not is_whole(budget) or budget < 0:
        raise InvalidOption(f'a budget must be a non-negative number of bytes or a size such as "8GB", got {budget!r}')
    return int(budget)


def evenly_spaced(least: int, most: int, count: int) -> list[int]:
    """Lists `count` whole numbers from `least` to `most`, with both ends if there are two or more.

    Each is rounded down, exactly: bytes may be past the 2**53 up to which floats are exact.

    >>> evenly_spaced(0, 10, 5), evenly_spaced(2**60 + 1, 2**60 + 1, 2)[0] == 2**60 + 1
    ([0, 2, 5, 7, 10], True)
    """
    return [least + (most - least) * i // max(count - 1, 1) for i in range(count)]
