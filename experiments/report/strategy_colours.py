"""Gives each strategy and each side of our experiments the same colour and marker in every figure."""

from __future__ import annotations

import re

from remat.views.report import colours
from remat.views.report.colours import AMBER, BLUE, GREEN, GREY, PINK, RED, SKY, VIOLET

_KNOWN: dict[str, tuple[str, str]] = {
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
    """Chooses the colour of a name; of an unknown one, `otherwise` if it is given."""
    known = _known(name)
    return known[0] if known else otherwise or colours.colour(name)


def marker(name: str) -> str:
    """Chooses the marker that goes with the colour, by Plotly's name."""
    known = _known(name)
    return known[1] if known else colours.marker(name)


def _known(name: str) -> tuple[str, str] | None:
    """Finds colour and marker of a name; "remat, the whole frontier" and "PyTorch: its own" have their side's."""
    return _KNOWN.get(name) or _KNOWN.get(_SIDE.split(name)[0])
