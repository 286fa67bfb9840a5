"""Prints the frontier of memory and traffic: `remat traffic-frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

import remat
from remat.answer.plan import Plan
from remat.cli.options import DeviceName, GraphFile, Json, TimeLimit
from remat.cli.output import console, print_json, table, waiting
from remat.facts.graph import Graph
from remat.words import human_bytes


def traffic_frontier(
    graph: GraphFile,
    budgets: Annotated[int, typer.Option(min=0, help="How many, evenly spaced, are searched.")] = 16,
    start: Annotated[list[Path] | None, typer.Option(help="A further plan to begin from. Repeatable.")] = None,
    oracle: Annotated[str, typer.Option(metavar="model|inductor", help="Who has the last word on a plan.")] = "model",
    device: DeviceName = None,
    time_limit: TimeLimit = None,
    plans: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new folder for the plans.", metavar="FOLDER")
    ] = None,
    as_json: Json = False,
) -> None:
    """Trade memory against what the kernels move: the best plans found, which nothing proves to be the best.

    \b
      remat traffic-frontier gpt2.json.gz --device h100
      remat traffic-frontier gpt2.json.gz --device h100 --start pytorch.json --oracle inductor -o plans
    """
    if plans is not None and plans.exists():
        raise typer.BadParameter(f"{plans} is there already", param_hint="--output")
    values, starts = Graph.load(graph), [Plan.load(path) for path in start or []]
    with waiting("searching", quiet=as_json, ends_early=True) as say:
        curve = remat.traffic_frontier(
            values,
            budgets,
            starts=starts,
            oracle=cast(Any, oracle),
            device=device,
            time_limit_s=time_limit,
            progress=lambda predicted, best: say(f"{predicted} plans, the best moves {human_bytes(best[0])}"),
        )
    if plans is not None:
        plans.mkdir(parents=True)
        for point in curve.points:
            point.plan.save(plans / f"{point.saved_bytes}.json")
    if as_json:
        points = [
            {name: getattr(point, name) for name in ("saved_bytes", "traffic_bytes", "source")}
            | {"plan": point.plan.digest}
            for point in curve.points
        ]
        found = {name: getattr(curve, name) for name in ("oracle", "predicted", "asked")}
        ended = {"limit": curve.termination.limit, "detail": curve.termination.detail}
        return print_json({"graph": str(graph), **found, "termination": ended, "points": points})
    rows = [
        {"saved": human_bytes(point.saved_bytes), "moved": human_bytes(point.traffic_bytes), "by": point.source}
        for point in curve.points
    ]
    console().print(table(rows))
    console().print(f"{curve.predicted} plans predicted; {curve.termination.detail}")
    return console().print(f"written to {plans}") if plans is not None else None
