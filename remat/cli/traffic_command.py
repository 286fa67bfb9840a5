"""Prints the kernels of a plan, and what they read and write: `remat traffic`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from remat.cli.inputs import chosen_plan
from remat.cli.options import (
    CostModelName,
    DeviceName,
    GraphFile,
    Json,
    ModelOptions,
    PlanFile,
    SolverName,
    SolverOptions,
)
from remat.cli.output import print_json, waiting
from remat.facts.graph import Graph
from remat.predict.time import modelled_time
from remat.predict.traffic import predict_traffic


def traffic(
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    fused: Annotated[bool, typer.Option(help="As TorchInductor fuses; or every operator by itself.")] = True,
    device: DeviceName = None,
    as_json: Json = False,
) -> None:
    """Predict the kernels of both passes of a plan, and what they read and write.

    With --device, those that TorchInductor would make for it, and a modelled time; without, those of the device that
    the graph was captured for.

    \b
      remat traffic gpt2.json.gz --plan plan.json
      remat traffic gpt2.json.gz -m multi-read
      remat traffic gpt2.json.gz --no-fused
      remat traffic gpt2.json.gz --plan plan.json --device h100
    """
    values = Graph.load(graph)
    with waiting("solving", quiet=as_json):
        chosen = chosen_plan(values, plan, cost_model, solver, model_options, solver_options)
        found = predict_traffic(values, chosen, fused=fused, device=device)
    time = None if device in (None, "cuda") else modelled_time(values, found.kernels, device)
    if not as_json:
        alone = "\n(kernels alone, without the copies)" if found.offloaded_bytes else ""
        return typer.echo("\n".join(map(str, (found, f"{time}{alone}") if time else (found,))))
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
        name: getattr(found, name)
        for name in ("reads", "writes", "read_bytes", "written_bytes", "bytes", "offloaded_bytes")
    }
    if time:
        sums["modelled"] = {"device": time.device, "forward_ns": time.forward_ns, "backward_ns": time.backward_ns}
    return print_json({"graph": str(graph), "backend": found.backend, **sums, "kernels": kernels})
