"""Holds what a report is made of: a section for each file, with parts, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Provenance = Mapping[str, str]


@dataclass(frozen=True)
class View:
    """Describes one of the views that a figure can show.

    Attributes:
        label: what the menu says.
        traces: positions of the traces that it shows.
        layout: what it changes in the layout, say the title of an axis.
    """

    label: str
    traces: tuple[int, ...]
    layout: Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """Holds a plot.

    Attributes:
        title: above it.
        text: what it shows, in words: also for those who cannot see it.
        data, layout: as Plotly takes them; without NaN.
        menu: what the views differ in, say "cost model".
        views: what the menu offers; none if there is only one.
    """

    title: str
    text: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    menu: str = ""
    views: tuple[View, ...] = ()


@dataclass(frozen=True)
class Table:
    """Holds rows under headings. The columns are the keys of all rows, in the order in which they come first.

    Attributes:
        caption: above it.
        rows: raw values; how they read is decided by the names of their columns (`remat.views.report.cells`).
    """

    caption: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Part:
    """Holds figures and tables about one thing."""

    title: str
    text: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Section:
    """Holds what one file says.

    Attributes:
        kind: what the file is, in words.
        text: what to know before one looks at the parts; may be "".
        parts: what it shows.
        provenance: of each run that made it; facts by name: commit, date, command, machine, device, ....
    """

    kind: str
    text: str
    parts: tuple[Part, ...]
    provenance: tuple[Provenance, ...] = ()

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The figures of all parts."""
        return tuple(figure for part in self.parts for figure in part.figures)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables of all parts."""
        return tuple(table for part in self.parts for table in part.tables)


@dataclass(frozen=True)
class ReportedFile:
    """Holds what one file of results is called, and what it says.

    Attributes:
        name: of the file, without its folder.
        sha256: of its bytes.
        size_bytes: how many there are.
        section: what it says.
    """

    name: str
    sha256: str
    size_bytes: int
    section: Section
