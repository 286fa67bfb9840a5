"""Prints what a plan does with one value, and why: `remat explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from remat.cli.inputs import cost_model_of, solver_if_named
from remat.cli.options import CostModelName, GraphFile, Json, ModelOptions, SolverName, SolverOptions
from remat.cli.output import as_told, print_json, waiting
from remat.facts.graph import Graph
from remat.views.explain import explain as explanation_of


def explain(
    graph: GraphFile,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Name of a value of the graph.")],
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    as_json: Json = False,
) -> None:
    """Explain why a value is saved or recomputed, and what deciding otherwise would cost.

    \b
      remat explain gpt2.json.gz gelu_3
    """
    model, chosen = cost_model_of(cost_model, model_options), solver_if_named(solver, solver_options)
    with waiting("solving", quiet=as_json):
        found = explanation_of(Graph.load(graph), value, model, chosen)
    return print_json(as_told(found)) if as_json else typer.echo(found)
