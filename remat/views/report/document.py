"""A report: what each file says, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from remat.answer.registry import DEFAULT_ESTIMATOR
from remat.errors import InvalidOption
from remat.views.report.plots import check_installed
from remat.views.report.readers import Options, read
from remat.views.report.section import Section
from remat.views.report.source import Source


@dataclass(frozen=True)
class Entry:
    """A file and what it says.

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


@dataclass(frozen=True)
class Page:
    """A report. The same files give the same bytes.

    Attributes:
        title: its heading.
        entries: one a file, in the order given.
    """

    title: str
    entries: tuple[Entry, ...]

    @classmethod
    def of(
        cls,
        paths: Iterable[str | Path],
        *,
        title: str = "remat report",
        estimator: str = DEFAULT_ESTIMATOR,
        refine: int = 16,
    ) -> Page:
        """Reads files of results.

        Args:
            paths: graph files, frontiers, solver comparisons (JSON, CSV, parquet), results of experiments.
            title: the heading of the report.
            estimator: of graph files: what prices recomputing.
            refine: of graph files: how many budgets are solved between the ends of the frontier.

        Raises:
            InvalidOption: there is no path.
            NotInstalled: plotly or jinja2 is missing; or a file is parquet, and pyarrow is.
            OSError: a file cannot be read.
            RematError: a file is of no kind that a report understands, or it is damaged.
        """
        check_installed()
        sources = [Source.read(path) for path in paths]
        if not sources:
            raise InvalidOption("paths must name at least one file of results, got none")
        options = Options(estimator, refine)
        return cls(
            title,
            tuple(
                Entry(source.path.name, source.sha256, len(source.data), read(source, options)) for source in sources
            ),
        )

    def html(self) -> str:
        """The page: complete, with Plotly in it."""
        from remat.views.report.render import render

        return render(self.title, self.entries)

    def save(self, path: str | Path) -> int:
        """Writes the page.

        Returns:
            its size, in bytes.
        """
        # JSON, and names of files, may hold halves of characters, which UTF-8 has not.
        data = self.html().encode(errors="backslashreplace")
        Path(path).write_bytes(data)
        return len(data)
