"""Draws a joint graph and what a plan does with it: `remat.show`."""

# matplotlib ships partial types, so pyright does not know the types of many methods.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan, checked_plan
from remat.errors import RematError, UnknownName
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region, checked_graph
from remat.views.layout import Layout, layered
from remat.words import human_bytes, near, placed

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from remat.pictures import Picture

LARGEST = 300
"""The most values in one picture; with more, labels are too small to read."""

_FONT = 9
# Width of a character of the monospaced labels, in inches, at `_FONT` points.
_LETTER = 0.078
_SMALL = 7
_HEIGHT = 0.42
_DROP = 0.78
_GAP = 0.25
_LEGEND_WIDTH = 3.0
# Characters in a line of the title, so that it is no wider than the legend.
_TITLE = 40
_Point = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """Describes how the nodes of one kind are drawn, with the text of the legend."""

    text: str
    fill: str
    edge: str
    line: Literal["-", "--"] = "-"
    width: float = 1.0


INPUT = Style("input", "#e4e4e4", "#9a9a9a")
FORWARD = Style("forward pass only", "#dcedd3", "#8fb57d")
SAVED = Style("saved", "#ffa940", "#b35f00", width=2.2)
OFFLOADED = Style("offloaded: waits on the host", "#c9b6f2", "#5a3da8", width=2.2)
SAVED_INPUT = Style("saved input: takes no memory", "#ffdfb5", "#b35f00", width=1.4)
RECOMPUTED = Style("recomputed in the backward pass", "#ffffff", "#333333", width=1.4)
DEFERRED = Style("computed in the backward pass alone", "#ffffff", "#8a8a8a", line="--")
TANGENTS = Style("depends on gradients", "#f59a93", "#b5443b")
PLAIN_FORWARD = Style("forward pass", FORWARD.fill, FORWARD.edge)
EITHER = Style("needed by the backward pass alone", DEFERRED.fill, DEFERRED.edge, line="--")


def show(
    graph: Graph,
    plan: Plan | None = None,
    path: str | Path | None = None,
    *,
    around: str | Iterable[str] | None = None,
    hops: int = 2,
) -> Figure:
    """Draws a joint graph from top to bottom, each value in the colour of what the plan does with it.

    Saved values are orange, offloaded ones violet, recomputed ones white, values that depend on gradients red, inputs
    grey, and values of the forward pass alone green. Orange and violet arrows lead from saved values to their readers
    in the backward pass. Below its name, a value has its size and, if known, its source line. In an .svg, the tooltip
    has the operator and the module, too.

    Args:
        graph: up to 300 values, or a larger one with `around`.
        plan: what to save, offload and recompute; without it, the colours show the passes.
        path: a file to write, in the format of its suffix: .svg, .png, .pdf.
        around: draw only these values and their neighbourhood.
        hops: the radius of the neighbourhood, in uses.

    Returns:
        the figure; notebooks display it.

    Raises:
        NotInstalled: matplotlib is missing.
        InvalidOption: matplotlib has no format of that suffix.
        RematError: the picture would have more than 300 values.
        UnknownName, InvalidPlan: a name is not a value of the graph.
    """
    from remat.pictures import Picture, write  # imports matplotlib

    checked_graph(graph)
    if plan is not None:
        checked_plan(plan)
    shown = np.ones(len(graph), np.bool_) if around is None else _neighbourhood(graph, around, hops)
    if int(shown.sum()) > LARGEST:
        raise RematError(
            f"a picture can hold {LARGEST} values, got {int(shown.sum())}; name values to draw around (around, "
            f"--around) and few steps from them (hops, --hops)"
        )
    figure = Picture()
    _draw(figure, graph, plan, np.flatnonzero(shown))
    write(figure, path)
    return figure


def styles(graph: Graph, plan: Plan | None) -> list[Style]:
    region = graph.region
    if plan is None:
        by_region = {Region.FORWARD: PLAIN_FORWARD, Region.TANGENTS: TANGENTS, Region.EITHER: EITHER}
        return [INPUT if graph.input[i] else by_region[Region(region[i])] for i in range(len(graph))]
    choice = Choice.from_plan(graph, plan, offload=True)
    saved, recomputed = choice.saved, choice.recomputed
    forward = region == Region.FORWARD
    choices = (
        (region == Region.TANGENTS, TANGENTS),
        (saved & graph.input[graph.base], SAVED_INPUT),
        (saved & choice.offloaded[graph.base], OFFLOADED),
        (saved, SAVED),
        (recomputed & forward, RECOMPUTED),
        (recomputed, DEFERRED),
        (graph.input, INPUT),
    )
    return [next((style for mask, style in choices if mask[i]), FORWARD) for i in range(len(graph))]


def _neighbourhood(graph: Graph, around: str | Iterable[str], hops: int) -> BoolArray:
    near_by = np.zeros(len(graph), np.bool_)
    for name in [around] if isinstance(around, str) else around:
        if name not in graph.index:
            raise UnknownName(f"the graph has no value named {name!r}{near(name, graph.names)}")
        near_by[graph.index[name]] = True
    for _ in range(hops):
        touched = near_by[graph.producers] | near_by[graph.consumers]
        near_by[graph.producers[touched]] = near_by[graph.consumers[touched]] = True
    return near_by


def _draw(figure: Picture, graph: Graph, plan: Plan | None, values: IntArray) -> None:
    indices: list[int] = values.tolist()
    position = {i: k for k, i in enumerate(indices)}
    uses = zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True)
    edges = [(position[u], position[v]) for u, v in uses if u in position and v in position]
    labels = [_label(graph, i) for i in indices]
    widths = [max(0.5, 0.2 + _LETTER * max(len(label[0]), _SMALL / _FONT * len(label[-1]))) for label in labels]
    every = styles(graph, plan)
    chosen = [every[i] for i in indices]
    rank = [float(style is TANGENTS) for style in chosen]
    layout = layered(edges, widths, rank, gap=_GAP, drop=_DROP)

    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    title = _title(graph, plan, len(indices))
    _frame(figure, axes, layout, widths, len(set(chosen)) + title.count("\n") + 1)
    for (u, v), route in zip(edges, layout.routes, strict=True):
        _arrow(axes, route, _CROSSING.get(chosen[u], "") if chosen[v] in _BACKWARD else "")
    for k, (i, label, style) in enumerate(zip(indices, labels, chosen, strict=True)):
        drawn = _node(axes, (layout.x[k], layout.y[k]), widths[k], label, style)
        figure.entitle(drawn, placed(graph.names[i], graph.ops[i], graph.places[i]))
    _legend(axes, [style for style in _LEGEND if style in chosen], title)


_LEGEND = (INPUT, FORWARD, PLAIN_FORWARD, SAVED, OFFLOADED, SAVED_INPUT, RECOMPUTED, DEFERRED, EITHER, TANGENTS)
# The colour of the arrows from saved values into the backward pass.
_CROSSING = {SAVED: "#e07b00", SAVED_INPUT: "#e07b00", OFFLOADED: "#6d4fc0"}
_BACKWARD = {RECOMPUTED, DEFERRED, TANGENTS}


def _title(graph: Graph, plan: Plan | None, drawn: int) -> str:
    what = "joint graph" if plan is None else "joint graph and plan"
    part = f", {drawn} of {len(graph)} values" if drawn < len(graph) else ""
    model = graph.meta.get("model")
    return "\n".join(wrap(f"{model}: {what}{part}" if model else f"{what}{part}".capitalize(), _TITLE))


def _label(graph: Graph, i: int) -> tuple[str, ...]:
    size = human_bytes(int(graph.bytes[i])) if graph.bytes[i] else ""
    below = "  ".join(filter(None, (size, graph.sources[i])))
    return (graph.names[i], below) if below else (graph.names[i],)


# One unit of data is one inch of paper, y grows downwards, and the legend is at the top.
def _frame(figure: Figure, axes: Axes, layout: Layout, widths: list[float], kinds: int) -> None:
    margin, legend = 0.2, 0.2 * kinds + 0.1
    bends = [x for route in layout.routes for x, _ in route]
    left = min([*bends, *(x - w / 2 for x, w in zip(layout.x, widths, strict=True))], default=0.0) - margin
    right = max([*bends, *(x + w / 2 for x, w in zip(layout.x, widths, strict=True))], default=0.0) + margin
    right = max(right, left + _LEGEND_WIDTH)
    bottom = max(layout.y, default=0.0) + _HEIGHT / 2 + margin
    top = -_HEIGHT / 2 - margin - legend
    figure.set_size_inches(right - left, bottom - top)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)


# A smooth curve through the bends of an edge (Catmull and Rom), vertical at both ends. `carries` is the colour of an
# arrow from a saved value to the backward pass; "" makes a thin grey one.
def _arrow(axes: Axes, route: tuple[_Point, ...], carries: str) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Curve

    points, slopes = _through(route)
    vertices, codes = [points[0]], [Curve.MOVETO]
    for a, b, leave, enter in zip(points, points[1:], slopes, slopes[1:], strict=False):
        vertices += [(a[0] + leave[0] / 3, a[1] + leave[1] / 3), (b[0] - enter[0] / 3, b[1] - enter[1] / 3), b]
        codes += [Curve.CURVE4] * 3
    colour, width, order = (carries, 1.8, 1.5) if carries else ("#7a7a7a", 0.9, 1.0)
    arrow = FancyArrowPatch(path=Curve(vertices, codes), arrowstyle="-|>", mutation_scale=9, shrinkA=0, shrinkB=0)
    arrow.set(color=colour, linewidth=width, zorder=order)
    axes.add_patch(arrow)


# Points and slopes of a curve that avoids the boxes on both sides of a bend.
def _through(route: tuple[_Point, ...]) -> tuple[list[_Point], list[_Point]]:
    (x0, y0), *_, (x1, y1) = route
    half, down = _HEIGHT / 2, (0.0, _DROP)
    points, slopes = [(x0, y0 + half)], [down]
    for (ax, _), (x, y), (bx, _) in zip(route, route[1:], route[2:], strict=False):
        if max(abs(ax - x), abs(bx - x)) > _HEIGHT:  # a wide turn: straight down between the boxes
            points += [(x, y - half), (x, y + half)]
            slopes += [down, down]
        else:
            points.append((x, y))
            slopes.append(((bx - ax) / 2, _DROP))
    return [*points, (x1, y1 - half)], [*slopes, down]


def _node(axes: Axes, centre: tuple[float, float], width: float, label: tuple[str, ...], style: Style) -> list[Artist]:
    from matplotlib.patches import FancyBboxPatch

    x, y = centre
    round_ = 0.09
    corner = x - width / 2 + round_, y - _HEIGHT / 2 + round_
    box = FancyBboxPatch(corner, width - 2 * round_, _HEIGHT - 2 * round_, boxstyle=f"round,pad={round_}", zorder=2)
    box.set(facecolor=style.fill, edgecolor=style.edge, linestyle=style.line, linewidth=style.width, label=label[0])
    first = y if len(label) == 1 else y - 0.075
    drawn: list[Artist] = [
        axes.add_patch(box),
        axes.text(x, first, label[0], ha="center", va="center", fontsize=_FONT, family="monospace", zorder=3),
    ]
    if len(label) > 1:
        below = axes.text(x, y + 0.1, label[1], ha="center", va="center", fontsize=_SMALL, color="#555555", zorder=3)
        drawn.append(below)
    return drawn


def _legend(axes: Axes, entries: list[Style], title: str) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=s.fill, edgecolor=s.edge, linestyle=s.line, linewidth=s.width, label=s.text) for s in entries
    ]
    look: dict[str, Any] = {"frameon": False, "fontsize": _FONT, "borderaxespad": 0.6}
    axes.legend(handles=handles, loc="upper left", title=title, title_fontsize=_FONT + 1, alignment="left", **look)
