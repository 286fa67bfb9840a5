"""Defines the figure class of all pictures of the library, and writes figures to files.

This module imports matplotlib: import it inside the call that draws.
"""

# matplotlib ships partial types, so pyright does not know the types of many methods.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from remat.errors import InvalidOption, NotInstalled
from remat.facts.argument_checks import checked_path
from remat.facts.files import write_file
from remat.words import pip_install

try:
    from matplotlib import rc_context
    from matplotlib.artist import Artist
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure
except ImportError as error:
    raise NotInstalled(f"pictures need matplotlib: {pip_install('plot')}") from error


class Picture(Figure):
    """Extends matplotlib's figure so that notebooks display it as the result of a cell.

    A notebook displays matplotlib's own figures only after pyplot was set up; until then it prints their size.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.titles: dict[str, str] = {}

    def entitle(self, artists: Iterable[Artist], text: str) -> None:
        """Gives drawn objects a tooltip in browsers, if the picture is an .svg."""
        for artist in artists:
            name = f"titled-{len(self.titles)}"
            artist.set_gid(name)
            self.titles[name] = text

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


def axis_unit(most_bytes: int) -> tuple[str, int]:
    """Returns the unit for an axis of memory whose largest value is given, and the bytes of that unit."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next((unit for unit in units if most_bytes >= unit[1]), ("bytes", 1))


def write(figure: Figure, path: str | Path | None) -> None:
    """Writes a figure in the format of the suffix; without a path it does nothing.

    Raises:
        InvalidOption: `path` is no path, or matplotlib has no such format.
    """
    if path is not None:
        path = checked_picture(path)
        write_file(path, encode(figure, path.suffix[1:].lower()))


def checked_picture(path: str | Path) -> Path:
    """Returns the path of a picture, in an existing folder and with a suffix that matplotlib knows.

    Raises:
        InvalidOption: `path` is no such path.
    """
    path, formats = checked_path(path), FigureCanvasBase.filetypes
    if path.suffix.removeprefix(".").lower() not in formats:
        raise InvalidOption(f"{path}: the suffix must be one of {', '.join(sorted(formats))}, got {path.suffix!r}")
    if not path.parent.is_dir():
        raise InvalidOption(f"{path} must be in a folder that exists, got {path.parent}: make it first")
    return path


def encode(figure: Figure, kind: str) -> bytes:
    """Encodes a figure in a format of matplotlib; the same figure always gives the same .svg."""
    buffer = BytesIO()
    with rc_context({"svg.hashsalt": "remat"}):  # without it, ids in an .svg differ from run to run
        figure.savefig(buffer, dpi=150, format=kind, metadata={"Date": None} if kind == "svg" else None)
    if kind != "svg" or not isinstance(figure, Picture):
        return buffer.getvalue()
    group_id = re.compile('<g id="(titled-[0-9]+)">')  # matplotlib writes no titles itself
    svg = buffer.getvalue().decode()
    return group_id.sub(lambda group: f"{group[0]}<title>{escape(figure.titles[group[1]])}</title>", svg).encode()
