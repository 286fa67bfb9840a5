"""Two pictures: how solve times grow with the size of the graph, and performance profiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.compare_solvers.performance_profile import WITHIN, profile, ratios, seconds, solved
from remat.page.colours import colour, marker
from remat.pictures import write

_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "pentagon": "p",
    "star": "*",
    "hexagon": "h",
    "cross": "P",
}
_BESIDE = 2
"""Panels in a row."""

_LONGEST_TITLE = 45


def look(solver: str) -> dict[str, Any]:
    """Colour and marker of a solver: those that it has in reports."""
    name = solver.partition(":")[0]
    return {"color": colour(name), "marker": _MARKERS.get(marker(name), "o")}


def drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows to draw: without a budget, a solver that is not exact is one cut by the default flow solver."""
    return frame[frame["exact"] | frame["budget_bytes"].notna()]


def scaling(frame: pd.DataFrame, path: Path) -> None:
    """Seconds against values, a panel for each cost model; hollow where the time limit came before a solution."""
    figure = _panels(drawn(frame), _draw_scaling, "values of the graph", "time of the solver alone (s)")
    stopped = Line2D([], [], ls="", marker="o", color="#555555", fillstyle="none", label="hollow: stopped, not solved")
    _legend(figure, frame, [stopped])
    write(figure, path)


def _draw_scaling(axes: Any, rows: pd.DataFrame) -> None:
    good = solved(rows)
    for solver, own in rows.groupby("solver"):
        style, points = look(str(solver)), own[good[own.index]]
        points = points.assign(taken=points["solve_s"].clip(lower=1e-6))
        axes.plot(points["values"], points["taken"], ls="", ms=4, alpha=0.45, mew=0, **style)
        middle = middles(points)
        axes.plot(middle["values"], middle["taken"], color=style["color"], lw=1.8)
        stopped = own[own["stopped"] & ~good[own.index]]
        axes.plot(stopped["values"], stopped["time_limit_s"], ls="", fillstyle="none", ms=6, **style)
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def middles(points: pd.DataFrame) -> pd.DataFrame:
    """A point for each doubling of the size: the geometric mean of the values, and the median time."""
    groups = points.groupby(np.floor(np.log2(points["values"].astype(float))))
    return groups.agg(values=("values", lambda sizes: np.exp(np.log(sizes).mean())), taken=("taken", "median"))


def profiles(frame: pd.DataFrame, path: Path) -> None:
    """Performance profiles, a panel for each cost model."""
    figure = _panels(
        drawn(frame),
        _draw_profile,
        "time of the solver, to that of the fastest: at most",
        f"instances solved (to {WITHIN:.1%})",
    )
    _legend(figure, frame, [], marker="")
    write(figure, path)


def _draw_profile(axes: Any, rows: pd.DataFrame) -> None:
    ratio = ratios(seconds(rows))
    finite = ratio.to_numpy()[np.isfinite(ratio.to_numpy())]
    end = 1.5 * max(float(finite.max()) if finite.size else 1.0, 10.0)
    for solver in ratio:
        if np.isfinite(ratio[solver]).any():
            tau, share = profile(ratio[solver].to_numpy())
            axes.step(
                [*tau, end], [*share, share[-1]], where="post", color=look(str(solver))["color"], lw=1.8, alpha=0.9
            )
    axes.set(xscale="log", xlim=(1, end), ylim=(0, 1.03))
    axes.xaxis.set_major_formatter(lambda factor, _: f"{factor:,.0f}x")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _panels(frame: pd.DataFrame, draw: Callable[[Any, pd.DataFrame], None], xlabel: str, ylabel: str) -> Figure:
    """A figure with a panel for each cost model."""
    models = list(dict.fromkeys(frame["cost_model"]))
    columns = max(min(len(models), _BESIDE), 1)
    lines = max(-(-len(models) // columns), 1)
    figure = Figure(figsize=(5.0 * columns, 3.6 * lines + 0.8), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for position, (axes, model) in enumerate(zip(panels, models, strict=False)):
        draw(axes, frame[frame["cost_model"] == model])
        title = model if len(model) <= _LONGEST_TITLE else model.replace(":", ":\n", 1)
        axes.set_title(title, fontsize=9.5, family="monospace")
        axes.grid(alpha=0.3, which="major")
        axes.set_xlabel(xlabel)
        if position % columns == 0:
            axes.set_ylabel(ylabel)
    for axes in panels[len(models) :]:
        axes.set_visible(False)
    return figure


def _legend(figure: Figure, frame: pd.DataFrame, others: list[Line2D], **changes: Any) -> None:
    """One legend below all panels, of the solvers that are to be seen in any."""
    models = [rows for _, rows in drawn(frame).groupby("cost_model")]
    names = sorted({name for rows in models for name in rows["solver"][solved(rows) | rows["stopped"]]})
    handles = [Line2D([], [], lw=1.8, ms=4, label=name, **(look(name) | changes)) for name in names] + others
    figure.legend(handles=handles, loc="outside lower center", ncols=max(min(len(handles), 5), 1), fontsize=9)
