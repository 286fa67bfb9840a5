"""A picture of live bytes over the steps of a training step, stacked by why they are alive."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat import pictures
from remat.errors import RematError
from remat.predict.memory.timeline import WHYS, Timeline, Why
from remat.words import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: dict[Why, tuple[str, str]] = {
    "output": ("#c9c9c9", "outputs: the caller holds them"),
    "saved": ("#ffa940", "saved for the backward pass"),
    "gradient": ("#f59a93", "gradients"),
    "transient": ("#a9cbe6", "transient: read later in the same pass"),
}
"""Fill and legend of each reason; saved and gradients are coloured as `remat.show` colours them."""

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def draw(timeline: Timeline, path: str | Path | None = None) -> Figure:
    """Draws the bytes alive during each step, stacked by why; marks the peak and where the backward pass starts.

    Args:
        timeline: of `remat.predict.memory.simulator`.
        path: writes the picture there, in the format of the suffix: .svg, .png, .pdf.

    Returns:
        the figure; notebooks display it.

    Raises:
        NotInstalled: matplotlib is missing.
        RematError: the timeline has no steps, or matplotlib cannot write the picture.
    """
    pictures.check_installed()
    if not len(timeline):
        raise RematError("a timeline without steps cannot be drawn: neither pass computes anything")
    from remat.shown_figure import ShownFigure

    figure = ShownFigure(figsize=(8.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    unit, scale = next((unit, scale) for unit, scale in _UNITS if timeline.peak_bytes >= scale or scale == 1)
    _stack(axes, timeline, scale)
    axes.set_xlim(0, len(timeline))
    axes.set_ylim(0, max(1.25 * timeline.peak_bytes, 1) / scale)
    axes.set_xlabel("step (one computed value each)")
    axes.set_ylabel(f"live memory ({unit})")
    _boundary(axes, timeline)
    _peak(axes, timeline, scale)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize=9)
    if path is not None:
        pictures.write(figure, Path(path))
    return figure


def _stack(axes: Axes, timeline: Timeline, scale: int) -> None:
    """Flat over each step: a step is what happens between two positions on the axis."""
    edges = np.arange(len(timeline) + 1)
    below = np.zeros(len(timeline))
    for why in WHYS:
        fill, text = COLOURS[why]
        top = below + timeline.by_why[why] / scale
        if timeline.by_why[why].any():
            floor, roof = (np.append(level, level[-1]) for level in (below, top))
            axes.fill_between(edges, floor, roof, step="post", color=fill, linewidth=0, label=text)
        below = top


def _boundary(axes: Axes, timeline: Timeline) -> None:
    at = timeline.forward_steps
    axes.axvline(at, color="#444444", linewidth=1, linestyle="--")
    for x, word in ((at / 2, "forward"), ((at + len(timeline)) / 2, "backward")):
        if 0 < x < len(timeline):
            axes.text(x, 0.97, word, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=9)


def _peak(axes: Axes, timeline: Timeline, scale: int) -> None:
    x, y = timeline.peak_step + 0.5, timeline.peak_bytes / scale
    axes.plot([x], [y], marker="v", color="#222222", markersize=5)
    right = x > len(timeline) / 2
    axes.annotate(
        f"peak: {human_bytes(timeline.peak_bytes)}, {timeline.names[timeline.peak_step]}",
        (x, y),
        xytext=(-6 if right else 6, 5),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=9,
    )
