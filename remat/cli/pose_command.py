"""Writes the problem of a graph under a cost model for solvers of others: `remat pose`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from remat.answer.dimacs_file import write_dimacs
from remat.answer.option_text import label
from remat.cli.inputs import cost_model_of
from remat.cli.options import CostModelName, GraphFile, Json, ModelOptions
from remat.facts.graph import Graph
from remat.facts.json_file import write_document
from remat.predict.memory.stated import stated_memory
from remat.problem.mps_file import write_mps
from remat.problem.problem_file import problem_document


class Format(StrEnum):
    """What to write a problem as."""

    JSON = "json"
    MPS = "mps"
    DIMACS = "dimacs"


def pose(
    graph: GraphFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; JSON is gzipped if it ends in .gz.")],
    cost_model: CostModelName = None,
    model_options: ModelOptions = None,
    format: Annotated[
        Format, typer.Option(help="Numbers as `docs/benchmark.md` has them; an integer program; a maximum flow.")
    ] = Format.JSON,
    as_json: Json = False,
) -> None:
    """Write the optimization problem of a graph: plain numbers, for solvers that know nothing of remat.

    \b
      remat pose gpt2.json.gz -m memory-budget -O budget=0.5 -o gpt2-half.json
      remat pose gpt2.json.gz -m memory-budget -O budget=0.5 --format mps -o gpt2-half.mps
      remat pose gpt2.json.gz --format dimacs -o gpt2.max
    """
    model, values = cost_model_of(cost_model, model_options), Graph.load(graph)
    problem = model.pose(values)
    if format is Format.MPS:
        write_mps(problem, output)
    elif format is Format.DIMACS:
        write_dimacs(problem, output)
    else:
        about = {"graph": graph.name, "cost_model": label(model)}
        document = problem_document(
            problem,
            name=graph.name.removesuffix(".gz").removesuffix(".json"),
            unit=model.unit,
            remarks=about,
            memory=stated_memory(values),
        )
        write_document(document, output)
    if as_json:
        return typer.echo(
            json.dumps({"problem": str(output), "format": format.value, "values": len(problem), "unit": model.unit})
        )
    return typer.echo(f"written to {output}")
