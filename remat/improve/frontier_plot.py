"""The picture of a frontier."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from remat.errors import InvalidOption, NotInstalled
from remat.words import evenly_spaced, human_bytes, human_price

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.improve.frontier import Frontier

_STYLES = (("s", "#c8501e"), ("^", "#2e8b57"), ("D", "#8a5fb0"), ("v", "#b8860b"))

_SAMPLES = 64
"""Budgets at which a bound is drawn that is no straight line."""


def draw(frontier: Frontier, path: str | Path | None, beside: dict[str, Iterable[tuple[int, int]]]) -> Figure:
    """See `Frontier.plot`."""
    if find_spec("matplotlib") is None:
        raise NotInstalled("Frontier.plot needs matplotlib: pip install 'remat[plot]'")
    from matplotlib.ticker import MultipleLocator

    from remat.shown_figure import ShownFigure

    figure = ShownFigure(figsize=(7, 4.5), layout="constrained")
    _check_suffix(path, figure.canvas.get_supported_filetypes())
    axes = figure.subplots()
    _draw_bound(axes, frontier)
    refined = [point for point in frontier.points if not point.is_vertex]
    if refined:
        axes.plot(*_columns(p.point for p in refined), "o", ms=4, color="#5aa0d8", label="plans between them")
    axes.plot(*_columns(p.point for p in frontier.vertices), "o", ms=6, color="#1f5f99", label="hull vertices, optimal")
    for (marker, color), (name, points) in zip(cycle(_STYLES), beside.items(), strict=False):
        axes.plot(*_columns(points), marker, ms=6, ls="", fillstyle="none", color=color, label=name)
    axes.set_xlabel("saved activations")
    axes.set_ylabel("recompute time" if frontier.unit == "ns" else f"cost ({frontier.unit})")
    axes.xaxis.set_major_locator(MultipleLocator(_round_step(axes.get_xlim())))
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(int(value)))
    axes.yaxis.set_major_formatter(lambda value, _: human_price(int(value), frontier.unit))
    axes.grid(alpha=0.3)
    axes.legend()
    if path is not None:
        figure.savefig(path)
    return figure


def _check_suffix(path: str | Path | None, known: Iterable[str]) -> None:
    suffix = Path(path or "").suffix.removeprefix(".").lower()
    if path is not None and suffix not in known:
        raise InvalidOption(
            f"path must end in a format of pictures: {', '.join(f'.{k}' for k in known)}; got {str(path)!r}"
        )


def _draw_bound(axes: Axes, frontier: Frontier) -> None:
    """A proven lower bound at every budget: the hull, if its edges are exact. Below it is out of reach."""
    corners = {vertex.saved_bytes: vertex.bound for vertex in frontier.vertices}
    for edge in frontier.edges:
        if not edge.is_exact:
            between = evenly_spaced(edge.left.saved_bytes, edge.right.saved_bytes, _SAMPLES)
            corners |= {budget: frontier.bound(budget) or 0 for budget in between}
    x, y = _columns(sorted(corners.items()))
    axes.plot(x, y, "-", lw=1, color="#777777", label="proven bound")
    axes.fill_between(x, y, color="#eeeeee", zorder=0)


def _round_step(limits: tuple[float, float]) -> int:
    """A power of two, for four to eight ticks: round numbers of KiB or MiB."""
    return 2 ** max(math.ceil(math.log2(max(limits[1] - limits[0], 8) / 8)), 0)


def _columns(points: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    rows = list(points)
    return [x for x, _ in rows], [y for _, y in rows]
