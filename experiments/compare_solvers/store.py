"""Where rows are kept: one table of an embedded database, written by one process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from experiments.compare_solvers.rows import COLUMNS, KEY, Row, frame_of
from remat.errors import RematError

_TABLE = "solvers"
_ORDER = '"values", instance, cost_model, solver'


class Store:
    """A table of rows in a DuckDB file. A row that was added is on disk; a later one of the same key replaces it."""

    def __init__(self, path: Path) -> None:
        """Opens a store, or makes one.

        Raises:
            RematError: another process has it open, or it is no store of this version.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = duckdb.connect(str(path))
        except duckdb.IOException as error:
            raise RematError(
                f"{path}: cannot be opened as a DuckDB database ({str(error).splitlines()[0]}); let the run that uses "
                f"it end, or choose another --output"
            ) from None
        columns = ", ".join(f'"{name}" {kind.sql}' for name, kind in COLUMNS.items())
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({columns}, PRIMARY KEY ({', '.join(KEY)}))")
        found = self._database.execute(f"SELECT * FROM {_TABLE} LIMIT 0").description or []
        if [column[0] for column in found] != list(COLUMNS):
            self._database.close()
            raise RematError(
                f"{path}: its table {_TABLE!r} has other columns than this version writes; move the file away, or "
                f"choose another --output"
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Keeps rows."""
        marks = ", ".join("?" * len(COLUMNS))
        cells = [list(astuple(row)) for row in rows]
        if cells:
            self._database.executemany(f"INSERT OR REPLACE INTO {_TABLE} VALUES ({marks})", cells)

    def forget(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Drops the rows of these keys, if there are any."""
        where = " AND ".join(f"{name} = ?" for name in KEY)
        if gone := [list(key) for key in keys]:
            self._database.executemany(f"DELETE FROM {_TABLE} WHERE {where}", gone)

    def rows(self) -> list[Row]:
        """All rows, ordered by size and name of the instance, cost model and solver."""
        found: list[tuple[Any, ...]] = self._database.execute(f"SELECT * FROM {_TABLE} ORDER BY {_ORDER}").fetchall()
        return [Row(**dict(zip(COLUMNS, cells, strict=True))) for cells in found]

    def frame(self) -> pd.DataFrame:
        """The same as a table."""
        return frame_of(self.rows())

    def export(self, path: Path) -> None:
        """Writes all rows as CSV or parquet, by the suffix of the path; `read` reads both.

        Raises:
            RematError: another suffix.
        """
        options = {".csv": "FORMAT csv, HEADER, NEW_LINE '\\n'", ".parquet": "FORMAT parquet"}
        if path.suffix not in options:
            raise RematError(f"{path}: the suffix must be .csv or .parquet, got {path.suffix!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        target = str(path).replace("'", "''")
        self._database.execute(
            f"COPY (SELECT * FROM {_TABLE} ORDER BY {_ORDER}) TO '{target}' ({options[path.suffix]})"
        )


def read(path: Path) -> pd.DataFrame:
    """The table of an exported file.

    Raises:
        RematError: no such file, or it has other columns.
    """
    source = str(path).replace("'", "''")
    types = ", ".join(f"'{name}': '{kind.sql}'" for name, kind in COLUMNS.items())
    readers = {".csv": f"read_csv('{source}', header = true, allow_quoted_nulls = false, columns = {{{types}}})"}
    try:
        with duckdb.connect() as database:
            found = database.execute(f"SELECT * FROM {readers.get(path.suffix, repr(str(path)))}").fetchall()
    except duckdb.Error as error:
        raise RematError(f"{path}: not an export of the comparison ({str(error).splitlines()[0]})") from None
    return frame_of(Row(**dict(zip(COLUMNS, cells, strict=True))) for cells in found)
