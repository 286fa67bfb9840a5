"""What every picture asks of matplotlib: that it is there, and that it knows the format."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from remat.errors import NotInstalled, RematError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_installed() -> None:
    """Raises `NotInstalled` if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise NotInstalled("pictures need matplotlib: pip install 'remat[plot]'")


def write(figure: Figure, path: Path) -> None:
    """Writes a picture in the format of the suffix.

    Raises:
        RematError: matplotlib knows no such format.
    """
    known = figure.canvas.get_supported_filetypes()
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in known:
        raise RematError(f"{path}: the suffix must be one of {', '.join(sorted(known))}, got {path.suffix!r}")
    figure.savefig(path, dpi=150)
