"""Gives each name a colour and a marker: the same ones in every figure.

Each colour has a contrast of at least 3:1 on a white page and on a dark one (WCAG 2, 1.4.11). Markers tell
apart what colours alone would not, for those who see fewer of them.
"""

from __future__ import annotations

import zlib
from functools import cache

from remat.answer.registry import solver_names

BLUE, AMBER, GREEN, RED = "#2176b5", "#b07c00", "#12926b", "#d2591b"
VIOLET, SKY, PINK, BROWN, GREY = "#8566c9", "#2a97d1", "#c26a9d", "#96663a", "#808080"

PALETTE = (BLUE, AMBER, GREEN, RED, VIOLET, SKY, PINK, BROWN)
"""For names that have no colour of their own; grey stands for bounds and baselines."""

MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "hexagon", "cross")


def colour(name: str) -> str:
    """Chooses the colour of a solver, or of whatever has a name."""
    place = _place(name)
    return PALETTE[(_number(name) if place is None else place) % len(PALETTE)]


def marker(name: str) -> str:
    """Chooses the marker that goes with the colour, by Plotly's name."""
    place = _place(name)
    return MARKERS[(_number(name) // len(PALETTE) if place is None else place) % len(MARKERS)]


@cache
def _place(name: str) -> int | None:
    """Returns the place of a solver: solvers take colours in turn, so that few of them look alike."""
    known = solver_names()
    return known.index(name) if name in known else None


def _number(name: str) -> int:
    """Hashes a name to the same number in every process, which `hash` does not."""
    return zlib.crc32(name.encode(errors="backslashreplace"))
