"""Draws a graph and a plan: `remat show`."""

from __future__ import annotations

from typing import Annotated

import typer

import remat
from remat.cli.inputs import chosen_plan
from remat.cli.options import PLAN, CostModelName, GraphFile, Json, ModelOptions, NewPicture, SolverName, SolverOptions
from remat.cli.output import print_json, waiting
from remat.facts.graph import Graph


def show(
    graph: GraphFile,
    output: NewPicture,
    plan: Annotated[
        str | None,
        typer.Option(metavar=PLAN, help="Colour by a plan file, by what is `solved` now, or by PyTorch's own plan."),
    ] = None,
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    around: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="Draw the neighbourhood of this value only. Repeatable.")
    ] = None,
    hops: Annotated[int, typer.Option(min=0, help="Size of the neighbourhood, in uses.")] = 2,
    as_json: Json = False,
) -> None:
    """Draw a graph of up to 300 values, or a part of a larger one.

    \b
      remat show small.json -o small.svg --plan solved
      remat show gpt2.json.gz -o gelu.svg --plan plan.json --around gelu_3 --hops 3
    """
    if plan is None and (cost_model or solver or model_options or solver_options):
        raise typer.BadParameter("-m and -s, -O and -S decide what to solve: add --plan solved")
    values, drawn = Graph.load(graph), None
    with waiting("solving and drawing", quiet=as_json):
        if plan is not None:
            drawn = chosen_plan(values, plan, cost_model, solver, model_options, solver_options)
        remat.show(values, drawn, output, around=around, hops=hops)
    if as_json:
        return print_json({"picture": str(output), "plan": drawn and drawn.digest})
    return typer.echo(f"written to {output}")
