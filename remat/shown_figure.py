"""A picture that notebooks display. Imports matplotlib: import this module inside a call."""

# matplotlib ships partial types: what its methods take and return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that is displayed where it is the result of a cell.

    A notebook displays matplotlib's own figures only after pyplot has been set up, and prints their size before.
    """

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()
