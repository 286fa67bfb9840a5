"""Makes the parts of a report for an object of results: a table for each list of rows, and plots where it has some."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from remat.views.report import solver_charts, solver_rows
from remat.views.report.content import is_rows
from remat.views.report.section import Figure, Part, Row, Table

Draw = Callable[[Sequence[Row]], tuple[Figure, ...]]
"""Draws the figures that rows of these columns have; none if it does not know them."""


def parts(document: Mapping[str, Any], draw: Draw = lambda _: (), *, within: str = "") -> tuple[Part, ...]:
    """Makes a part for each list of rows and each object of a document, and one table of what is left.

    Args:
        document: what the file says, by name; what is empty is left out.
        draw: draws the figures above a table of rows. Rows of solver runs have their own figures.
        within: what the titles start with.
    """
    made: list[Part] = []
    facts: list[Row] = []
    for key, value in document.items():
        name = f"{within}{key}"
        if is_rows(value) and value:
            made.append(part(name, value, draw))
        elif isinstance(value, dict):
            inner = cast(dict[str, Any], value)
            if any(found and is_rows(found) for found in inner.values()):
                made += parts(inner, draw, within=f"{name}: ")
            elif inner:
                made.append(Part(_title(name), tables=(_object(name, inner),)))
        elif value not in (None, [], ""):
            facts.append({"what": name, "value": value})
    return (*made, *([Part("Settings", tables=(Table("Settings", facts),))] if facts else []))


def part(name: str, rows: Sequence[Row], draw: Draw = lambda _: ()) -> Part:
    """Makes the part of one list of rows."""
    if solver_rows.is_comparison(rows):
        return solver_charts.part(rows, _title(name))
    flat = _flat_rows(rows)
    return Part(_title(name), "", draw(flat), (Table(f"{_title(name)}: {len(rows):,} rows", flat),))


def _flat_rows(rows: Sequence[Row]) -> list[Row]:
    """Makes objects in rows columns of their own; where two objects hold the same name, theirs stands before it."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in row.items():
            for name in cast(dict[str, Any], value) if isinstance(value, dict) else (key,):
                homes[name].add(key)
    return [
        {
            name if name == key or len(homes[name]) == 1 else f"{key}: {name}": found
            for key, value in row.items()
            for name, found in (cast(dict[str, Any], value) if isinstance(value, dict) else {key: value}).items()
        }
        for row in rows
    ]


def _object(key: str, value: Mapping[str, Any]) -> Table:
    """Makes a table of an object: of rows, if all it holds is objects."""
    if value and all(isinstance(inner, dict) for inner in value.values()):
        return Table(_title(key), [{"name": name, **inner} for name, inner in value.items()])
    return Table(_title(key), [{"what": name, "value": inner} for name, inner in _flat(value)])


def _flat(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from ((f"{name}: {key}", found) for key, found in cast(dict[str, Any], inner).items())
        else:
            yield name, inner


def _title(key: str) -> str:
    words = str(key).replace("_", " ")
    return words[:1].upper() + words[1:]
