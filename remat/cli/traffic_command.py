"""Prints the kernels of a plan, and what they read and write: `remat traffic`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from remat.cli.inputs import chosen_plan
from remat.cli.options import CostModelName, GraphFile, Json, PlanFile, SolverName
from remat.cli.output import print_json
from remat.facts.graph import Graph
from remat.predict.time import modelled_time
from remat.predict.traffic import predict_traffic


def traffic(
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelName = None,
    solver: SolverName = None,
    fused: Annotated[bool, typer.Option(help="As TorchInductor fuses; or every operator by itself.")] = True,
    time_on: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Also model the time: see `remat device --list`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the kernels of both passes of a plan, and what they read and write.

    \b
      remat traffic gpt2.json.gz --plan plan.json
      remat traffic gpt2.json.gz -m multi-read
      remat traffic gpt2.json.gz --no-fused
      remat traffic gpt2.json.gz --time-on h100
    """
    values = Graph.load(graph)
    found = predict_traffic(values, chosen_plan(values, plan, cost_model, solver), fused=fused)
    time = modelled_time(values, found.kernels, time_on) if time_on else None
    if not as_json:
        return typer.echo("\n".join(map(str, (found, time) if time else (found,))))
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
    sums: dict[str, Any] = {
        name: getattr(found, name) for name in ("reads", "writes", "read_bytes", "written_bytes", "bytes")
    }
    if time:
        sums["modelled"] = {"device": time.device, "forward_ns": time.forward_ns, "backward_ns": time.backward_ns}
    return print_json({"graph": str(graph), **sums, "kernels": kernels})
