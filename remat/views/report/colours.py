"""A colour and a marker for each name: the same one for the same name in every figure.

Each colour has a contrast of at least 3:1 on a white page and on a dark one (WCAG 2, 1.4.11). Markers tell
apart what colours alone would not, for those who see fewer of them.
"""

from __future__ import annotations

import re
import zlib

BLUE, AMBER, GREEN, RED = "#2176b5", "#b07c00", "#12926b", "#d2591b"
VIOLET, SKY, PINK, BROWN, GREY = "#8566c9", "#2a97d1", "#c26a9d", "#96663a", "#808080"

PALETTE = (BLUE, AMBER, GREEN, RED, VIOLET, SKY, PINK, BROWN)
"""For names that have no colour of their own; grey stands for bounds and baselines."""

MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "hexagon", "cross")

_KNOWN: dict[str, tuple[str, str]] = {
    "ortools": (BLUE, "circle"),
    "scipy": (AMBER, "square"),
    "networkx": (GREEN, "diamond"),
    "pulp": (RED, "triangle-up"),
    "cpsat": (VIOLET, "triangle-down"),
    "lagrangian": (SKY, "pentagon"),
    "knapsack-greedy": (PINK, "star"),
    "knapsack-dp": (BROWN, "hexagon"),
    "exhaustive": (GREY, "cross"),
    "remat": (BLUE, "circle"),
    "torch": (RED, "square"),
    "PyTorch": (RED, "square"),
    "PyTorch, aggressive": (RED, "square-open"),
    "autograd's saves": (GREY, "cross"),
    "classic cut": (GREEN, "triangle-up"),
    "classic cut, aggressive": (GREEN, "triangle-up-open"),
    "multi-read cut": (AMBER, "diamond"),
    "multi-read cut, aggressive": (AMBER, "diamond-open"),
    "shared write": (VIOLET, "triangle-down"),
    "shared write, aggressive": (VIOLET, "triangle-down-open"),
    "shared write, saving no more": (PINK, "pentagon"),
    "shared write, saving no more, aggressive": (PINK, "pentagon-open"),
    "refined, by model": (SKY, "circle"),
    "refined, by inductor": (BLUE, "circle"),
}

_SIDE = re.compile(r"[,:] ")


def colour(name: str, otherwise: str | None = None) -> str:
    """The colour of a solver, a strategy, or whatever has a name; of an unknown name, `otherwise` if it is given."""
    known = _known(name)
    return known[0] if known else otherwise or PALETTE[_number(name) % len(PALETTE)]


def marker(name: str) -> str:
    """Its marker, by Plotly's name."""
    known = _known(name)
    return known[1] if known else MARKERS[_number(name) // len(PALETTE) % len(MARKERS)]


def _known(name: str) -> tuple[str, str] | None:
    """Of "remat, the whole frontier" and "PyTorch: its own choice", too."""
    return _KNOWN.get(name) or _KNOWN.get(_SIDE.split(name)[0])


def _number(name: str) -> int:
    """The same in every process, which `hash` is not."""
    return zlib.crc32(name.encode(errors="backslashreplace"))
