"""Parses and formats text for people: sizes such as "8GB", prices with units, suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable
from fractions import Fraction

from remat.errors import InvalidOption

_PREFIXES = "kmgtp"
_USEFUL_GAP = 0.9
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*([kmgtp]?)(i?)b\s*", re.IGNORECASE | re.ASCII)
_SHARE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?|\.\d{1,30})\s*%\s*", re.ASCII)


def parse_bytes(text: str, label: str = "size") -> int:
    """Parses a size in bytes, rounded down. KB, MB, ... are powers of 1000; KiB, MiB, ... of 1024.

    Args:
        text: a number and a unit.
        label: the name of the argument in an error message.

    Raises:
        InvalidOption: the text is not a size.

    >>> parse_bytes("8GB"), parse_bytes("1.5 KiB"), parse_bytes("100 B")
    (8000000000, 1536, 100)
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise InvalidOption(f'{label} must be a number and a unit, as in "8GB" or "512MiB", got {text!r}')
    number, prefix, binary = match[1], match[2].lower(), match[3]
    power = _PREFIXES.index(prefix) + 1 if prefix else 0
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


def parse_share(text: str) -> Fraction | None:
    """Parses a percentage from 0% to 100% as an exact fraction; returns None for other text.

    >>> parse_share("12.5%"), parse_share("8GB")
    (Fraction(1, 8), None)
    """
    match = _SHARE.fullmatch(text)
    share = Fraction(match[1]) / 100 if match else None
    return share if share is not None and share <= 1 else None


def human_bytes(count: int) -> str:
    """Formats a number of bytes in the largest unit in which it is at least one.

    >>> human_bytes(999), human_bytes(1536), human_bytes(-4 * 2**20)
    ('999 B', '1.5 KiB', '-4.0 MiB')
    """
    return _human(count, "B", ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), 1024)


def human_price(price: int, unit: str) -> str:
    """Formats a price in its cost model's unit, or a time in "ns".

    >>> human_price(2048, "bytes"), human_price(1_500_000, "ns"), human_price(699_700_000, "flops")
    ('2.0 KiB', '1.5 ms', '699.7 MFLOP')
    """
    if unit == "bytes":
        return human_bytes(price)
    if unit == "ns":
        return _human(price, "ns", ("µs", "ms", "s"), 1000)
    if unit == "flops":
        return _human(price, "FLOP", ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"), 1000)
    return f"{price:,} {unit}"


def human_seconds(seconds: float) -> str:
    """Formats a measured time.

    >>> human_seconds(0.0023), human_seconds(90)
    ('2.3 ms', '90.0 s')
    """
    return human_price(round(1e9 * seconds), "ns")


def counted(number: int, what: str) -> str:
    """Formats a count with its noun.

    >>> counted(1, "figure"), counted(2000, "figure")
    ('1 figure', '2,000 figures')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _human(count: int, unit: str, larger: tuple[str, ...], step: int) -> str:
    amount: float = count
    for name in larger:
        # An amount that would be rounded up to a whole step has the next unit: 1.0 MiB, not 1024.0 KiB.
        if round(abs(amount), 1) < step:
            break
        amount, unit = amount / step, name
    return f"{amount:.1f} {unit}" if unit in larger else f"{count} {unit}"


def placed(name: str, *facts: str) -> str:
    """Formats the name of a value with facts about it in brackets, such as its place (`remat.Graph.places`).

    >>> placed("add_2", "layers.0, model.py:12"), placed("add_2", "aten.add.Tensor", ""), placed("add_2", "")
    ('add_2 (layers.0, model.py:12)', 'add_2 (aten.add.Tensor)', 'add_2')
    """
    listed = "; ".join(filter(None, facts))
    return f"{name} ({listed})" if listed else name


def cut(place: str, width: int) -> str:
    """Shortens a place (`remat.Graph.places`) to a width, as far as leaving out first parts of the path allows.

    >>> cut("backward of encoder.layers.3.mlp.fc1, model.py:57", 40), cut("encoder.layers.3", 8), cut("model.py:57", 4)
    ('backward of …3.mlp.fc1, model.py:57', '…3', 'model.py:57')
    """
    path, comma, line = place.partition(", ")
    what, of, module = path.rpartition(" of ")
    while len(place) > width and "." in module and ":" not in module:
        module = f"…{module.partition('.')[2]}"
        place = f"{what}{of}{module}{comma}{line}"
    return place


def wrapped(head: str, text: str, width: int = 80, between: str = "  ") -> list[str]:
    """Formats a text on the line of its head if both fit, otherwise on the lines below.

    >>> wrapped("forward  8 B", "x, y -> z"), wrapped("forward  8 B", "x, y -> z", 16)
    (['forward  8 B  x, y -> z'], ['forward  8 B', '    x, y -> z'])
    """
    if len(line := f"{head}{between}{text}") <= width:
        return [line]
    return [head, *textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False)]


def near(name: str, candidates: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown name: the most similar known name, if there is one.

    >>> near("relu_33", ["relu_3", "sin"]), near("VGG16", ["vgg16"]), near("tan", ["relu_3"])
    ("; did you mean 'relu_3'?", "; did you mean 'vgg16'?", '')
    """
    by_letters = {one.casefold(): one for one in candidates}
    matches = difflib.get_close_matches(name.casefold(), by_letters, n=1)
    return f"; did you mean {by_letters[matches[0]]!r}?" if matches else ""


def pip_install(extra: str) -> str:
    """Formats the command that installs an extra of remat; a release changes it (docs/releases.md)."""
    return f"pip install '.[{extra}]' in the clone of remat"


def near_of(name: str, candidates: Iterable[str]) -> str:
    """Returns the end of an error about an unknown name: the nearest known name, if one is near, and all known names.

    >>> near_of("sine", ["cos", "sin"]), near_of("tan", [])
    ("; did you mean 'sin'? There are: cos, sin", '; there are: none')
    """
    names = list(candidates)
    hint = near(name, names)
    return f"{hint} There are: {', '.join(names)}" if hint else f"; there are: {', '.join(names) or 'none'}"


def spoken_gap(gap: float, digits: int = 2, before: str = "") -> str:
    """Formats a gap as a percentage, or as "no useful bound" if it is more than 90%."""
    return f"{before}{gap:.{digits}%}" if gap <= _USEFUL_GAP else "no useful bound"
