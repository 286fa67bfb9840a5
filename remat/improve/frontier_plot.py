"""Draws the pictures of frontiers: plans with the bound under them, or peaks against step times."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from remat.errors import InvalidOption
from remat.pictures import Picture, axis_unit, write
from remat.words import human_bytes, human_price

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = (("s", "#c8501e"), ("^", "#2e8b57"), ("D", "#8a5fb0"), ("v", "#b8860b"))
_REFERENCE_STYLES = (("P", "#c8501e"), ("X", "#444444"))
# PyTorch's ways, by how `remat.improve.one_liners` names them: marker, colour, and the beginnings of the names.
_ONE_LINERS = {
    "torch.utils.checkpoint": ("s", "#c8501e", ("every", "groups")),
    "activation_memory_budget": ("^", "#2e8b57", ("activation",)),
    "PyTorch's default": ("X", "#444444", ("PyTorch",)),
}
_TIMES = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))
# Signs in a line of the title.
_TITLE = 70


def draw(
    vertices: Iterable[tuple[int, int]],
    between: Iterable[tuple[int, int]],
    bound: Iterable[tuple[int, int]],
    references: Mapping[str, Iterable[tuple[int, int]]],
    other_points: Mapping[str, Iterable[tuple[int, int]]],
    unit: str,
    model: str,
    path: str | Path | None,
) -> Picture:
    """Draws points of (saved bytes, cost), and writes the picture if there is a path: see `Frontier.plot`.

    Args:
        vertices: those of the hull. Where values may be offloaded there are none: then costs are added time, and the
            bound at one budget holds at all smaller budgets.
        between: other plans of the frontier.
        bound: a lower bound on the cost of every plan, as the points of a line.
        references, other_points: plans to compare with, by their labels.
        unit: the unit of the costs.
        model: a name for the title; it may be "".
        path: where to write the picture; None writes nothing.
    """
    from matplotlib.ticker import MultipleLocator

    vertices = list(vertices)
    time = "recompute time" if vertices else "added time"
    price = time if unit == "ns" else f"cost ({unit})"
    figure = Picture(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    x, y = _columns(bound)
    axes.plot(x, y, "-", lw=1, color="#777777", label="proven bound", drawstyle="default" if vertices else "steps-pre")
    axes.fill_between(x, y, color="#eeeeee", zorder=0, step=None if vertices else "pre")
    if between := list(between):
        axes.plot(*_columns(between), "o", ms=4, color="#5aa0d8", label="plans between them" if vertices else "plans")
    if vertices:
        axes.plot(*_columns(vertices), "o", ms=6, color="#1f5f99", label="hull vertices, optimal")
    for (marker, color), (name, points) in zip(cycle(_STYLES), _checked(other_points).items(), strict=False):
        axes.plot(*_columns(points), marker, ms=6, ls="", fillstyle="none", color=color, label=name)
    for (marker, color), (name, points) in zip(_REFERENCE_STYLES, references.items(), strict=False):
        axes.plot(*_columns(points), marker, ms=9, ls="", mew=1.8, fillstyle="none", color=color, label=name)
    title = f"{model}: memory against {price}" if model else f"Memory against {price}"
    axes.set_title("\n".join(wrap(title, _TITLE)), fontsize=11)
    axes.set_xlabel("saved activations")
    axes.set_ylabel(price)
    axes.xaxis.set_major_locator(MultipleLocator(_round_step(axes.get_xlim())))
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(int(value)))
    axes.yaxis.set_major_formatter(lambda value, _: human_price(int(value), unit))
    axes.grid(alpha=0.3)
    axes.legend()
    write(figure, path)
    return figure


def draw_steps(
    ours: Iterable[tuple[str, int, float]],
    theirs: Iterable[tuple[str, int, float]],
    device: str,
    path: str | Path | None,
) -> Picture:
    """Draws points (source, peak in bytes, nanoseconds of the step): see `StepFrontier.plot`.

    Between two of our points the line is that of `StepFrontier.at`: the step of the smaller peak.
    """
    ours = list(ours)
    unit, size = axis_unit(max(peak for _, peak, _ in ours))
    longest_ns = max(step_ns for *_, step_ns in ours)
    time, ns = next((one for one in _TIMES if longest_ns >= one[1]), _TIMES[-1])
    figure = Picture(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    line = _columns((peak / size, step_ns / ns) for _, peak, step_ns in ours)
    axes.plot(*line, "o-", ms=5, color="#1f5f99", label="remat", drawstyle="steps-post")
    plot_one_liners(axes, [(source, peak / size, step_ns / ns) for source, peak, step_ns in theirs], fillstyle="none")
    title = "\n".join(wrap(f"Predicted training steps, {device}", _TITLE))
    axes.set_title(title, fontsize=11, parse_math=False)
    axes.set_xlabel(f"peak of activations and gradients, {unit}")
    axes.set_ylabel(f"step time, {time}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    write(figure, path)
    return figure


def plot_one_liners(axes: Axes, points: Iterable[tuple[str, float, float]], **style: Any) -> None:
    """Draws points (source, x, y) of what PyTorch gives in one line, each kind with its marker and its label."""
    points = list(points)
    for label, (marker, color, begins) in _ONE_LINERS.items():
        if of_kind := [(x, y) for source, x, y in points if source.startswith(begins)]:
            axes.plot(*_columns(of_kind), marker, color=color, label=label, **style)


def _checked(other_points: Mapping[str, Iterable[tuple[int, int]]]) -> dict[str, list[tuple[float, float]]]:
    try:
        return {label: [(float(x), float(y)) for x, y in points] for label, points in other_points.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise InvalidOption(f"other_points must map labels to (saved bytes, cost), got {other_points!r}") from None


def _round_step(limits: tuple[float, float]) -> int:
    """Returns a power of two that gives four to eight ticks, so that their labels are round numbers of KiB or MiB."""
    return 2 ** max(math.ceil(math.log2(max(limits[1] - limits[0], 8) / 8)), 0)


def _columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    rows = list(points)
    return [x for x, _ in rows], [y for _, y in rows]
