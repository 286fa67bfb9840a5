"""Makes what only our own plots have: bars, an axis of bytes, an axis of names."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from remat.views.report import plots
from remat.words import human_bytes

_LABEL = 40
"""Characters of the longest label of an axis."""

_ROOM = 0.6
"""Around equal numbers on an axis of bytes, in doublings: a difference of a few bytes must not fill the plot."""


def byte_axis(title: str, counts: Sequence[float]) -> plots.Axis:
    """Makes an axis of logarithms of bytes, with marks at powers of two, of which at least one is in sight."""
    low, high = (math.log2(end(counts)) for end in (min, max))
    step = next((step for step in (1, 2, 5, 10) if (high - low) / step <= 8), 20)
    room = max(_ROOM, 0.05 * (high - low))
    last = min(math.ceil(high + room), sys.float_info.max_exp)
    powers = range(step * math.floor(low / step), last, step)
    marks = [2**power for power in powers if power >= 0]
    names = [human_bytes(mark).replace(".0 ", " ") for mark in marks]
    ends = [math.log10(2) * end for end in (low - room, high + room)]
    return plots.axis(title, type="log", tickvals=marks, ticktext=names, range=ends)


def categories(names: Sequence[str]) -> plots.Axis:
    """Makes an axis of names, the first one on top. It has no title: they say what they are."""
    unique = list(dict.fromkeys(names))
    shown = [plots.text(name) for name in unique]
    order = {"categoryorder": "array", "categoryarray": shown, "autorange": "reversed"}
    labels = {"tickvals": shown, "ticktext": [plots.text(plots.short(name, _LABEL)) for name in unique]}
    return {"type": "category", "automargin": True, "zeroline": False, "ticklabelstandoff": 6, **order, **labels}


def bars(name: str, labels: Sequence[str], lengths: Sequence[Any], hover: Sequence[str], **more: Any) -> plots.Trace:
    """Draws horizontal bars."""
    shown = [plots.text(label) for label in labels]
    trace = plots.points(name, lengths, shown, hover, orientation="h", textposition="none", **more)
    del trace["mode"]
    return trace | {"type": "bar"}
