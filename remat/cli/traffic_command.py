"""Prints the kernels of a plan, and what they read and write: `remat traffic`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from remat.cli.inputs import chosen_plan
from remat.cli.options import CostModelName, GraphFile, Json, PlanFile, SolverName
from remat.cli.output import print_json
from remat.facts.graph import Graph
from remat.predict.traffic import predict_traffic


def traffic(
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelName = None,
    solver: SolverName = None,
    fused: Annotated[bool, typer.Option(help="As TorchInductor fuses; or every operator by itself.")] = True,
    as_json: Json = False,
) -> None:
    """Predict the kernels of both passes of a plan, and what they read and write.

    \b
      remat traffic gpt2.json.gz --plan plan.json
      remat traffic gpt2.json.gz -m multi-read
      remat traffic gpt2.json.gz --no-fused
    """
    values = Graph.load(graph)
    found = predict_traffic(values, chosen_plan(values, plan, cost_model, solver), fused=fused)
    if not as_json:
        return typer.echo(found)
    kernels: list[dict[str, Any]] = [
        {
            "backward": kernel.backward,
            "generated": kernel.generated,
            **{part: [values.names[v] for v in getattr(kernel, part)] for part in ("values", "reads", "writes")},
            "read_bytes": kernel.read_bytes,
            "written_bytes": kernel.written_bytes,
        }
        for kernel in found.kernels
    ]
    sums = {name: getattr(found, name) for name in ("reads", "writes", "read_bytes", "written_bytes", "bytes")}
    return print_json({"graph": str(graph), **sums, "kernels": kernels})
