"""Sizes of memory: as people write them, "8GB", "512 MiB", and evenly spaced."""

from __future__ import annotations

import re
from fractions import Fraction

from remat.errors import InvalidOption

_PREFIXES = "kmgtp"
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*([kmgtp]?)(i?)b\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str, label: str = "size") -> int:
    """A number of bytes, rounded down. KB, MB, ... are powers of 1000; KiB, MiB, ... of 1024.

    Args:
        text: a number and a unit.
        label: what to call it in an error message.

    Raises:
        InvalidOption: it is not a size.

    >>> parse_bytes("8GB"), parse_bytes("1.5 KiB"), parse_bytes("100 B")
    (8000000000, 1536, 100)
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise InvalidOption(f'{label} must be a number and a unit, as in "8GB" or "512MiB", got {text!r}')
    number, prefix, binary = match[1], match[2].lower(), match[3]
    power = _PREFIXES.index(prefix) + 1 if prefix else 0
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


def evenly_spaced(least: int, most: int, count: int) -> list[int]:
    """`count` whole numbers from `least` to `most`, both included if there are two or more; rounded down, to the byte.

    >>> evenly_spaced(0, 10, 5), evenly_spaced(2**60 + 1, 2**60 + 1, 2)[0] == 2**60 + 1
    ([0, 2, 5, 7, 10], True)
    """
    return [least + (most - least) * i // max(count - 1, 1) for i in range(count)]
