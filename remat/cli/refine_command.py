"""Improves a plan by local search: `remat refine`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from remat.answer.plan import Plan
from remat.cli.option_groups import PlanOptions
from remat.cli.options import DeviceName, GraphFile, NewPlanFile, TimeLimit
from remat.cli.output import Answer, picked, waiting, written
from remat.facts.graph import Graph
from remat.improve.refine import refine as improve
from remat.words import parse_bytes

_OBJECTIVE = "What to lower: traffic, time, saved, peak or no-worse."
_ORACLE = "What counts the bytes that a plan moves: model, inductor or device."
_EXTRA = 'How much more than the first plan may be saved, such as "64MiB".'


def refine(
    graph: GraphFile,
    plan_options: PlanOptions,
    objective: Annotated[str, typer.Option(metavar="GOAL", help=_OBJECTIVE)] = "traffic",
    oracle: Annotated[str, typer.Option(metavar="ORACLE", help=_ORACLE)] = "model",
    extra: Annotated[str, typer.Option(metavar="SIZE", help=_EXTRA)] = "0B",
    start: Annotated[list[Path] | None, typer.Option(help="Another plan to begin from. Repeatable.")] = None,
    device: DeviceName = None,
    time_limit: TimeLimit = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The same seed gives the same plan.")] = 0,
    output: NewPlanFile = None,
) -> Answer:
    """Improve a plan by small changes, for a goal that a minimum cut cannot express.

    The search begins at the plan, and at each --start. With --time-limit it
    ends with the best plan so far; solving for the first plan is not included.

    \b
      remat refine gpt2.json.gz -o plan.json
      remat refine gpt2.json.gz -m memory-budget:budget=0.5 --objective no-worse
      remat refine gpt2.json.gz --plan plan.json --objective time --time-limit 60
      remat refine gpt2.json.gz --objective saved:extra_traffic=0.01 --device a100
      remat refine gpt2.json.gz --oracle inductor --start pytorch.json
      remat refine gpt2.json.gz --plan pytorch:0.5 --objective no-worse
    """
    values = Graph.load(graph)
    with waiting("refining", ends_early=True) as say:
        refined = improve(
            values,
            plan_options.plan_of(values),
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
        refined.plan.save(output)
    document = {
        "graph": str(graph),
        **picked(refined, "objective", "oracle", "terms", "before", "after"),
        "starts": [vars(start) | {"plan": start.plan.digest} for start in refined.starts],
        "moves": [asdict(step) for step in refined.history],
        **picked(refined, "evaluated", "asked", "layers", "time_s"),
        "termination": picked(refined.termination, "limit", "detail"),
        "plan": refined.plan.digest,
        "saved": refined.plan.saved,
    }
    return document, (refined, *written(output))
