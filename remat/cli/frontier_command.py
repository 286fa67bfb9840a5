"""Prints the frontier of memory and recompute time: `remat frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import remat
from remat.answer.registry import DEFAULT_ESTIMATOR, QUICK_BUDGET_SOLVER
from remat.cli.inputs import solver_of
from remat.cli.options import PLUGIN, Budgets, EstimatorName, GraphFile, Json, NewPictureIfNamed, TimeLimit
from remat.cli.output import console, print_json, table, waiting
from remat.facts.graph import Graph
from remat.improve.frontier import Frontier
from remat.views.report import frontier_rows

_TABLE = 40
"""Rows of the table, at most; --json prints all points."""

_POINT = ("budget_bytes", "saved_bytes", "cost", "bound", "claimed_bound", "is_vertex", "solver")


def frontier(
    graph: GraphFile,
    estimator: EstimatorName = DEFAULT_ESTIMATOR,
    budgets: Budgets = 0,
    solver: Annotated[
        str, typer.Option("--solver", "-s", metavar=PLUGIN, help="Who solves them: takes a byte budget.")
    ] = QUICK_BUDGET_SOLVER,
    time_limit: TimeLimit = None,
    offload: Annotated[
        str | None,
        typer.Option(
            metavar="<device>", help="Values may wait on the host of this device, e.g. h100 (remat device --list)."
        ),
    ] = None,
    output: NewPictureIfNamed = None,
    as_json: Json = False,
) -> None:
    """Trade memory against recompute time: every optimal trade-off, with a bound at any budget.

    \b
      remat frontier gpt2.json.gz
      remat frontier gpt2.json.gz -e roofline:device=h200 --refine 20 -o frontier.svg
      remat frontier gpt2.json.gz --refine 8 -s cpsat --time-limit 10
      remat frontier gpt2.json.gz -e roofline:device=h100 --offload h100
    """
    values, chosen = Graph.load(graph), solver_of(solver)
    with waiting("searching", quiet=as_json, ends_early=True) as say:
        if offload is None:
            curve = remat.frontier(values, estimator=estimator)
        else:
            curve = remat.frontier(values, estimator=estimator, solver=chosen, offload=offload)
        if budgets:
            curve = curve.refine(
                budgets,
                chosen,
                time_limit_s=time_limit,
                progress=lambda done, known: say(f"{done} of {known[0]} budgets"),
            )
    if output is not None:
        curve.plot(output)
    if as_json:
        return print_json(_document(graph, estimator, curve))
    out = console()
    # Several budgets may have one plan: the smallest says most about it.
    points = [*{point.point: point for point in reversed(curve.points)}.values()][::-1]
    out.print(table(frontier_rows(curve, (*points[:_TABLE], *curve.references))))
    if len(points) > _TABLE:
        out.print(f"... and {len(points) - _TABLE} more; --json lists all")
    return out.print(f"written to {output}") if output is not None else None


def _document(graph: Path, estimator: str, curve: Frontier) -> dict[str, Any]:
    points, landmarks = (
        [{name: getattr(point, name) for name in _POINT} | {"plan": point.plan.digest} for point in some]
        for some in (curve.points, curve.references)
    )
    about = {"graph": str(graph), "estimator": estimator, "unit": curve.unit}
    about |= {"offload": curve.clock.device.name} if curve.clock else {}
    exact = curve.clock is None and all(edge.is_exact for edge in curve.edges)
    return about | {"is_exact": exact, "points": points, "landmarks": landmarks}
