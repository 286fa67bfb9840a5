"""Makes the page of a table: the published figure beside ours, and where ours are from."""

from __future__ import annotations

from collections import defaultdict
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
UNLAUNCHED = "experiments.paper.unlaunched_tables"
"""The command that fills several tables at once."""


NOTE = """
- "Triton schedule, no device": TorchInductor lowers and schedules its Triton kernels for an A100 of 40 GB that is not
  there, from tensors without contents; nothing runs, and nothing is measured. Kernels and bytes are Inductor's own
  count, calls of libraries included. What is saved and peak memory are of activations, gradients and temporary buffers:
  the peak is what Inductor's memory planner expects of the larger pass, above what was held before it.
- A modelled time is a model (`remat.predict.time.modelled_time`): of each kernel the longer of its bytes at 90% of
  1,555 GB/s and its arithmetic at 70% of the ceiling (312 TFLOP/s for products in half precision, else 19.5), and
  4 us for its launch, one after the other. The ceilings are of NVIDIA's data sheet, the other figures are round ones.
"""
"""What every page says of the column without a device."""


def page_of(table: PaperTable, rows: Rows, summary: Sequence[str] = ()) -> str:
    """Makes the page: a line for each figure, published and ours in every measured setting; then the summary.

    A case without a result on CUDA at the full size says so, in words.
    """
    settings = [setting for setting in _SETTINGS if setting in _ALWAYS or rows.of(*setting)]
    measured = [called(table, *setting) for setting in settings]
    return markdown.page(
        table.title,
        f"Published: {table.source}.",
        markdown.table(["case", "figure", "published", *measured], _lines(table, rows, settings)),
        *summary,
        table.notes.strip() + (NOTE.rstrip() if rows.of(VIRTUAL, "published") else ""),
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


def called(table: PaperTable, device: str, size: str) -> str:
    """Names a column."""
    size = _size(table, size)
    return f"Triton schedule, {size}, no device" if device == VIRTUAL else f"{device.upper()}, {size}"


def _size(table: PaperTable, size: str) -> str:
    return f"{table.full_size if size == 'published' else size} size"


def _figure(row: TableRow | None, name: str, *, is_first: bool) -> str:
    if row is None:
        return NOT_MEASURED
    if row.kind:
        return row.problem if is_first else ""
    return cell(row.figures.get(name))


def _runs(table: PaperTable, rows: Rows) -> Iterator[str]:
    """Says which run measured how many of the rows; runs of one command at one commit are one."""
    of_run: dict[int, list[TableRow]] = defaultdict(list)
    for row in rows.rows.values():
        of_run[row.run].append(row)
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for run in sorted(of_run):
        alike[tuple(fact for name, fact in rows.runs[run].items() if name != "date")].append(run)
    for runs in alike.values():
        cases = [row for run in runs for row in of_run[run]]
        where = ", ".join(sorted({f"{row.device}, {_size(table, row.size)}" for row in cases}))
        last = max((rows.runs[run] for run in runs), key=lambda run: run["date"])
        module = UNLAUNCHED if UNLAUNCHED in last["command"] else f"experiments.paper.{table.name}"
        yield f"{where}: {len(cases)} of the rows by {markdown.cited(last, module)}"
