"""Prints the results of commands: tables for people, with rich, or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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

Answer = tuple[Mapping[str, Any] | Sequence[Any], Iterable[object]]
"""The result of a command: a document for --json, and the objects to print for people."""

quiet: ContextVar[bool] = ContextVar("quiet", default=False)
"""Whether this command prints JSON and nothing else."""

stopped: ContextVar[bool] = ContextVar("stopped", default=False)
"""Whether Ctrl-C ended a search of this command, so that the printed result is the best so far."""


def show(answer: Answer) -> None:
    """Prints an answer: its JSON document with `--json`, otherwise its texts and tables."""
    document, things = answer
    if quiet.get():
        typer.echo(json.dumps(document, indent=1, default=_plain))
        return
    for thing in things:
        if isinstance(thing, Table | Text):
            console().print(thing)
        else:
            typer.echo(thing)


def picked(thing: object, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def as_told(record: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass for JSON, without an unknown place."""
    return {key: value for key, value in asdict(record).items() if key != "place" or value}


def _plain(value: object) -> object:
    return value.name.lower() if isinstance(value, Enum) else str(value)


def written(path: Path | None) -> Iterator[str]:
    """Yields a message that names the file or the folder that was written; without a path, it yields nothing."""
    if path is not None:
        yield f"written to {path}"


def bold(text: str) -> Text:
    return Text(text, style="bold")


def console() -> Console:
    """Returns the console of standard output; in a file or a pipe, lines are not cut to 80 columns."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)


def table(rows: Iterable[Mapping[str, object]], *unbroken: str) -> Table:
    """Makes a table of rows whose common keys are the headings; cells of `unbroken` columns are not wrapped."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for position, row in enumerate(rows):
        if position == 0:
            for heading in row:
                built.add_column(heading, overflow="fold", no_wrap=heading in unbroken)
        built.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row.values()))
    return built


@contextmanager
def waiting(what: str, *, ends_early: bool = False) -> Generator[Callable[[str], None]]:
    """Shows the current work and its duration on standard error, if that is a terminal, but not with --json.

    Args:
        ends_early: whether the first Ctrl-C ends the work with the best result so far.

    Returns:
        a function that shows the progress.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    err = Console(stderr=True)
    stopping = ending_at_ctrl_c() if ends_early else nullcontext(lambda: False)
    with (
        Progress(*columns, console=err, transient=True, disable=quiet.get() or not err.is_terminal) as shown,
        stopping as ended,
    ):
        task = shown.add_task(what, total=None)
        yield lambda news: shown.update(task, description=f"{what}: {news}")
        if ended():
            stopped.set(True)
