"""Measures an experiment case by case, keeps its rows in a JSON file, and goes on where it stopped.

An experiment is a `ResultTable` and a list of cases. Its file has the rows that were measured, each with the run that
measured it, and why cases failed; the page beside it is made of that file alone. `python -m experiments.pages` writes
all pages again without measuring anything.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer
from rich.console import Console

from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance

C = TypeVar("C")
Row = Mapping[str, Any]
"""Figures by name. Under `case` is the key of the case, under `run` the number of the run that measured it."""

RESULTS = Path(__file__).parents[1] / "results"

_console = Console()


@dataclass
class Results:
    """Holds what is known of an experiment.

    Attributes:
        runs: where rows come from, one entry for each command that has measured any.
        rows: those of all cases, in the order of the cases.
        failed: why a case has no rows, by its key.
    """

    runs: list[dict[str, str]]
    rows: list[dict[str, Any]]
    failed: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads a file; what is not there has no rows."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls([], [], {})

    def write(self, path: Path) -> None:
        """Writes the file whole or not at all; runs of which no row is left are dropped."""
        used = sorted({row["run"] for row in self.rows})
        rows = [{**row, "run": used.index(row["run"])} for row in self.rows]
        lines = ",\n".join(map(json.dumps, rows))  # a line for each row, so that a change can be read
        runs, failed = (json.dumps(part, indent=1) for part in ([self.runs[run] for run in used], self.failed))
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(f'{{"runs": {runs},\n"failed": {failed},\n"rows": [\n{lines}\n]}}\n')
        os.replace(unfinished, path)


@dataclass(frozen=True)
class ResultTable(Generic[C]):
    """Describes an experiment.

    Attributes:
        module: the module of the command; its last part names the files.
        title: of the page.
        about: what is compared, and how; if left out, the docstring of the module of `measure`.
        cases: makes the cases, in the order of the page.
        measure: the rows of a case. An exception is kept as the reason why there are none, and is tried again.
        summary: what the rows say together, as blocks of Markdown.
        key: names a case, as no other one.
        columns: of the table of all rows: those of the rows if left out; with None there is no such table. A nested
            row gives a column for each figure.
        draw: draws a picture of all rows, which lies beside the page under its name.
    """

    module: str
    title: str
    about: str = ""
    _: KW_ONLY
    cases: Callable[[], Iterable[C]]
    measure: Callable[[C], Iterable[Row]]
    summary: Callable[[Sequence[dict[str, Any]]], Iterable[str]]
    key: Callable[[C], str] = str
    columns: Sequence[str] | None = ()
    draw: Callable[[Sequence[dict[str, Any]], Path], None] | None = None

    @property
    def text(self) -> str:
        """What is compared, and how."""
        return self.about or sys.modules[self.measure.__module__].__doc__ or ""

    @property
    def path(self) -> Path:
        """The file of the committed rows."""
        return RESULTS / f"{self.module.rpartition('.')[2]}.json"

    def fill(self, only: Sequence[str] = (), folder: Path = RESULTS, *, again: bool = False) -> Results:
        """Measures the cases that have no rows yet, and writes file and page after each.

        Args:
            only: patterns of the keys of cases; all if there are none.
            folder: of the files.
            again: whether cases that have rows are measured once more.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.path.name
        found, run = Results.read(path), None
        cases = {self.key(case): case for case in self.cases()}
        order = {key: place for place, key in enumerate(cases)}
        found.rows = [row for row in found.rows if row["case"] in order]
        for key, case in cases.items():
            if only and not any(fnmatch.fnmatch(key, pattern) for pattern in only):
                continue
            if not again and any(row["case"] == key for row in found.rows):
                continue
            if run is None:
                found.runs.append(provenance())
                run = len(found.runs) - 1
            fresh, why = self._measured(case)
            _console.print(key, *fresh, why, sep="\n  ", markup=False, highlight=False)
            rows = [row for row in found.rows if row["case"] != key]
            rows += [{"case": key, "run": run, **row} for row in fresh]
            found.rows = sorted(rows, key=lambda row: order[row["case"]])
            found.failed = {old: text for old, text in found.failed.items() if old != key and old in order}
            found.failed |= {key: why} if why else {}
            found.write(path)
            path.with_suffix(".md").write_text(self.page(Results.read(path)))
        if self.draw is not None and found.rows:
            self.draw(found.rows, path.with_suffix(".svg"))
        return found

    def _measured(self, case: C) -> tuple[list[Row], str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own deprecations
            try:
                return list(self.measure(case)), ""
            except Exception as error:  # one case that fails must not hide the others
                return [], f"{type(error).__name__}: {error}".splitlines()[0][:200]

    def page(self, results: Results) -> str:
        """Makes the page: what is compared, what it comes to, and all rows."""
        counts = [sum(row["run"] == run for row in results.rows) for run in range(len(results.runs))]
        return page(
            self.title,
            inspect.cleandoc(self.text),
            *(self.summary(results.rows) if results.rows else ()),
            f"![{self.title}]({self.path.stem}.svg)" if self.draw and results.rows else "",
            self._all_rows(results.rows) if self.columns is not None else "",
            section("No rows", bullets(f"{key}: {why}" for key, why in results.failed.items()))
            if results.failed
            else "",
            section(
                "Where they come from",
                bullets(
                    f"{count} of {len(results.rows)} rows: {cited(run, self.module)}"
                    for count, run in zip(counts, results.runs, strict=True)
                ),
            ),
        )

    def _all_rows(self, rows: Sequence[Row]) -> str:
        flat = [_flat(row) for row in rows]
        columns = self.columns or list(dict.fromkeys(column for row in flat for column in row if column != "run"))
        headings = [column.replace("_", " ") for column in columns]
        return section("All rows", table(headings, [[row.get(column) for column in columns] for row in flat]))

    def command(self) -> None:
        """Runs the command line of the experiment."""

        def main(
            only: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="some cases; repeatable")] = None,
            again: Annotated[bool, typer.Option("--again", help="measure what was measured, too")] = False,
            output: Annotated[Path, typer.Option(help="folder of the JSON file and the page")] = RESULTS,
        ) -> None:
            self.fill(only or (), output, again=again)

        main.__doc__ = self.text
        typer.run(main)


def _flat(row: Row, before: str = "") -> dict[str, Any]:
    """Gives the figures of nested rows names of their own; lists are left to the file."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}, ")  # pyright: ignore[reportUnknownArgumentType]
        elif not isinstance(value, (list, tuple)):
            found[before + name] = value
    return found
