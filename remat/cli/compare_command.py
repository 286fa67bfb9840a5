"""Prints solvers side by side: `remat compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import remat
from remat.answer.registry import DEFAULT_COST_MODEL
from remat.cli.inputs import cost_model_of, solver_of
from remat.cli.options import PLUGIN, Json, TimeLimit
from remat.cli.output import console, print_json, table
from remat.facts.graph import Graph

if TYPE_CHECKING:
    from remat.views.comparison import Comparison

_LEFT_OUT = {"values", "exact", "bound", "optimality", "posed in"}
"""Columns that --json alone has: a terminal is narrow."""


def compare(
    graphs: Annotated[list[Path], typer.Argument(metavar="GRAPH...", help="Graph files.")],
    cost_models: Annotated[
        list[str] | None,
        typer.Option("--cost-model", "-m", metavar=PLUGIN, help="Repeatable; the default is one."),
    ] = None,
    solvers: Annotated[
        list[str] | None, typer.Option("--solver", "-s", metavar=PLUGIN, help="Repeatable; the default is all.")
    ] = None,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Compare graphs, cost models and solvers: a row for each combination.

    \b
      remat compare gpt2.json.gz
      remat compare *.json.gz -m byte-traffic -m byte-traffic:mode=aggressive -s ortools -s networkx
    """
    frame = remat.compare(
        {str(path): Graph.load(path) for path in graphs},
        [cost_model_of(text) for text in cost_models or [DEFAULT_COST_MODEL]],
        [solver_of(text) for text in solvers] if solvers else None,
        time_limit_s=time_limit,
    )
    return print_json(frame.records()) if as_json else _print(frame)


def _print(comparison: Comparison) -> None:
    """Prints a row for each combination; the best objective of each graph and cost model is bold."""
    rows = [
        {
            title: Text(text, style="bold" if best and title == "objective" else "")
            for title, text in row.items()
            if title not in _LEFT_OUT
        }
        for row, best in zip(comparison.texts(), comparison.best(), strict=True)
    ]
    console().print(table(rows))
