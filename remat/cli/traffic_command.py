"""The command about kernels and what they move."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from remat.cli.typed import CostModelIfNamed, GraphFile, PlanFile, SolverIfNamed, chosen_plan, load_graph
from remat.predict.traffic import traffic as predict


def traffic(
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelIfNamed = None,
    solver: SolverIfNamed = None,
    fused: Annotated[bool, typer.Option(help="As TorchInductor fuses; or every operator by itself.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Predict the kernels of both passes of a plan, and what they read and write.

    \b
      remat traffic gpt2.json.gz --plan plan.json
      remat traffic gpt2.json.gz -m multi-read
      remat traffic gpt2.json.gz --no-fused
    """
    values = load_graph(graph)
    found = predict(values, chosen_plan(values, plan, cost_model, solver), fused=fused)
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
    return typer.echo(json.dumps({"graph": str(graph), **sums, "kernels": kernels}, indent=1))
