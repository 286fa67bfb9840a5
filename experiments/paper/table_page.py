"""A table's Markdown: the published figure beside ours, and where ours are from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.paper.kept_rows import Row, Rows, cell

if TYPE_CHECKING:
    from experiments.paper.table import Table

_SETTINGS = (("cuda", "published"), ("cuda", "small"), ("cpu", "published"), ("cpu", "small"))
_ALWAYS = (_SETTINGS[0], _SETTINGS[3])
NOT_MEASURED = "not yet measured"


def markdown(table: Table, rows: Rows, summary: Sequence[str] = ()) -> str:
    """One line a figure: what was published, and ours in every setting that was measured; then the summary.

    A case without a result on CUDA at the full size says so, in words.
    """
    settings = [setting for setting in _SETTINGS if setting in _ALWAYS or rows.of(*setting)]
    headings = [
        "case",
        "figure",
        "published",
        *(f"{device.upper()}, {_called(table, size)}" for device, size in settings),
    ]
    lines = [f"# {table.title}", "", f"Published: {table.source}.", ""]
    lines += [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for case in table.cases:
        found = [rows.rows.get((case.name, *setting)) for setting in settings]
        shown = [
            name
            for name in table.figures
            if name in case.published or any(row is not None and name in row.figures for row in found)
        ] or list(table.figures)[:1]  # what failed, or was not measured, is said in any case
        for i, name in enumerate(shown):
            cells = [_figure(row, name, is_first=i == 0) for row in found]
            first = "" if i else case.name
            lines.append(
                f"| {first} | {table.figures[name]} | {_in_a_cell(case.published.get(name))} | {' | '.join(cells)} |"
            )
    if summary:
        lines += ["", *summary]
    if table.notes:
        lines += ["", table.notes.strip()]
    return "\n".join([*lines, "", *_provenance(table, rows)]) + "\n"


def _called(table: Table, size: str) -> str:
    return f"{table.full_size if size == 'published' else size} size"


def _figure(row: Row | None, name: str, *, is_first: bool) -> str:
    if row is None:
        return NOT_MEASURED
    if row.kind:
        return _in_a_cell(row.problem) if is_first else ""
    return _in_a_cell(row.figures.get(name))


def _in_a_cell(value: object) -> str:
    """A figure, or an error: on one line, with nothing in it that Markdown takes for the end of a cell or for HTML."""
    return " ".join(cell(value).split()).replace("|", "\\|").replace("<", "\\<")


def _provenance(table: Table, rows: Rows) -> list[str]:
    lines = [f"`python -m experiments.paper.{table.name}`. Seed 0, for weights and inputs."]
    for i, run in enumerate(rows.runs):
        cases = [row for row in rows.rows.values() if row.run == i]
        if cases:
            where = ", ".join(sorted({f"{row.device}, {_called(table, row.size)}" for row in cases}))
            lines.append(
                f"- {where}: {len(cases)} of the rows: commit {run['commit']}, {run['date']}, torch {run['torch']}, "
                f"{run['machine']}, `{run['command']}`"
            )
    return lines
