"""Measures a table case by case, in pieces that go on where they stopped, and makes the command line for it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from experiments.paper.row_file import Rows, TableRow, WrongFile
from experiments.paper.table import (
    MEMORY_GIB,
    VIRTUAL,
    Figure,
    PaperTable,
    Setting,
    TableCase,
    Unavailable,
    UnknownCase,
)
from experiments.paper.table_page import page_of

RESULTS = Path(__file__).parents[1] / "results" / "paper"


def measure(
    table: PaperTable,
    setting: Setting,
    folder: Path = RESULTS,
    *,
    only: str = "",
    minutes: float = 7.0,
    again: bool = False,
) -> Rows:
    """Measures what is missing, keeps the most recent result of each case, and writes `<name>.json` and `<name>.md`.

    Those that were never tried come first, then those that were tried the longest ago: what fails slowly, or
    is measured again, does not keep the others waiting whenever the time is over.

    Args:
        table: what to measure.
        setting: where and how.
        folder: where the files are.
        only: the cases with this in their name.
        minutes: no case is begun after this.
        again: measures also what is there.

    Raises:
        UnknownCase: no case has `only` in its name.
        WrongFile: the folder has the file of another table.
    """
    chosen = [case for case in table.cases if only in case.name]
    if not chosen:
        raise UnknownCase(f"no case of {table.name} has {only!r} in its name: {[case.name for case in table.cases]}")
    known = [case.name for case in table.cases]
    rows = Rows.open(folder / f"{table.name}.json", table.name)
    rows.forget_all_but(known)
    todo = [case for case in chosen if again or not rows.has(case.name, setting.device, setting.size)]
    todo.sort(key=lambda case: rows.age(case.name, setting.device, setting.size))
    deadline = time.monotonic() + 60 * minutes
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(table.name, total=len(todo))
        for case in todo:
            if time.monotonic() > deadline:
                over = f"{minutes:g} minutes are over; the same command goes on with {case.name}"
                progress.console.print(escape(over))
                break
            progress.update(task, description=escape(f"{table.name}: {case.name}"))
            rows.add(_measured(case, setting))
            progress.advance(task)
    rows.save(known)
    (folder / f"{table.name}.md").write_text(written(table, rows, folder))
    return rows


def written(table: PaperTable, rows: Rows, folder: Path) -> str:
    """Writes the page of a table, as text, and puts its pictures into a folder."""
    return page_of(table, rows, table.summary(rows, folder) if table.summary else ())


def _clear(device: str) -> None:
    """Forgets what was compiled, and frees what nobody holds."""
    torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _measured(case: TableCase, setting: Setting) -> TableRow:
    _clear(setting.device)
    torch.manual_seed(setting.seed)
    start, figures, problem, kind = time.perf_counter(), dict[str, Figure](), "", ""
    try:
        figures = dict(case.measure(setting))
    except Unavailable as error:
        problem, kind = str(error), "unavailable"
    except Exception as error:  # the other cases still count, and the row says what went wrong
        problem, kind = (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
            "error",
        )
    return TableRow(
        case.name, setting.device, setting.size, figures, kind, problem, round(time.perf_counter() - start, 2)
    )


def command(table: PaperTable) -> Callable[..., None]:
    """Makes the command line of a table: `typer.run(command(TABLE))`."""
    cuda = torch.cuda.is_available()

    def main(
        device: Annotated[str, typer.Option(help=f"cpu, cuda, or {VIRTUAL}: scheduled for it, not run")] = "cuda"
        if cuda
        else "cpu",
        size: Annotated[str, typer.Option(help="small or published; published by default on CUDA")] = "",
        only: Annotated[str, typer.Option(help="the cases with this in their name")] = "",
        budget_minutes: Annotated[float, typer.Option(help="begin no case after this")] = 7.0,
        repeats: Annotated[int, typer.Option(min=1, help="timed steps of each")] = 10,
        again: Annotated[bool, typer.Option("--again", help="measure also what has a result")] = False,
        memory_gib: Annotated[float, typer.Option(min=0.1, help="that the largest batch may use")] = MEMORY_GIB,
        output: Annotated[Path, typer.Option(help="folder of the JSON and Markdown files", file_okay=False)] = RESULTS,
    ) -> None:
        size = size or ("small" if device == "cpu" else "published")
        sizes = ("published",) if device == VIRTUAL else ("small", "published")
        for name, value, known in (("--device", device, ("cpu", "cuda", VIRTUAL)), ("--size", size, sizes)):
            if value not in known:
                raise typer.BadParameter(f"{value!r}: expected {' or '.join(known)}", param_hint=name)
        if device == "cuda" and not cuda:
            raise typer.BadParameter("there is no CUDA device here; use --device cpu", param_hint="--device")
        setting = Setting(device, size, repeats, memory_gib=memory_gib)
        try:
            rows = measure(table, setting, output, only=only, minutes=budget_minutes, again=again)
        except (UnknownCase, WrongFile) as error:
            hint = "--only" if isinstance(error, UnknownCase) else "--output"
            raise typer.BadParameter(str(error), param_hint=hint) from None
        console = Console(width=max(Console().width, 120))
        console.print(rows.readable(device, size, dict(table.figures)))
        console.print(escape(f"written to {output / table.name}.json and .md"))
        failed = [row for row in rows.of(device, size) if row.kind == "error" and only in row.case]
        if failed:
            for row in failed:
                console.print(f"[bold red]failed[/]: {escape(f'{row.case}: {row.problem}')}")
            raise typer.Exit(1)

    main.__doc__ = f"{table.title} ({table.source})."
    return main
