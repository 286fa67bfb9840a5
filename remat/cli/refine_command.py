"""Improves a plan by local search: `remat refine`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from remat.answer.plan import Plan
from remat.cli.inputs import chosen_plan
from remat.cli.options import (
    CostModelName,
    DeviceName,
    GraphFile,
    Json,
    ModelOptions,
    NewPlanFile,
    PlanFile,
    SolverName,
    SolverOptions,
    TimeLimit,
)
from remat.cli.output import print_json, waiting
from remat.facts.graph import Graph
from remat.improve.refine import Refined
from remat.improve.refine import refine as improve
from remat.words import parse_bytes


def refine(  # noqa: PLR0913, PLR0917  # one for each option
    graph: GraphFile,
    plan: PlanFile = "solved",
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    objective: Annotated[
        str, typer.Option(metavar="traffic|time|saved|peak|no-worse", help="What to lower.")
    ] = "traffic",
    oracle: Annotated[
        str, typer.Option(metavar="model|inductor|device", help="Who has the last word on a plan.")
    ] = "model",
    extra: Annotated[
        str, typer.Option(metavar="SIZE", help='What may be saved beyond the plan, as in "64MiB".')
    ] = "0B",
    start: Annotated[list[Path] | None, typer.Option(help="A further plan to begin from. Repeatable.")] = None,
    device: DeviceName = None,
    time_limit: TimeLimit = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same plan.")] = 0,
    output: NewPlanFile = None,
    as_json: Json = False,
) -> None:
    """Improve a plan by local moves, under an objective that no cut can state.

    Within a --time-limit, starts are scored while there is time; the given plan is, however long that takes. Where that
    plan must be solved for first, this comes on top.

    \b
      remat refine gpt2.json.gz -o plan.json
      remat refine gpt2.json.gz -m memory-budget -O budget=0.5 --objective no-worse
      remat refine gpt2.json.gz --plan plan.json --objective time --time-limit 60
      remat refine gpt2.json.gz --objective saved:extra_traffic=0.01 --device a100
      remat refine gpt2.json.gz --oracle inductor --extra 64MiB --start pytorch.json
      remat refine gpt2.json.gz --plan pytorch:0.5 --objective no-worse --oracle inductor
    """
    values = Graph.load(graph)
    with waiting("refining", quiet=as_json, ends_early=True) as say:
        begun = chosen_plan(values, plan, cost_model, solver, model_options, solver_options)
        found = improve(
            values,
            begun,
            cast(Any, objective),
            cast(Any, oracle),
            extra_bytes=parse_bytes(extra, "--extra"),
            starts=[Plan.load(path) for path in start or []],
            time_limit_s=time_limit,
            seed=seed,
            progress=lambda evaluated, best: say(f"{evaluated} plans, the best: {best[0]:,}"),
            device=device,
        )
    if output is not None:
        found.plan.save(output)
    if as_json:
        return print_json(_document(graph, found))
    typer.echo(found)
    return typer.echo(f"written to {output}") if output is not None else None


def _document(graph: Path, found: Refined) -> dict[str, Any]:
    return {
        "graph": str(graph),
        **{name: getattr(found, name) for name in ("objective", "oracle", "terms", "before", "after")},
        "starts": [vars(start) | {"plan": start.plan.digest} for start in found.starts],
        "moves": [asdict(step) for step in found.history],
        **{name: getattr(found, name) for name in ("evaluated", "asked", "layers", "time_s")},
        "termination": {"limit": found.termination.limit, "detail": found.termination.detail},
        "plan": found.plan.digest,
        "saved": found.plan.saved,
    }
