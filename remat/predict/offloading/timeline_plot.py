"""Draws compute and copies over a training step, and what the device holds meanwhile. It imports matplotlib."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat.facts.columns import IntArray
from remat.pictures import Picture, write
from remat.words import human_bytes

if TYPE_CHECKING:
    from remat.predict.offloading.timeline import OffloadTimeline

_LANES = (("compute", "#a9cbe6"), ("copies out", "#ffa940"), ("copies in", "#f59a93"))
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def draw(line: OffloadTimeline, path: str | Path | None) -> Picture:
    """Draws a timeline: see `OffloadTimeline.show`.

    Args:
        line: the timeline.
        path: where to write the picture.
    """
    figure = Picture(figsize=(8.0, 4.2), layout="constrained")
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.5])
    spans = (
        (line.start_ns, line.end_ns),
        (line.out.start_ns, line.out.end_ns),
        (line.back.start_ns, line.back.end_ns),
    )
    for row, ((_, colour), (start, end)) in enumerate(zip(_LANES, spans, strict=True)):
        lanes.broken_barh(_joined(start, end), (-row - 0.4, 0.8), facecolors=colour, linewidth=0)
    lanes.set_yticks([0, -1, -2], [name for name, _ in _LANES])
    lanes.set_title(f"A step with {human_bytes(line.host_bytes)} on the host", fontsize=11)
    unit, scale = next((unit, scale) for unit, scale in _UNITS if line.peak_bytes >= scale or scale == 1)
    edges = np.append(line.start_ns, line.ns) / 1e6
    held = np.append(line.device_bytes, line.device_bytes[-1:]) / scale if len(line.names) else np.zeros(1)
    memory.fill_between(edges, held, step="post", color="#ffd9a8", linewidth=0)
    memory.set_ylim(0, 1.15 * max(line.peak_bytes / scale, 1e-9))
    memory.set_xlim(0, max(line.ns / 1e6, 1e-9))
    memory.set_ylabel(f"on the device ({unit})")
    memory.set_xlabel("modelled time of the step (ms)")
    for axes in (lanes, memory):
        axes.axvline(line.forward_ns / 1e6, color="#444444", linewidth=1, linestyle="--")
    memory.text(line.forward_ns / 1e6, 1.1 * line.peak_bytes / scale, " backward", fontsize=9, va="top")
    if path is not None:
        write(figure, path)
    return figure


def _joined(start: IntArray, end: IntArray) -> list[tuple[float, float]]:
    """Spans as (start, length) in milliseconds, those that touch as one."""
    took = end > start
    start, end = start[took], end[took]
    if not len(start):
        return []
    first = np.append(True, start[1:] > end[:-1])
    last = np.append(first[1:], True)
    begin, until = start[first] / 1e6, end[last] / 1e6
    return list(zip(begin.tolist(), (until - begin).tolist(), strict=True))
