"""Keeps the rows of a table in a file, each with the run that measured it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as RichTable

from experiments.report.provenance import provenance


class WrongFile(ValueError):
    """Raised when a file does not hold the rows of a table; the message says what it holds, and what to do."""


@dataclass(frozen=True)
class TableRow:
    """Holds what one measurement of a case has found.

    Attributes:
        case, device, size: what was measured, where, how large. Together they are the row's key.
        figures: by name.
        kind: "" if it was measured, else "unavailable" or "error".
        problem: what was missing, or the error.
        seconds: the whole case took, compilation included.
        run: which of `Rows.runs` measured it.
    """

    case: str
    device: str
    size: str
    figures: dict[str, Any]
    kind: str = ""
    problem: str = ""
    seconds: float = 0.0
    run: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """The case, the device and the size that it is a result of."""
        return self.case, self.device, self.size


@dataclass
class Rows:
    """Keeps all rows of a table in a JSON file.

    Attributes:
        path: the file.
        table: the table's name.
        runs: the provenance of each run that any row is from.
        rows: by key.
    """

    path: Path
    table: str
    runs: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    rows: dict[tuple[str, str, str], TableRow] = field(default_factory=dict[tuple[str, str, str], TableRow])
    _ours: int | None = None

    @classmethod
    def open(cls, path: Path, table: str) -> Rows:
        """Reads the file, if there is one.

        Raises:
            WrongFile: it is the file of another table, or of none.
        """
        if not path.exists():
            return cls(path, table)
        try:
            document = json.loads(path.read_text())
            if (found := document["table"]) != table:
                raise WrongFile(f"{path} holds {found!r}, expected {table!r}; name another folder")
            rows = [TableRow(**row) for row in document["rows"]]
            return cls(path, table, document["runs"], {row.key: row for row in rows})
        except WrongFile:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise WrongFile(f"{path} is not the file of a table ({type(error).__name__}: {error}); remove it") from None

    def has(self, case: str, device: str, size: str) -> bool:
        """Tells whether a case was measured."""
        row = self.rows.get((case, device, size))
        return row is not None and not row.kind

    def age(self, case: str, device: str, size: str) -> int:
        """Returns a key that sorts cases by when they were last tried: those never tried first, then the earliest."""
        row = self.rows.get((case, device, size))
        return -1 if row is None else row.run

    def forget_all_but(self, cases: Iterable[str]) -> None:
        """Drops the rows of cases that the table no longer has: they are shown nowhere, and must not count."""
        known = set(cases)
        self.rows = {key: row for key, row in self.rows.items() if row.case in known}

    def of(self, device: str, size: str) -> list[TableRow]:
        """Selects the rows of one setting."""
        return [row for row in self.rows.values() if (row.device, row.size) == (device, size)]

    def add(self, row: TableRow) -> None:
        """Adds a row of this run, and writes the file, so that a killed run loses one case."""
        if self._ours is None:
            self.runs.append(provenance())
            self._ours = len(self.runs) - 1
        self.rows[row.key] = replace(row, run=self._ours)
        self.save()

    def save(self, order: Iterable[str] = ()) -> None:
        """Writes the file: rows in the order of the cases, and no run that no row is from."""
        place = {case: i for i, case in enumerate(order)}
        rows = sorted(self.rows.values(), key=lambda row: (row.device, row.size, place.get(row.case, len(place))))
        used = sorted({row.run for row in rows})
        number = {run: i for i, run in enumerate(used)}
        document = {
            "table": self.table,
            "runs": [self.runs[run] for run in used],
            "rows": [asdict(replace(row, run=number[row.run])) for row in rows],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        os.replace(unfinished, self.path)

    def readable(self, device: str, size: str, figures: Mapping[str, str]) -> RichTable:
        """Makes a table of one setting for a terminal: a line for each figure, as there may be a dozen."""
        table = RichTable("case", "figure", title=f"{self.table}, {device}, {size} size")
        table.add_column("measured", justify="right")
        for row in self.of(device, size):
            lines = [(heading, cell(row.figures[name])) for name, heading in figures.items() if name in row.figures]
            for i, (heading, shown) in enumerate([(row.kind, row.problem)] if row.kind else lines):
                table.add_row("" if i else escape(row.case), escape(heading), escape(shown))
            table.add_section()
        return table


def cell(value: object) -> str:
    """Formats a figure: three significant digits, or all of an integer."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"  # what rounds to 1000 is no 1e+03
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
