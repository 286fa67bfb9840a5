"""Draws compute, copies and device memory over a training step. It imports matplotlib."""

# matplotlib ships partial types, so pyright does not know the types of many methods.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from remat.facts.columns import IntArray
from remat.pictures import Picture, axis_unit, write
from remat.words import human_bytes

_LANES = (("compute", "#a9cbe6"), ("copies out", "#ffa940"), ("copies in", "#f59a93"))

Spans: TypeAlias = tuple[IntArray, IntArray]
"""The start and the end of each piece of work, in nanoseconds since the step began."""


def draw(
    spans: Sequence[Spans],
    device_bytes: IntArray,
    *,
    host_bytes: int,
    forward_ns: int,
    step_ns: int,
    path: str | Path | None,
) -> Picture:
    """Draws a training step that offloads, and writes the picture if there is a path: see `OffloadTimeline.show`.

    Args:
        spans: of compute, of the copies to the host, and of the copies back.
        device_bytes: the bytes on the device during each piece of compute.
    """
    figure = Picture(figsize=(8.0, 4.2), layout="constrained")
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.5])
    for row, ((_, colour), (start, end)) in enumerate(zip(_LANES, spans, strict=True)):
        lanes.broken_barh(_joined(start, end), (-row - 0.4, 0.8), facecolors=colour, linewidth=0)
    lanes.set_yticks([0, -1, -2], [name for name, _ in _LANES])
    lanes.set_title(f"A step with {human_bytes(host_bytes)} on the host", fontsize=11)
    peak_bytes = int(device_bytes.max(initial=0))
    unit, scale = axis_unit(peak_bytes)
    edges = np.append(spans[0][0], step_ns) / 1e6
    held = np.append(device_bytes, device_bytes[-1:]) / scale if len(device_bytes) else np.zeros(1)
    memory.fill_between(edges, held, step="post", color="#ffd9a8", linewidth=0)
    memory.set_ylim(0, 1.15 * max(peak_bytes / scale, 1e-9))
    memory.set_xlim(0, max(step_ns / 1e6, 1e-9))
    memory.set_ylabel(f"on the device ({unit})")
    memory.set_xlabel("modelled time of the step (ms)")
    for axes in (lanes, memory):
        axes.axvline(forward_ns / 1e6, color="#444444", linewidth=1, linestyle="--")
    memory.text(forward_ns / 1e6, 1.1 * peak_bytes / scale, " backward", fontsize=9, va="top")
    write(figure, path)
    return figure


# Merges spans that touch; returns (start, length) in milliseconds.
def _joined(start: IntArray, end: IntArray) -> list[tuple[float, float]]:
    took = end > start
    start, end = start[took], end[took]
    if not len(start):
        return []
    first = np.append(True, start[1:] > end[:-1])
    last = np.append(first[1:], True)
    begin, until = start[first] / 1e6, end[last] / 1e6
    return list(zip(begin.tolist(), (until - begin).tolist(), strict=True))
