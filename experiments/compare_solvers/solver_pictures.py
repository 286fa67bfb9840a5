"""Draws two pictures: how solve times grow with the size of the graph, and performance profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.compare_solvers.performance_profile import WITHIN, coverage, seconds, solved
from remat.pictures import write
from remat.views.performance_profile import profile, ratios

_MARKERS = "osD^vp*hP"
_LINES = ("-", "--", ":", "-.")
_BESIDE = 2
"""Each row of a picture has at most this many panels."""

_LONGEST_TITLE = 45

_BEHIND = {"facecolor": "white", "alpha": 0.85, "linewidth": 0}


def looks(solvers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Chooses each solver's colour and marker; variants of one solver share both, and differ in their lines."""
    variants: defaultdict[str, list[str]] = defaultdict(list)
    for solver in sorted(set(solvers)):
        variants[solver.partition(":")[0]].append(solver)
    return {
        solver: {"color": f"C{i % 10}", "marker": _MARKERS[i % len(_MARKERS)], "ls": _LINES[j % len(_LINES)]}
        for i, alike in enumerate(variants.values())
        for j, solver in enumerate(alike)
    }


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Selects the rows to draw: without a budget, a solver that is not exact is one cut by the default flow solver."""
    return frame[frame["exact"] | frame["budget_bytes"].notna()]


def scaling(frame: pd.DataFrame, path: Path) -> None:
    """Draws seconds against values, a panel for each cost model; hollow where the limit came before a solution."""
    styles = looks(frame["solver"])
    figure = _panels(
        drawn(frame),
        partial(_draw_scaling, styles),
        "Time of each solver, by the size of the graph",
        "values of the graph",
        "time of the solver alone (s)",
    )
    stopped = Line2D([], [], ls="", marker="o", color="#555555", fillstyle="none", label="hollow: stopped, not solved")
    _legend(figure, frame, styles, [stopped])
    write(figure, path)


def _draw_scaling(styles: dict[str, dict[str, Any]], axes: Any, rows: pd.DataFrame) -> None:
    good = solved(rows)
    if not (good | rows["stopped"]).any():  # logarithmic axes need points
        axes.text(0.5, 0.5, "no solver has a time", transform=axes.transAxes, ha="center")
        return
    for solver, own in rows.groupby("solver"):
        style, points = styles[str(solver)], own[good[own.index]]
        dots = style | {"ls": ""}
        points = points.assign(taken=points["solve_s"].clip(lower=1e-6))
        axes.plot(points["values"], points["taken"], ms=4, alpha=0.45, mew=0, **dots)
        middle = middles(points)
        axes.plot(middle["values"], middle["taken"], **(style | {"marker": ""}), lw=1.8)
        stopped = own[own["stopped"] & ~good[own.index]]
        axes.plot(stopped["values"], stopped["time_limit_s"], fillstyle="none", ms=6, **dots)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def middles(points: pd.DataFrame) -> pd.DataFrame:
    """Makes a point for each doubling of the size: the geometric mean of the values, and the median time."""
    groups = points.groupby(np.floor(np.log2(points["values"].astype(float))))
    return groups.agg(values=("values", lambda sizes: np.exp(np.log(sizes).mean())), taken=("taken", "median"))


def profiles(frame: pd.DataFrame, path: Path) -> None:
    """Draws performance profiles, a panel for each cost model."""
    styles = {solver: style | {"marker": ""} for solver, style in looks(frame["solver"]).items()}
    figure = _panels(
        drawn(frame),
        partial(_draw_profile, styles),
        "How many instances each solver solves, within a factor of the fastest",
        "time of the solver, to that of the fastest: at most",
        f"instances solved (to {WITHIN:.1%})",
    )
    _legend(figure, frame, styles, [])
    write(figure, path)


def _draw_profile(styles: dict[str, dict[str, Any]], axes: Any, rows: pd.DataFrame) -> None:
    ratio = ratios(seconds(rows))
    finite = ratio.to_numpy()[np.isfinite(ratio.to_numpy())]
    end = 1.5 * max(float(finite.max()) if finite.size else 1.0, 10.0)
    for solver in ratio:
        if np.isfinite(ratio[solver]).any():
            tau, share = profile(ratio[solver].to_numpy())
            axes.step([*tau, end], [*share, share[-1]], where="post", lw=1.8, alpha=0.9, **styles[str(solver)])
    axes.set(xscale="log", xlim=(1, end), ylim=(0, 1.03))
    axes.text(0.98, 0.04, coverage(rows), transform=axes.transAxes, ha="right", fontsize=7.5, bbox=_BEHIND)
    axes.xaxis.set_major_formatter(lambda factor, _: f"{factor:,.0f}x")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _panels(
    frame: pd.DataFrame, draw: Callable[[Any, pd.DataFrame], None], title: str, xlabel: str, ylabel: str
) -> Figure:
    """Makes a figure with a panel for each cost model."""
    models = list(dict.fromkeys(frame["cost_model"]))
    columns = max(min(len(models), _BESIDE), 1)
    lines = max(-(-len(models) // columns), 1)
    figure = Figure(figsize=(5.0 * columns, 3.6 * lines + 1.1), layout="constrained")
    figure.suptitle(title, fontsize=12)
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for position, (axes, model) in enumerate(zip(panels, models, strict=False)):
        draw(axes, frame[frame["cost_model"] == model])
        name = model if len(model) <= _LONGEST_TITLE else model.replace(":", ":\n", 1)
        axes.set_title(name, fontsize=9.5, family="monospace")
        axes.grid(alpha=0.3, which="major")
        axes.set_xlabel(xlabel)
        if position % columns == 0:
            axes.set_ylabel(ylabel)
    for axes in panels[len(models) :]:
        axes.set_visible(False)
    return figure


def _legend(figure: Figure, frame: pd.DataFrame, styles: dict[str, dict[str, Any]], others: list[Line2D]) -> None:
    """Draws one legend below all panels, of the solvers that are to be seen in any."""
    models = [rows for _, rows in drawn(frame).groupby("cost_model")]
    names = sorted({name for rows in models for name in rows["solver"][solved(rows) | rows["stopped"]]})
    handles = [Line2D([], [], lw=1.8, ms=4, label=name, **styles[name]) for name in names] + others
    figure.legend(handles=handles, loc="outside lower center", ncols=max(min(len(handles), 5), 1), fontsize=9)
