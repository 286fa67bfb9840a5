"""Makes a report of files: what each of them says, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remat.answer.registry import DEFAULT_ESTIMATOR
from remat.errors import InvalidOption
from remat.facts.files import write_file
from remat.facts.given import checked_path
from remat.views.report.plots import check_installed
from remat.views.report.readers import Options, Reader, read
from remat.views.report.render import render
from remat.views.report.section import ReportedFile
from remat.views.report.source import Source


@dataclass(frozen=True)
class Page:
    """Holds a report. The same files give the same bytes.

    Attributes:
        title: its heading.
        files: what it was made of, in the order given.
    """

    title: str
    files: tuple[ReportedFile, ...]

    @classmethod
    def of(
        cls,
        paths: Iterable[str | Path],
        *,
        title: str = "remat report",
        estimator: str = DEFAULT_ESTIMATOR,
        refine: int = 16,
        readers: Sequence[Reader] = (),
    ) -> Page:
        """Reads files of results.

        Args:
            paths: graph files, frontiers, solver comparisons (JSON, CSV, parquet), or other results with their
                provenance (JSON), which become tables.
            title: the heading of the report.
            estimator: of graph files: what prices recomputing.
            refine: of graph files: how many budgets are solved between the ends of the frontier.
            readers: of further kinds of files; they are asked before the library's own.

        Raises:
            InvalidOption: there is no path.
            NotInstalled: plotly or jinja2 is missing; or a file is parquet, and pyarrow is.
            OSError: a file cannot be read.
            RematError: a file is of no kind that a report understands, or it is damaged.
        """
        check_installed()
        sources = [Source(Path(path), Path(path).read_bytes()) for path in paths]
        if not sources:
            raise InvalidOption("paths must name at least one file of results, got none")
        options = Options(estimator, refine)
        files = tuple(
            ReportedFile(source.path.name, source.sha256, len(source.data), read(source, options, readers))
            for source in sources
        )
        return cls(title, files)

    def html(self) -> str:
        """Renders the page: complete, with Plotly in it."""
        return render(self.title, self.files)

    def save(self, path: str | Path) -> int:
        """Writes the page.

        Returns:
            its size, in bytes.
        """
        # JSON, and names of files, may hold halves of characters, which UTF-8 has not.
        data = self.html().encode(errors="backslashreplace")
        write_file(checked_path(path), data)
        return len(data)
