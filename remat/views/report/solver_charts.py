"""Draws solvers beside each other: how their time grows with the problem, and how often each is the fastest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import geometric_mean, median

from remat.views.report import plots
from remat.views.report.cells import human_seconds
from remat.views.report.colours import colour, marker
from remat.views.report.section import Figure, Part, Row, Table, View
from remat.views.report.solver_rows import WITHIN, Runs, graph_of, names, normalized, renamed, summary

_FEW = 8
"""Sizes up to which a line goes through each of them: with more it would be a zigzag."""


def part(rows: Runs, title: str = "Solvers") -> Part:
    """Makes the plots and the tables of rows that passed `is_comparison`."""
    text = (
        f"An instance is solved by a plan within {WITHIN:.1%} of the best bound of any solver: a filled "
        "marker; an open one did not solve it, and one that was stopped stands at its time limit. A click on a name in "
        "the legend hides it, a double click shows it alone."
    )
    tables = (Table("Solvers, in short", summary(rows)), Table("All runs", [renamed(row) for row in rows]))
    return Part(title, text, charts(rows), tables)


def charts(rows: Runs) -> tuple[Figure, ...]:
    """Draws how rows that passed `is_comparison` scale, and their performance profile; nothing where none was timed."""
    runs = normalized(rows)
    timed = [run for run in runs if plots.is_positive(run["taken_s"], run["values"])]
    if not timed:
        return ()
    several = len({graph_of(run) for run in timed}) > 1
    return (_scaling(timed), _profile(timed, runs)) if several else (_scaling(timed),)


def _scaling(runs: Runs) -> Figure:
    """Draws a point a run, and a line through the medians of each doubling of the size; one view for a cost model."""
    traces: list[plots.Trace] = []
    views: list[View] = []
    for model in names(runs, "cost_model"):
        first = len(traces)
        for solver in sorted(names(runs, "solver")):
            own = [run for run in runs if run["cost_model"] == model and run["solver"] == solver]
            traces += _cloud(solver, own) if own else []
        views.append(View(model, tuple(range(first, len(traces))), {}))
    return plots.figure(
        "Time to solve, by size",
        "Log-log scatter plot: values of the graph across, seconds to solve up, a line for each solver through the "
        "medians of its runs, size by size; of many sizes, through the median of each doubling.",
        traces,
        x=plots.log_axis("values in the graph", [run["values"] for run in runs], tickformat="~s"),
        y=plots.log_axis("time to solve (s)", [run["taken_s"] for run in runs]),
        height=500,
        menu="cost model",
        views=views,
    )


def _cloud(solver: str, runs: Runs) -> list[plots.Trace]:
    """Draws the runs of one solver, and a line through those that solved their instance; open markers did not."""
    groups: defaultdict[float, list[Row]] = defaultdict(list)
    few = len({run["values"] for run in runs}) <= _FEW
    for run in runs:
        if run["solved"]:
            groups[run["values"] if few else math.floor(math.log2(run["values"]))].append(run)
    middle = [
        (geometric_mean(run["values"] for run in group), median(run["taken_s"] for run in group))
        for _, group in sorted(groups.items())
    ]
    shapes = [marker(solver) if run["solved"] else f"{marker(solver)}-open" for run in runs]
    cloud = plots.points(
        solver,
        [run["values"] for run in runs],
        [run["taken_s"] for run in runs],
        [_hover(run) for run in runs],
        marker={"symbol": shapes, "size": 7, "color": colour(solver), "opacity": 0.6},
        legendgroup=solver,
        showlegend=not middle,
    )
    if not middle:
        return [cloud]
    line = plots.points(
        solver,
        [x for x, _ in middle],
        [y for _, y in middle],
        [plots.lines(solver, f"median of this size: {human_seconds(y)}") for _, y in middle],
        mode="lines+markers" if len(middle) > 1 else "markers",
        line={"color": colour(solver), "width": 2},
        marker={"symbol": marker(solver), "size": 8 if len(middle) == 1 else 6, "color": colour(solver)},
        legendgroup=solver,
    )
    return [cloud, line]


def _hover(run: Row) -> str:
    times = [
        f"{what} {human_seconds(run[key])}"
        for what, key in (("posed", "pose_s"), ("solved", "solve_s"), ("certified", "certify_s"), ("total", "total_s"))
        if plots.is_number(run.get(key))
    ]
    gap = run.get("gap")
    ended = f"{run['status']}, gap {gap:.2%}" if isinstance(gap, float) and gap > 0 else run["status"]
    return plots.lines(run["solver"], run["instance"], f"{run['values']:,} values", ended, *times, run.get("note"))


def _profile(timed: Runs, runs: Runs) -> Figure:
    """Draws the share of instances that a solver solves within a factor of the fastest (Dolan and Moré, 2002)."""
    traces: list[plots.Trace] = []
    views: list[View] = []
    for model in names(timed, "cost_model"):
        first = len(traces)
        count = len({graph_of(run) for run in runs if run["cost_model"] == model})
        repeated: defaultdict[tuple[tuple[str, str], str], list[float]] = defaultdict(list)
        for run in timed:
            if run["cost_model"] == model and run["solved"]:
                repeated[graph_of(run), run["solver"]].append(run["taken_s"])
        # An instance counts once, however often it was run.
        taken = {which: median(times) for which, times in repeated.items()}
        fastest: dict[tuple[str, str], float] = {}
        for (graph, _), time in taken.items():
            fastest[graph] = min(time, fastest.get(graph, math.inf))
        largest = max((time / fastest[graph] for (graph, _), time in taken.items()), default=1.0)
        for solver in sorted(names(timed, "solver")):
            ratios = sorted(time / fastest[graph] for (graph, who), time in taken.items() if who == solver)
            traces += [_steps(solver, ratios, count, largest)] if ratios else []
        views.append(View(model, tuple(range(first, len(traces))), {}))
    return plots.figure(
        "Performance profile",
        "Step plot: a factor of the time of the fastest solver across, the share of instances solved "
        "within it up, a line for each solver. At 1 it shows how often a solver is the fastest; at the right end, "
        "how much it solves at all. Of repeated runs the median counts.",
        traces,
        x=plots.log_axis("time / fastest solver's", [point for trace in traces for point in trace["x"]]),
        y=plots.axis("instances solved", tickformat=".0%", range=[0, 1.03]),
        height=440,
        menu="cost model",
        views=views,
    )


def _steps(solver: str, ratios: Sequence[float], count: int, largest: float) -> plots.Trace:
    at = sorted({1.0, *ratios})
    shares = [sum(ratio <= factor for ratio in ratios) / count for factor in at]
    texts = [
        plots.lines(solver, f"{share:.0%} of {count} instances", f"within {factor:.3g} times the fastest")
        for factor, share in zip(at, shares, strict=True)
    ]
    # On to the right end, where nothing more is solved.
    return plots.points(
        solver,
        [*at, largest * 1.1],
        [*shares, shares[-1]],
        [*texts, texts[-1]],
        mode="lines",
        line={"color": colour(solver), "width": 2, "shape": "hv"},
        legendgroup=solver,
    )
