"""Prints what commands found: tables for people, with rich, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_json(document: Any) -> None:
    """Prints a document as JSON, as every command does under --json."""
    typer.echo(json.dumps(document, indent=1, default=_plain))


def _plain(value: object) -> object:
    """Replaces what JSON does not know: an enum by its name, anything else by its text."""
    return value.name.lower() if isinstance(value, Enum) else str(value)


def console() -> Console:
    """Returns the console of standard output; where that is a file or a pipe, lines are not cut to 80 columns."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)


def table(rows: Iterable[Mapping[str, object]]) -> Table:
    """Makes a table of rows that share their keys, which are the headings."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for position, row in enumerate(rows):
        if position == 0:
            for heading in row:
                built.add_column(heading, overflow="fold")
        built.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row.values()))
    return built


def counted(number: int, what: str) -> str:
    """Writes how many there are: "1 figure", "2,000 figures"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
