"""Writes Markdown pages: titles, lists, tables with aligned numbers, and where results come from.

A page is made of blocks, which are texts; an empty block is left out:

>>> print(page("Times", table(("model", "s"), [("a|b", 1.5), ("c", None)]), bullets([])))
# Times
<BLANKLINE>
| model | s |
|---|--:|
| a\\|b | 1.5 |
| c |  |
<BLANKLINE>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_NUMBER = re.compile(r"(\*\*)?[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?( ?\D.{0,14})?|inf|nan")
"""A number, perhaps in bold, with a short unit behind it: "5 %", "3.2 MiB", "1.2 of 10 models"."""


def page(title: str, *blocks: str) -> str:
    """Puts blocks under a title, with an empty line between each two."""
    return _joined(f"# {title}", *blocks) + "\n"


def section(title: str, *blocks: str, level: int = 2) -> str:
    """Puts blocks under a smaller title; the section is a block itself."""
    return _joined(f"{'#' * level} {title}", *blocks)


def bullets(items: Iterable[str]) -> str:
    """Makes a list, one line an item."""
    return "\n".join(f"- {item}" for item in items)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Makes a table; columns that hold mostly numbers are aligned to the right.

    Args:
        headings: one a column.
        rows: the cells of each row, one a column; see `cell`.
    """
    cells = [[cell(value) for value in row] for row in rows]
    marks = ["--:" if _holds_numbers(column) else "---" for column in zip(*cells, strict=True)] or ["---"] * len(
        headings
    )
    lines = [_line(headings), "|" + "|".join(marks) + "|", *map(_line, cells)]
    return "\n".join(lines)


def cell(value: object) -> str:
    """Writes a value so that it stays one cell of one line.

    Integers are written in full, other numbers to four digits, None as nothing; in a text, what Markdown would take
    for the end of a cell or for HTML is escaped.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "\\<")


def cited(origin: Mapping[str, str], module: str) -> str:
    """Says in one line where results come from.

    Args:
        origin: the provenance of the run.
        module: that makes such results today; the run may have had another name for it, at its commit.
    """
    where = ", ".join(origin[fact] for fact in ("machine", "date"))
    return f"`python -m {module}`: commit {origin['commit']}, torch {origin['torch']}, {where}"


def _joined(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _holds_numbers(column: Sequence[str]) -> bool:
    filled = [text for text in column if text]
    return 2 * sum(_NUMBER.fullmatch(text) is not None for text in filled) > len(filled)
