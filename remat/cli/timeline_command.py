"""Prints the live memory of a training step: `remat timeline`."""

from __future__ import annotations

from typing import Annotated

import typer

from remat.cli.inputs import chosen_plan
from remat.cli.options import (
    CostModelName,
    DeviceName,
    GraphFile,
    Json,
    ModelOptions,
    NewPictureIfNamed,
    PlanFile,
    SolverName,
    SolverOptions,
)
from remat.cli.output import as_told, print_json, waiting
from remat.facts.graph import Graph
from remat.predict.buffers import records_calls, step_floor
from remat.predict.device_timeline import timeline as simulated
from remat.predict.memory import lower_bound
from remat.words import human_bytes


def timeline(
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    output: NewPictureIfNamed = None,
    holds_outputs: Annotated[
        bool, typer.Option(help="The caller keeps the outputs of the forward pass until the backward pass ends.")
    ] = True,
    device: DeviceName = None,
    as_json: Json = False,
) -> None:
    """Simulate live memory over the forward and the backward pass of a plan.

    Prints the peak and what is alive then, and the bound below which no plan without a host gets. A step is a kernel
    or a call of TorchInductor's code for the --device; without one, for that on which the graph was captured.

    \b
      remat timeline gpt2.json.gz --plan plan.json -o gpt2.svg
      remat timeline gpt2.json.gz -m byte-traffic:mode=aggressive
      remat timeline gpt2.json.gz -m memory-budget:budget=0.5,of=peak
      remat timeline gpt2.json.gz --plan plan.json --device a100
    """
    values = Graph.load(graph)
    with waiting("solving", quiet=as_json):
        chosen = chosen_plan(values, plan, cost_model, solver, model_options, solver_options)
        found = simulated(values, chosen, holds_outputs=holds_outputs, device=device)
        bound = (step_floor if records_calls(values) else lower_bound)(values, holds_outputs=holds_outputs)
    if output is not None:
        found.show(output)
    if not as_json:
        typer.echo(found)
        which = "no plan that offloads nothing" if chosen.offloaded else "no plan"
        typer.echo(f"{which} has a smaller peak than {human_bytes(bound.bytes)}")
        return typer.echo(f"written to {output}") if output is not None else None
    sizes = ("forward_peak_bytes", "backward_peak_bytes", "peak_bytes", "saved_bytes", "at_forward_end")
    return print_json(
        {
            "graph": str(graph),
            **{name: getattr(found, name) for name in sizes},
            "lower_bound_bytes": None if chosen.offloaded else bound.bytes,
            "peak_step": found.peak_step,
            "peak_tensors": [as_told(tensor) for tensor in found.peak_tensors],
            "picture": None if output is None else str(output),
        }
    )
