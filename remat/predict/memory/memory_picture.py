"""Draws live bytes over the steps of a training step, stacked by reason. It imports matplotlib."""

# matplotlib ships partial types, so pyright does not know the types of many methods.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat.facts.columns import IntArray
from remat.pictures import Picture, axis_unit, write
from remat.words import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Fill and legend of each reason, in the colours of `remat.show`.
_COLOURS = {
    "output": ("#c9c9c9", "outputs: the caller holds them"),
    "saved": ("#ffa940", "saved for the backward pass"),
    "gradient": ("#f59a93", "gradients"),
    "offloaded": ("#c9b6f2", "offloaded: not yet on the host, or back"),
    "transient": ("#a9cbe6", "transient: read later in the same pass"),
}


def draw(
    names: Sequence[str],
    live_bytes: Mapping[str, IntArray],
    forward_steps: int,
    peak_step: int,
    path: str | Path | None,
) -> Picture:
    """Draws the memory of T > 0 steps, and writes the picture if there is a path: see `Timeline.show`.

    Args:
        names: the value that each step computes or copies.
        live_bytes: for each reason, the bytes (T,) that it keeps alive during each step; the first is at the bottom.
    """
    figure = Picture(figsize=(8.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    peak_bytes = sum(int(live[peak_step]) for live in live_bytes.values())
    unit, scale = axis_unit(peak_bytes)
    _stack(axes, len(names), live_bytes, scale)
    axes.set_xlim(0, len(names))
    axes.set_ylim(0, max(1.25 * peak_bytes, 1) / scale)
    axes.set_title("Live memory over one training step", fontsize=11)
    axes.set_xlabel("step (a kernel, or one computed value)")
    axes.set_ylabel(f"live memory ({unit})")
    _mark_passes(axes, forward_steps, len(names))
    _mark_peak(axes, peak_step + 0.5, peak_bytes / scale, f"peak: {human_bytes(peak_bytes)}, {names[peak_step]}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize=9)
    write(figure, path)
    return figure


# A step is the interval between two positions on the axis; the bytes are constant over it.
def _stack(axes: Axes, steps: int, live_bytes: Mapping[str, IntArray], scale: int) -> None:
    edges = np.arange(steps + 1)
    below = np.zeros(steps)
    for why, live in live_bytes.items():
        fill, text = _COLOURS[why]
        top = below + live / scale
        if live.any():
            floor, roof = (np.append(level, level[-1]) for level in (below, top))
            axes.fill_between(edges, floor, roof, step="post", color=fill, linewidth=0, label=text)
        below = top


def _mark_passes(axes: Axes, forward_steps: int, steps: int) -> None:
    axes.axvline(forward_steps, color="#444444", linewidth=1, linestyle="--")
    for x, word in ((forward_steps / 2, "forward"), ((forward_steps + steps) / 2, "backward")):
        if 0 < x < steps:
            axes.text(x, 0.97, word, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=9)


def _mark_peak(axes: Axes, x: float, y: float, text: str) -> None:
    axes.plot([x], [y], marker="v", color="#222222", markersize=5)
    side, shift = ("right", -6) if x > axes.get_xlim()[1] / 2 else ("left", 6)
    axes.annotate(text, (x, y), xytext=(shift, 5), textcoords="offset points", ha=side, fontsize=9)
