"""Prints the frontier of memory against recompute time, or against step time: `remat frontier`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import remat
from remat.answer.registry import DEFAULT_ESTIMATOR, QUICK_BUDGET_SOLVER
from remat.cli.inputs import solver_of
from remat.cli.options import GraphFiles, NewPictureIfNamed, TimeLimit, plugin_option
from remat.cli.output import Answer, picked, table, waiting, written
from remat.facts.graph import Graph
from remat.improve.frontier import Frontier
from remat.improve.progress import ending_within, limit_for
from remat.improve.step_frontier import StepFrontier
from remat.views.report_page import frontier_rows
from remat.words import human_bytes, human_price

# Rows of the table, at most; --json prints all points.
_TABLE = 40
# The default of --budgets for a page, and against step time.
_MANY, _STEPS = 16, 6


class Against(StrEnum):
    """Lists what memory can be traded against."""

    TIME = "time"
    STEP = "step"


_ESTIMATOR = f"For time: see `remat plugins estimators`; {DEFAULT_ESTIMATOR} if left out."
_SOLVER = f"For time: solver for the budgets; {QUICK_BUDGET_SOLVER} if left out."
_OFFLOAD = "For time: values may wait in the host memory of this device, such as h100 (`remat device --list`)."
_DEVICE = "For step: the device whose kernels are predicted: cpu; or a100, h100, ..., even if this machine has none."
_HTML = "Page to write. GRAPH... may then also be a file with the output of `remat compare --json`, or a CSV file."
_AGAINST = "What is traded: saved bytes against recompute time, or the peak against the time of the step."
_BUDGETS = f"How many budgets to solve between the ends; 0 if left out, but {_MANY} for a page, and {_STEPS} for step."


@dataclass(frozen=True)
class OfTime:
    """Holds the options of a frontier against time."""

    estimator: Annotated[str | None, plugin_option("--estimator", "-e", help=_ESTIMATOR)] = None
    solver: Annotated[str | None, plugin_option("--solver", "-s", help=_SOLVER)] = None
    offload: Annotated[str | None, typer.Option(metavar="DEVICE", help=_OFFLOAD)] = None


def frontier(
    graphs: GraphFiles,
    *,
    against: Annotated[Against, typer.Option(help=_AGAINST)] = Against.TIME,
    budgets: Annotated[int | None, typer.Option("--budgets", "--refine", metavar="N", min=0, help=_BUDGETS)] = None,
    time: OfTime,
    device: Annotated[str | None, typer.Option(help=_DEVICE)] = None,
    html: Annotated[Path | None, typer.Option(help=_HTML)] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page; `remat report` if left out.")] = None,
    output: NewPictureIfNamed = None,
    plans: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A new folder to write the plans to.")] = None,
    time_limit: TimeLimit = None,
) -> Answer:
    """Trade memory against recompute time, or against the time of the step.

    Against time, the table has every optimal trade-off, and a bound at any
    budget. Against step, it has the fastest steps found within limits of the
    peak, without a proof, and what PyTorch gives in one line. A page (--html)
    shows the frontiers of several graphs against time, and comparisons of
    solvers. It needs no network.

    \b
      remat frontier gpt2.json.gz
      remat frontier gpt2.json.gz -e roofline:device=h200 --budgets 20 -o gpt2.svg
      remat frontier gpt2.json.gz --budgets 8 -s cpsat --time-limit 10
      remat frontier gpt2.json.gz -e roofline:device=h100 --offload h100
      remat frontier gpt2.json.gz --against step --device h100 -o steps.svg
      remat frontier gpt2.json.gz vgg16 solvers.json --html report.html
    """
    if html is not None:
        if against is not Against.TIME or plans is not None or time.offload or output:
            raise typer.BadParameter("leave out --html, or --against step, --plans, --offload and --output")
        _refuse("for a page", device=device)
        return _page(graphs, html, title or "remat report", time, budgets, time_limit)
    _refuse("without --html", title=title)
    if len(graphs) > 1:
        raise typer.BadParameter("name only one GRAPH, or use --html FILE to write a page about several")
    if plans is not None and plans.exists():
        raise typer.BadParameter(f"the folder must be new, but {plans} exists: name another", param_hint="--plans")
    if against is Against.STEP:
        _refuse("against step", **vars(time))
        curve = _against_step(Graph.load(graphs[0]), device, _STEPS if budgets is None else budgets, time_limit)
        document, lines = _step_document(graphs[0], curve), _step_lines(curve)
        saved = {f"{point.peak_bytes}.json": point.plan for point in curve.points}
    else:
        _refuse("against time", device=device)
        curve = _against_time(Graph.load(graphs[0]), time, budgets or 0, time_limit)
        document, lines = _document(graphs[0], time, curve), _lines(curve)
        saved = {f"{point.saved_bytes}.json": point.plan for point in curve.points}
    if output is not None:
        curve.plot(output)
    if plans is not None:
        plans.mkdir(parents=True)
        for name, plan in saved.items():
            plan.save(plans / name)
    return document, (*lines, *written(output), *written(plans))


def _refuse(where: str, **options: object) -> None:
    typed = [f"--{name}" for name, value in options.items() if value is not None]
    if typed:
        have, them = ("has", "it") if len(typed) == 1 else ("have", "them")
        raise typer.BadParameter(f"{', '.join(typed)} {have} no meaning {where}: leave {them} out")


def _against_time(graph: Graph, time: OfTime, budgets: int, time_limit: float | None) -> Frontier:
    chosen, estimator = solver_of(time.solver or QUICK_BUDGET_SOLVER), time.estimator or DEFAULT_ESTIMATOR
    with waiting("searching", ends_early=True) as say, ending_within(time_limit):
        if time.offload is None:
            curve = remat.frontier(graph, estimator=estimator)
        else:
            curve = remat.frontier(graph, estimator=estimator, solver=chosen, offload=time.offload)
        if budgets:
            curve = curve.refine(
                budgets,
                chosen,
                time_limit_s=limit_for(chosen, time_limit),
                progress=lambda done, known: say(f"{done} of {known[0]} budgets"),
            )
    return curve


def _against_step(graph: Graph, device: str | None, budgets: int, time_limit: float | None) -> StepFrontier:
    with waiting("searching", ends_early=True) as say:
        return remat.step_frontier(
            graph,
            budgets,
            device=device,
            time_limit_s=time_limit,
            progress=lambda count, last: say(f"{count} plans, the last one has a peak of {human_bytes(last[0])}"),
        )


def _lines(curve: Frontier) -> Iterator[object]:
    # Several budgets may have the same plan: the smallest one is listed.
    points = [*{point.point: point for point in reversed(curve.points)}.values()][::-1]
    yield table(frontier_rows(curve, (*points[:_TABLE], *curve.references)))
    if len(points) > _TABLE:
        yield f"... and {len(points) - _TABLE} more; --json lists all"


def _document(graph: Path, time: OfTime, curve: Frontier) -> dict[str, Any]:
    point = ("budget_bytes", "saved_bytes", "cost", "bound", "claimed_bound", "is_vertex", "solver")
    points, references = (
        [picked(one, *point) | {"plan": one.plan.digest} for one in some] for some in (curve.points, curve.references)
    )
    about = {"graph": str(graph), "estimator": time.estimator or DEFAULT_ESTIMATOR, "unit": curve.unit}
    about |= {"offload": curve.clock.device.name} if curve.clock else {}
    exact = curve.clock is None and all(edge.is_exact for edge in curve.edges)
    old_name = {"landmarks": references}  # until 0.4
    return about | {"is_exact": exact, "points": points, "references": references} | old_name


def _step_lines(curve: StepFrontier) -> Iterator[object]:
    yield table(
        {"peak": human_bytes(point.peak_bytes), "step": human_price(round(point.step_ns), "ns"), "by": point.source}
        for point in (*curve.points, *curve.one_liners)
    )
    yield f"predicted for {curve.device}; {curve.termination.detail}"


def _step_document(graph: Path, curve: StepFrontier) -> dict[str, Any]:
    points, one_liners = (
        [picked(one, "peak_bytes", "step_ns", "source") | {"plan": one.plan.digest} for one in some]
        for some in (curve.points, curve.one_liners)
    )
    ended = picked(curve.termination, "limit", "detail")
    return {
        "graph": str(graph),
        "device": curve.device,
        "termination": ended,
        "points": points,
        "one_liners": one_liners,
    }


def _page(
    results: list[Path], html: Path, title: str, time: OfTime, budgets: int | None, time_limit: float | None
) -> Answer:
    from remat.views.report_page import Page

    if not html.parent.is_dir():  # checked before the frontiers of large graphs are computed
        raise typer.BadParameter(f"--html {html} must be in a folder that exists, got {html.parent}: make it first")
    if html.exists() and any(path.exists() and path.samefile(html) for path in results):
        raise typer.BadParameter(f"--html {html} is one of GRAPH..., and would be lost: name another file")
    with waiting("reading", ends_early=True) as say:
        page = Page.of(
            results,
            title=title,
            estimator=time.estimator or DEFAULT_ESTIMATOR,
            refine=_MANY if budgets is None else budgets,
            solver=solver_of(time.solver or QUICK_BUDGET_SOLVER),
            time_limit_s=time_limit,
            progress=lambda done, known: say(f"{done} of {known[0]} budgets"),
        )
    size_bytes = page.save(html)
    kinds = [{"file": section.name, "kind": section.kind} for section in page.sections]
    lines = (f"{line['file']}: {line['kind'].lower()}" for line in kinds)
    return {"report": str(html), "bytes": size_bytes, "files": kinds}, (*lines, *written(html))
