"""Holds the figure that every picture of the library is drawn on, and writes it to a file.

This module imports matplotlib: import it where a picture is drawn, inside the call.
"""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from remat.errors import InvalidOption, NotInstalled
from remat.facts.given import checked_path

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise NotInstalled("pictures need matplotlib: pip install 'remat[plot]'") from error


class Picture(Figure):
    """Makes a figure that a notebook displays where it is the result of a cell.

    A notebook displays matplotlib's own figures only after pyplot has been set up, and prints their size before.
    """

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
    figure.savefig(path, dpi=150)
