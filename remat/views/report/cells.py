"""Writes a value of a table as people read it; the name of its column says what it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from remat.answer.option_text import split_options
from remat.answer.registry import estimator_class, estimator_names
from remat.views.report.section import Row
from remat.words import human_bytes, human_price

MISSING = "\u2013"
"""A dash, which stands where a row says nothing."""

_PRICES = {"objective", "bound", "claimed_bound", "cost", "pytorch", "ours", "ours_at_budget", "ours_at_peak"}
_SHARES = {"gap", "error"}
_STATISTICS = {"median", "mean", "fastest", "slowest", "least", "most", "min", "max"}
"""Names that do not say what was measured; the name before them does: "predicted_s: median" is a time."""


@dataclass(frozen=True)
class Cell:
    """Holds one value of a table, as people read it.

    Attributes:
        text: what people read.
        key: what a sort compares: a number as text, or "" where there is only the text.
        is_number: it is aligned to the right.
    """

    text: str
    key: str
    is_number: bool


def columns(rows: Sequence[Row]) -> list[str]:
    """Lists the keys of all rows, in the order in which they come first."""
    return list(dict.fromkeys(key for row in rows for key in row))


def constants(rows: Sequence[Row]) -> dict[str, Any]:
    """Finds what all rows say alike, if there are three rows or more: it needs no column."""
    if len(rows) < 3:
        return {}
    first = rows[0]
    same = {key: first[key] for key in first if all(key in row and _same(row[key], first[key]) for row in rows)}
    return same if len(same) < len(columns(rows)) else {}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or repr(one) == repr(other) == "nan")


def cell(row: Row, column: str) -> Cell:
    """Writes the value of a column in a row; in a table of names and values, the name says what the value is."""
    value = row.get(column)
    if column == "value" and "what" in row:
        names = str(row["what"]).split(": ")
        column = names[-2] if len(names) > 1 and names[-1] in _STATISTICS else names[-1]
        row = {column: value}
    if value is None or value == "":
        return Cell(MISSING, "", False)
    if isinstance(value, bool):
        return Cell("yes" if value else "no", str(int(value)), False)
    if isinstance(value, (int, float)):
        return _number(row, column, value)
    return Cell(_words(row, column, value), "", False)


def _words(row: Row, column: str, value: object) -> str:
    if isinstance(value, (list, tuple)):
        parts = cast(Sequence[object], value)
        if not any(isinstance(part, (list, tuple, dict)) for part in parts):
            return ", ".join(cell({**row, column: part}, column).text for part in parts) or "none"
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (list, tuple, dict)) else str(value)


def _number(row: Row, column: str, value: float) -> Cell:
    if math.isnan(value):
        return Cell("not a number", "", True)
    if math.isinf(value):
        return Cell("∞" if value > 0 else "-∞", "1e999" if value > 0 else "-1e999", True)
    return Cell(_text(row, column, value), repr(value), True)


def _text(row: Row, column: str, value: float) -> str:
    unit = unit_of(row)
    if column in _PRICES and unit and unit != "none":
        return human_price(round(value), unit)
    if "_per_" in column:  # a rate has the unit of neither
        return plain(value)
    return next((show for fits, show in _BY_NAME if fits(column)), plain)(value)


def is_shown(column: str, among: Sequence[str]) -> bool:
    """Says whether a column is worth showing: a unit is not, where prices carry it."""
    return column != "unit" or not _PRICES & set(among)


def unit_of(row: Row) -> str:
    """Returns the unit of a row's prices: its own, or that of its estimator; "" where neither is known."""
    return str(row.get("unit") or _unit_of_estimator(str(row.get("estimator"))))


@cache
def _unit_of_estimator(estimator: str) -> str:
    name, _ = split_options(estimator)
    return estimator_class(name).unit if name in estimator_names() else ""


def plain(value: float) -> str:
    """Writes a number without a unit: whole ones in full, others to four digits."""
    if value == int(value) and (abs(value) < 1e15 or type(value) is not float):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"


def human_seconds(seconds: float) -> str:
    """Writes a time in the unit that fits.

    >>> human_seconds(0.0144), human_seconds(2.0), human_seconds(0.0), human_seconds(7384)
    ('14.4 ms', '2.00 s', '0 s', '7,384 s')
    """
    if seconds == 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        amount = seconds / scale
        # What would be printed as 1000 belongs to the next unit.
        if abs(float(f"{amount:.3g}")) >= 1 or unit == "ns":
            break
    return f"{amount:,.0f} {unit}" if abs(amount) >= 100 else f"{amount:#.3g} {unit}"


def heading(column: str) -> str:
    """Writes the name of a column without its unit, which the cells carry.

    >>> heading("saved_bytes"), heading("solve_s"), heading("torch_s_fastest"), heading("peak_GiB"), heading("bytes")
    ('saved', 'solve', 'torch fastest', 'peak', 'bytes')
    >>> heading("samples_per_s")
    'samples per s'
    """
    if "_per_" in column:
        return column.replace("_", " ")
    for unit in ("_bytes", "_s", "_ns", "_GiB"):
        if column.endswith(unit):
            return column.removesuffix(unit).replace("_", " ")
    return column.replace("_s_", "_").replace("_", " ")


def _gibibytes(value: float) -> str:
    amount = value * 2.0**30
    return human_bytes(round(amount)) if math.isfinite(amount) else f"{plain(value)} GiB"


def _percent(share: float) -> str:
    """Writes a share with two decimals; one that they would round to nothing, with two digits."""
    return f"{100 * share:.{'2g' if 0 < abs(share) < 5e-5 else '2f'}}%"


_BY_NAME: tuple[tuple[Callable[[str], bool], Callable[[float], str]], ...] = (
    (lambda column: column == "bytes" or "_bytes" in column, lambda value: human_bytes(round(value))),
    (lambda column: column == "seconds" or column.endswith("_s") or "_s_" in column, human_seconds),
    (lambda column: column.endswith("_ns"), lambda value: human_price(round(value), "ns")),
    (lambda column: column.endswith("GiB"), _gibibytes),
    (
        lambda column: column in _SHARES or column.endswith(("_gap", "_error", "_share")) or column.startswith("share"),
        _percent,
    ),
)
"""What a column holds, by its name: the first that fits."""
