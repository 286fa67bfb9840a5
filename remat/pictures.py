"""Holds the figure that every picture of the library is drawn on, and writes it to a file.

This module imports matplotlib: import it where a picture is drawn, inside the call.
"""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

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

try:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
except ImportError as error:
    raise NotInstalled("pictures need matplotlib: pip install 'remat[plot]'") from error


class Picture(Figure):
    """Makes a figure that a notebook displays where it is the result of a cell.

    A notebook displays matplotlib's own figures only after pyplot has been set up, and prints their size before.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.titles: dict[str, str] = {}

    def entitle(self, artists: Iterable[Artist], text: str) -> None:
        """Gives what is drawn a text that browsers show under the pointer, where the picture is an .svg."""
        for artist in artists:
            name = f"titled-{len(self.titles)}"
            artist.set_gid(name)
            self.titles[name] = text

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


def write(figure: Figure, path: str | Path) -> None:
    """Writes a figure in the format of the suffix.

    Raises:
        InvalidOption: it is no path, or matplotlib knows no such format.
    """
    path, known = checked_path(path), figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise InvalidOption(f"{path}: the suffix must be one of {', '.join(sorted(known))}, got {path.suffix!r}")
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    data = drawn.getvalue()
    if path.suffix.lower() == ".svg" and isinstance(figure, Picture):
        titled = re.compile('<g id="(titled-[0-9]+)">')  # matplotlib writes no titles itself
        svg = data.decode()
        data = titled.sub(lambda group: f"{group[0]}<title>{escape(figure.titles[group[1]])}</title>", svg).encode()
    write_file(path, data)
