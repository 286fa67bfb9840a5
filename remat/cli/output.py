"""Prints what commands found: tables for people, with rich, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from remat.improve.progress import ending_at_ctrl_c


def print_json(document: Any) -> None:
    """Prints a document as JSON, as every command does under --json."""
    typer.echo(json.dumps(document, indent=1, default=_plain))


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Returns some attributes of a thing, for JSON."""
    return {name: getattr(thing, name) for name in names}


def as_told(record: Any) -> dict[str, Any]:
    """Lists the attributes of a dataclass for JSON, but not where a value comes from if that is unknown."""
    return {key: value for key, value in asdict(record).items() if key != "place" or value}


def _plain(value: object) -> object:
    return value.name.lower() if isinstance(value, Enum) else str(value)


def say_written(path: Path | None) -> None:
    """Says that a file or a folder was written, if there is one."""
    if path is not None:
        typer.echo(f"written to {path}")


def console() -> Console:
    """Returns the console of standard output; where that is a file or a pipe, lines are not cut to 80 columns."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)


def table(rows: Iterable[Mapping[str, object]], *unbroken: str) -> Table:
    """Makes a table of rows that share their keys, which are the headings; cells of `unbroken` columns stay a line."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for position, row in enumerate(rows):
        if position == 0:
            for heading in row:
                built.add_column(heading, overflow="fold", no_wrap=heading in unbroken)
        built.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row.values()))
    return built


stopped: ContextVar[bool] = ContextVar("stopped", default=False)
"""Whether Ctrl-C ended a search of this command, so that what is printed is the best so far."""


@contextmanager
def waiting(what: str, *, quiet: bool, ends_early: bool = False) -> Generator[Callable[[str], None]]:
    """Shows on standard error, if that is a terminal, what takes time, and for how long; gives a way to say more.

    Args:
        what: is being done.
        quiet: show nothing, as under --json.
        ends_early: it is a search that the first Ctrl-C ends with the best so far.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    err = Console(stderr=True)
    stopping = ending_at_ctrl_c() if ends_early else nullcontext(lambda: False)
    with (
        Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as shown,
        stopping as ended,
    ):
        task = shown.add_task(what, total=None)
        yield lambda news: shown.update(task, description=f"{what}: {news}")
        if ended():
            stopped.set(True)
