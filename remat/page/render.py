"""A report as one HTML file: script, style and data are in it, and a policy forbids the browser to load any more."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.page import cells
from remat.page.provenance import Origin, devices, is_dirty
from remat.page.section import Figure, Section, Table
from remat.report import human_bytes

if TYPE_CHECKING:
    from remat.page.page import Entry

_HERE = Path(__file__).parent
_LONG = 48
"""Characters from which a cell may break into lines."""

_TALL = 20
"""Rows from which a table scrolls by itself, and can be filtered."""


def render(title: str, entries: Sequence[Entry]) -> str:
    """The whole page."""
    jinja: Any = import_module("jinja2")
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    safe = import_module("markupsafe").Markup  # jinja2's own
    scripts = [_inline(text) for text in (_plotly(), _asset("page.js"))]
    return environment.from_string(_asset("page.html")).render(
        title=title,
        policy=_policy(scripts),
        style=safe(_asset("page.css")),
        scripts=[safe(script) for script in scripts],
        entries=[_entry(entry, position) for position, entry in enumerate(entries, 1)],
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _plotly() -> str:
    return import_module("plotly.offline").get_plotlyjs()


def _inline(script: str) -> str:
    """A script as it may stand between two tags: nothing in it ends it, and its hash is that of what browsers see."""
    return script.replace("\r\n", "\n").replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    """Content-Security-Policy: these scripts run and no others, and nothing is loaded."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: object) -> str:
    """JSON that may stand within a script element: no tag can start in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _entry(entry: Entry, position: int) -> dict[str, Any]:
    section = entry.section
    origin = Origin.of(section.provenance)
    numbers = _numbers(f"s{position}")
    parts = [
        {
            "id": f"s{position}-{place}",
            "title": part.title,
            "text": part.text,
            "figures": [_figure(figure, next(numbers)) for figure in part.figures],
            "tables": [_table(table, next(numbers), part.title) for table in part.tables],
        }
        for place, part in enumerate(section.parts, 1)
    ]
    return {
        "id": f"s{position}",
        "name": entry.name,
        "kind": section.kind,
        "text": section.text,
        "badges": _badges(section),
        "facts": _facts(entry, origin),
        "runs": _table(Table("Runs", origin.differing), next(numbers)) if origin.differing else None,
        "parts": parts,
    }


def _numbers(prefix: str) -> Iterator[str]:
    """Names of elements: the same for the same page."""
    number = 0
    while True:
        number += 1
        yield f"{prefix}-e{number}"


def _badges(section: Section) -> list[tuple[str, str]]:
    """(style, words): what one must know about all numbers of a section."""
    badges = [("device", f"on {device}")] if (device := devices(section.provenance)) else []
    if section.kind == "Frontier":
        badges = [("device", "estimated")]
    return badges + ([("dirty", "uncommitted changes")] if is_dirty(section.provenance) else [])


def _facts(entry: Entry, origin: Origin) -> list[tuple[str, str]]:
    """Name and value of each fact about a file; what is not known is said so."""
    known = {"file": entry.name, "sha256": entry.sha256[:16], "size": human_bytes(entry.size_bytes)}
    if not origin.common and not origin.differing:
        return [*known.items(), ("commit, date, device", "not stated in the file")]
    return [*known.items(), *origin.common.items()]


def _figure(figure: Figure, name: str) -> dict[str, Any]:
    choices = [{"traces": list(choice.traces), "layout": dict(choice.layout)} for choice in figure.choices]
    return {
        "id": name,
        "title": figure.title,
        "text": figure.text,
        "menu": figure.menu,
        "labels": [choice.label for choice in figure.choices],
        "height": figure.layout["height"],
        "spec": script_json({"data": list(figure.data), "layout": dict(figure.layout), "choices": choices}),
    }


def _table(table: Table, name: str, above: str = "") -> dict[str, Any]:
    """A table; its caption is not shown where the heading `above` says the same."""
    same = cells.constants(table.rows)
    shown = [column for column in cells.columns(table.rows) if column not in same and column != "unit"]
    rows = [[cells.cell(row, column) for column in shown] for row in table.rows]
    told = [key for key in same if same[key] not in (None, "") and key != "unit"]
    common = [f"{cells.heading(key)}: {cells.cell(same, key).text}" for key in told]
    headings = _headings(shown, rows)
    return {
        "id": name,
        "caption": table.caption,
        "is_titled": table.caption == above,
        "common": "; ".join(common),
        "style": " ".join(["pairs"] * (shown == ["what", "value"]) + ["tall"] * (len(rows) > _TALL)),
        "headings": headings,
        "rows": [
            [(cell.text, cell.key, _style(cell, numbers)) for cell, (_, numbers) in zip(row, headings, strict=True)]
            for row in rows
        ],
        "filtered": len(rows) > _TALL,
    }


def _headings(columns: Sequence[str], rows: Sequence[Sequence[cells.Cell]]) -> list[tuple[str, bool]]:
    """(words, whether it stands above numbers); a column whose short name another one has keeps its whole name."""
    short = [cells.heading(column) for column in columns]
    numbers = [any(row[place].is_number for row in rows) for place in range(len(columns))]
    names = [words if short.count(words) == 1 else name for words, name in zip(short, columns, strict=True)]
    return list(zip(names, numbers, strict=True))


def _style(cell: cells.Cell, numbers: bool) -> str:
    """A dash stands where the numbers of its column do."""
    if cell.is_number or (numbers and cell.text == cells.MISSING):
        return "number"
    return "long" if len(cell.text) > _LONG else ""
