"""Makes the parts of a plot (axes with units, points, lines, the text under the pointer) and the figure of them.

Colours of text, grid and background are set by the page, which knows whether it is light or dark.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, cast

from remat.errors import NotInstalled
from remat.views.report.section import Figure, View

Trace = dict[str, Any]
Axis = dict[str, Any]

_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))
_LEGEND = 80
"""Characters of the longest name in a legend."""

_HOVER = "%{text}<extra></extra>"
_NS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1))
_FLOP = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1))


def check_installed() -> None:
    """Raises `NotInstalled` if what a report needs is missing."""
    missing = [package for package in ("plotly", "jinja2") if find_spec(package) is None]
    if missing:
        raise NotInstalled(f"a report needs {' and '.join(missing)}: pip install 'remat[report]'")


def text(value: object) -> str:
    """Escapes a name: Plotly reads a subset of HTML in every label."""
    return html.escape(str(value), quote=False)


def short(name: object, most: int) -> str:
    """Shortens a name so that it leaves room for the plot; its middle goes first. Tables and hovers show all of it."""
    words = str(name)
    kept = most - 1
    return words if len(words) <= most else f"{words[: kept - kept // 3]}\u2026{words[-(kept // 3) :]}"


def is_number(*values: Any) -> bool:
    """Says whether all are finite numbers."""
    return all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)


def is_positive(*values: Any) -> bool:
    """Says whether all can be drawn on an axis of logarithms."""
    return is_number(*values) and all(value > 0 for value in values)


def byte_unit(counts: Iterable[float]) -> tuple[str, float]:
    """Finds the largest unit of bytes in which the largest count is at least one, and the size of the unit."""
    return _unit(counts, _BYTES)


def price_unit(prices: Iterable[float], unit: str) -> tuple[str, float]:
    """Finds the unit for prices, and its size: of times, bytes and flops the one that fits; any other unit stays."""
    return _unit(prices, units) if (units := {"ns": _NS, "bytes": _BYTES, "flops": _FLOP}.get(unit)) else (unit, 1)


def _unit(numbers: Iterable[float], units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    largest = max((abs(number) for number in numbers), default=0)
    return next(((unit, scale) for unit, scale in units if largest >= scale), units[-1])


def axis(title: str, **more: Any) -> Axis:
    """Makes an axis that starts at zero; its title names the unit."""
    words = {"text": title, "font": {"size": 13}, "standoff": 10}
    return {
        "title": words,
        "automargin": True,
        "zeroline": False,
        "rangemode": "tozero",
        "ticklabelstandoff": 5,
        **more,
    }


def log_axis(title: str, numbers: Sequence[float], **more: Any) -> Axis:
    """Makes an axis of logarithms, with marks at 1, 2 and 5 of every power of ten; if they are many, at the powers."""
    decades = math.log10(max(numbers)) - math.log10(min(numbers)) if numbers else 0
    return axis(title, **{"type": "log", "tickformat": "~g", "dtick": "D2" if decades <= 4.5 else 1} | more)


def points(
    name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str] | None, *, mode: str = "markers", **more: Any
) -> Trace:
    """Draws points, or a line through them, each with its text; without texts the pointer does not find them."""
    found = {"hoverinfo": "skip"} if hover is None else {"text": list(hover), "hovertemplate": _HOVER}
    # What is clipped at an axis loses half of each marker that lies on it.
    whole = {"cliponaxis": False} if "markers" in mode else {}
    drawn = {"x": list(x), "y": list(y), **found, **whole, **more}
    return {"type": "scatter", "mode": mode, "name": text(short(name, _LEGEND)), **drawn}


def lines(*parts: object) -> str:
    """Writes the text of a hover: a line each, the first one bold; empty ones are left out."""
    shown = [text(part) for part in parts if part not in ("", None)]
    return "<br>".join([f"<b>{shown[0]}</b>", *shown[1:]])


def figure(
    title: str,
    alt: str,
    traces: Sequence[Trace],
    *,
    x: Axis,
    y: Axis,
    height: int = 440,
    menu: str = "",
    views: Sequence[View] = (),
    **layout: Any,
) -> Figure:
    """Makes a figure of these traces; Plotly's own schema checks it.

    Args:
        title: above the plot.
        alt: what it shows, in words.
        traces: what it draws.
        x, y: its axes, as the first view has them.
        height: in pixels; the width is that of the page.
        menu: what the views differ in.
        views: what it can show; the first one is shown first. A single one needs no menu.
        layout: anything else of the layout.
    """
    from plotly import graph_objects  # pyright: ignore[reportMissingTypeStubs]  # plotly ships none

    several = tuple(views) if len(views) > 1 else ()
    shown = set(views[0].traces) if views else set(range(len(traces)))
    data = [trace | {"visible": trace.get("visible", True) if i in shown else False} for i, trace in enumerate(traces)]
    whole = {"xaxis": x, "yaxis": y, "height": height, "template": "none", "showlegend": True, **layout}
    made = cast(Any, graph_objects).Figure(data=_finite(data), layout=_finite(whole)).to_plotly_json()
    del made["layout"]["template"]
    return Figure(title, alt, made["data"], made["layout"], menu if several else "", several)


def _finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON has not, by None, where Plotly leaves a gap."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in cast(dict[str, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in cast(Sequence[Any], value)]
    return value
