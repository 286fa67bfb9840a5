"""Prints a comparison of solvers: `remat compare`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

import remat
from remat.answer.registry import DEFAULT_COST_MODEL
from remat.cli.inputs import cost_models_of, solver_of
from remat.cli.options import GraphFiles, ModelOptions, plugin_option
from remat.cli.output import Answer, bold, table, waiting
from remat.facts.graph import Graph
from remat.views.explain import UNHIDDEN

if TYPE_CHECKING:
    from remat.views.comparison import Comparison


_MODELS, _SOLVERS = f"Repeatable; the default is {DEFAULT_COST_MODEL}.", "Repeatable; the default is all solvers."
_LIMIT = "Seconds for each solve, if its solver takes a limit."
_ROWS = "File that keeps the finished rows: the same command, run again, adds the rest."


def compare(
    graphs: GraphFiles,
    cost_models: Annotated[list[str] | None, plugin_option("--cost-model", "-m", help=_MODELS)] = None,
    model_options: ModelOptions = None,
    solvers: Annotated[list[str] | None, plugin_option("--solver", "-s", help=_SOLVERS)] = None,
    time_limit: Annotated[float | None, typer.Option("--time-limit", metavar="S", min=0.001, help=_LIMIT)] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="How many processes solve at once.")] = 1,
    rows: Annotated[Path | None, typer.Option(help=_ROWS)] = None,
) -> Answer:
    """Compare graphs, cost models and solvers: a row for each combination.

    \b
      remat compare gpt2.json.gz
      remat compare vgg16 gpt2-small --jobs 2 --rows rows.json
      remat compare *.json.gz -m byte-traffic -m multi-read -s ortools -s networkx
    """
    values = {str(path): Graph.load(path) for path in graphs}
    models = cost_models_of(cost_models or [DEFAULT_COST_MODEL], model_options)
    chosen = [solver_of(text) for text in solvers] if solvers else None
    with waiting("solving", ends_early=True) as say:
        frame = remat.compare(
            values,
            models,
            chosen,
            time_limit_s=time_limit,
            progress=lambda done, known: say(f"{done} of {known[0]}"),
            n_jobs=jobs,
            path=rows,
        )
    unhidden = [Text(UNHIDDEN)] if any(model.offload_device is not None for model in models) else []
    return frame.records(), (*_tables(frame), *unhidden)


# A table per graph and cost model, with the best in bold, and below it why a solver has no plan.
def _tables(comparison: Comparison) -> Iterator[object]:
    rows = zip(comparison.texts(), comparison.best(), strict=True)
    for (graph, cost_model), group in groupby(rows, lambda row: (row[0]["graph"], row[0]["cost model"])):
        listed = list(group)
        yield bold(f"{graph}: {cost_model}")
        yield table((_row(row, best) for row, best in listed), "solver", "objective")
        yield from (Text(f"{row['solver']}: {row['error']}") for row, _ in listed if row.get("error"))
        yield ""


def _row(row: dict[str, str], best: bool) -> dict[str, object]:
    return {
        "solver": row["solver"],
        "objective": Text(row["objective"], style="bold" if best else ""),
        "saved": row["saved memory"],
        "recomputed": row["recomputed ops"],
        "time": row["solved in"],
        "proof": ", ".join(filter(None, (row["ended"], row["certified"]))),
    }
