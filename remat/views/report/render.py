"""Renders a report as one HTML file: script, style and data are in it, and a policy forbids browsers to load more."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from remat.views.report import cells
from remat.views.report.origins import devices, is_dirty, separated
from remat.views.report.section import Figure, ReportedFile, Row, Section, Table
from remat.words import human_bytes

_HERE = Path(__file__).parent
_LONG = 48
"""Characters from which a cell may break into lines."""

_TALL = 20
"""Rows from which a table scrolls by itself, and can be filtered."""


def render(title: str, files: Sequence[ReportedFile]) -> str:
    """Renders the whole page."""
    jinja: Any = import_module("jinja2")
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    safe = import_module("markupsafe").Markup  # jinja2's own
    scripts = [_inline(text) for text in (_plotly(), _asset("page.js"))]
    return environment.from_string(_asset("page.html")).render(
        title=title,
        policy=_policy(scripts),
        style=safe(_asset("page.css")),
        scripts=[safe(script) for script in scripts],
        files=[_file(file, position) for position, file in enumerate(files, 1)],
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _plotly() -> str:
    return import_module("plotly.offline").get_plotlyjs()


def _inline(script: str) -> str:
    """Writes a script so that nothing in it ends it, and its hash is that of what browsers see."""
    return script.replace("\r\n", "\n").replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    """Writes the Content-Security-Policy by which these scripts run and no others, and nothing is loaded."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(file: ReportedFile, position: int) -> dict[str, Any]:
    section = file.section
    common, differing = separated(section.provenance)
    numbers = (f"s{position}-e{number}" for number in count(1))  # the same for the same page
    badges = _badges(section)
    # A figure is looked at, and copied, without the heading of its section.
    where = next((f" Run {words}." for _, words in badges if words.startswith("on ")), "")
    parts = [
        {
            "id": f"s{position}-{place}",
            "title": part.title,
            "text": part.text,
            "figures": [_figure(figure, next(numbers), where) for figure in part.figures],
            "tables": [_table(table, next(numbers), part.title) for table in part.tables],
        }
        for place, part in enumerate(section.parts, 1)
    ]
    return {
        "id": f"s{position}",
        "name": file.name,
        "kind": section.kind,
        "text": section.text,
        "badges": badges,
        "facts": _facts(file, common, differing),
        "runs": _table(Table("Runs", differing), next(numbers)) if differing else None,
        "parts": parts,
    }


def _badges(section: Section) -> list[tuple[str, str]]:
    """Lists, as (style, words), what one must know about all numbers of a section."""
    badges = [("device", f"on {device}")] if (device := devices(section.provenance)) else []
    if section.kind == "Frontier":
        badges = [("device", "estimated")]
    return badges + ([("dirty", "uncommitted changes")] if is_dirty(section.provenance) else [])


def _facts(file: ReportedFile, common: Mapping[str, str], differing: Sequence[Row]) -> list[tuple[str, str]]:
    known = {"file": file.name, "sha256": file.sha256[:16], "size": human_bytes(file.size_bytes)}
    stated = {*common, *(key for run in differing for key in run)}
    stated |= {"date"} if "captured" in stated else set()  # as graph files call it
    unknown = ", ".join(key for key in ("commit", "date", "device") if key not in stated)
    return [*known.items(), *common.items(), *([(unknown, "not stated in the file")] if unknown else [])]


def _figure(figure: Figure, name: str, where: str) -> dict[str, Any]:
    views = [{"traces": list(view.traces), "layout": dict(view.layout)} for view in figure.views]
    return {
        "id": name,
        "title": figure.title,
        "text": figure.text + where,
        "menu": figure.menu,
        "labels": [view.label for view in figure.views],
        "height": figure.layout["height"],
        "spec": {"data": list(figure.data), "layout": dict(figure.layout), "choices": views},
    }


def _table(table: Table, name: str, above: str = "") -> dict[str, Any]:
    """Lays out a table; its caption is not shown where the heading `above` says the same."""
    same = cells.constants(table.rows)
    columns = cells.columns(table.rows)
    shown = [column for column in columns if column not in same and cells.is_shown(column, columns)]
    rows = [[cells.cell(row, column) for column in shown] for row in table.rows]
    told = [key for key in same if same[key] not in (None, "") and cells.is_shown(key, columns)]
    names = _names(columns)
    common = [f"{names[key]}: {cells.cell(same, key).text}" for key in told]
    numbers = [any(row[place].is_number for row in rows) for place in range(len(shown))]
    headings = [(names[column], number) for column, number in zip(shown, numbers, strict=True)]
    return {
        "id": name,
        "caption": table.caption,
        "is_titled": table.caption == above,
        "common": "; ".join(common),
        "style": " ".join(["pairs"] * (shown == ["what", "value"]) + ["tall"] * (len(rows) > _TALL)),
        "headings": headings,  # (words, whether it stands above numbers)
        "rows": [
            [(cell.text, cell.key, _style(cell, numbers)) for cell, (_, numbers) in zip(row, headings, strict=True)]
            for row in rows
        ],
        "filtered": len(rows) > _TALL,
    }


def _names(columns: Sequence[str]) -> dict[str, str]:
    short = {column: cells.heading(column) for column in columns}
    count = Counter(short.values())
    return {column: (words if count[words] == 1 else column) or "(no name)" for column, words in short.items()}


def _style(cell: cells.Cell, numbers: bool) -> str:
    """Chooses the style of a cell; a dash stands where the numbers of its column do."""
    if cell.is_number or (numbers and cell.text == cells.MISSING):
        return "number"
    return "long" if len(cell.text) > _LONG else ""
