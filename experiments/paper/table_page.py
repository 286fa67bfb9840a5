"""Makes the page of a table: the published figure beside ours, and where ours are from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.paper.row_file import Rows, TableRow, cell
from experiments.paper.table import VIRTUAL, PaperTable
from experiments.report import markdown

_SETTINGS = (
    ("cuda", "published"),
    (VIRTUAL, "published"),
    ("cuda", "small"),
    ("cpu", "published"),
    ("cpu", "small"),
)
_ALWAYS = (_SETTINGS[0], _SETTINGS[4])
NOT_MEASURED = "not yet measured"


def page_of(table: PaperTable, rows: Rows, summary: Sequence[str] = ()) -> str:
    """Makes the page: a line for each figure, published and ours in every measured setting; then the summary.

    A case without a result on CUDA at the full size says so, in words.
    """
    settings = [setting for setting in _SETTINGS if setting in _ALWAYS or rows.of(*setting)]
    measured = [_where(table, *setting) for setting in settings]
    return markdown.page(
        table.title,
        f"Published: {table.source}.",
        markdown.table(["case", "figure", "published", *measured], _lines(table, rows, settings)),
        *summary,
        table.notes.strip(),
        f"`python -m experiments.paper.{table.name}`. Seed 0, for weights and inputs.",
        markdown.bullets(_runs(table, rows)),
    )


def _lines(table: PaperTable, rows: Rows, settings: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yields the cells of each figure of each case."""
    for case in table.cases:
        found = [rows.rows.get((case.name, *setting)) for setting in settings]
        shown = [
            name
            for name in table.figures
            if name in case.published or any(row is not None and name in row.figures for row in found)
        ] or list(table.figures)[:1]  # what failed, or was not measured, is said in any case
        for i, name in enumerate(shown):
            figures = [_figure(row, name, is_first=i == 0) for row in found]
            yield ["" if i else case.name, table.figures[name], cell(case.published.get(name)), *figures]


def _where(table: PaperTable, device: str, size: str) -> str:
    called = _called(table, size)
    return f"Triton schedule, {called}, no device" if device == VIRTUAL else f"{device.upper()}, {called}"


def _called(table: PaperTable, size: str) -> str:
    return f"{table.full_size if size == 'published' else size} size"


def _figure(row: TableRow | None, name: str, *, is_first: bool) -> str:
    if row is None:
        return NOT_MEASURED
    if row.kind:
        return row.problem if is_first else ""
    return cell(row.figures.get(name))


def _runs(table: PaperTable, rows: Rows) -> Iterator[str]:
    """Says which run measured how many of the rows."""
    for i, run in enumerate(rows.runs):
        cases = [row for row in rows.rows.values() if row.run == i]
        if cases:
            where = ", ".join(sorted({f"{row.device}, {_called(table, row.size)}" for row in cases}))
            origin = markdown.cited(run, f"experiments.paper.{table.name}")
            yield f"{where}: {len(cases)} of the rows by {origin}"
