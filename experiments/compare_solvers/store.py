"""Keeps rows in one table of an embedded database, which one process writes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from experiments.compare_solvers.rows import COLUMNS, KEY, SolverRow, frame_of
from remat.errors import RematError

_TABLE = "solvers"
_EXPORTS = {".csv": "FORMAT csv, HEADER, NEW_LINE '\\n'", ".parquet": "FORMAT parquet"}
_ORDER = '"values", instance, cost_model, solver'


class Store:
    """Keeps rows in a DuckDB file. A row that was added is on disk; a later one of the same key replaces it."""

    def __init__(self, path: Path) -> None:
        """Opens the store in a file, or makes one.

        Raises:
            RematError: another process has it open, it is no store of this version, or its folder cannot be used.
        """
        check_folder(path.parent)
        columns = ", ".join(f'"{name}" {kind.sql}' for name, kind in COLUMNS.items())
        try:
            self._database = duckdb.connect(str(path))
            self._database.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE} ({columns}, PRIMARY KEY ({', '.join(KEY)}))")
            found = self._database.execute(f"SELECT name, type, pk FROM pragma_table_info('{_TABLE}')").fetchall()
        except duckdb.Error as error:
            raise RematError(
                f"{path}: cannot be opened as a DuckDB database ({str(error).splitlines()[0]}); let the run that uses "
                f"it end, move it away if it is damaged, or choose another --output"
            ) from None
        if found != [(name, kind.sql, name in KEY) for name, kind in COLUMNS.items()]:
            self._database.close()
            raise RematError(
                f"{path}: its table {_TABLE!r} has other columns than this version writes; move the file away, or "
                f"choose another --output"
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, rows: Iterable[SolverRow]) -> None:
        """Adds rows, each in the place of one with its key."""
        marks = ", ".join("?" * len(COLUMNS))
        cells = [list(astuple(row)) for row in rows]
        if cells:
            self._database.executemany(f"INSERT OR REPLACE INTO {_TABLE} VALUES ({marks})", cells)

    def forget(self, keys: Iterable[tuple[str, str, str]]) -> None:
        """Drops the rows of these keys, if there are any."""
        where = " AND ".join(f"{name} = ?" for name in KEY)
        if gone := [list(key) for key in keys]:
            self._database.executemany(f"DELETE FROM {_TABLE} WHERE {where}", gone)

    def rows(self) -> list[SolverRow]:
        """Reads all rows, ordered by size and name of the instance, cost model and solver."""
        found: list[tuple[Any, ...]] = self._database.execute(f"SELECT * FROM {_TABLE} ORDER BY {_ORDER}").fetchall()
        return [SolverRow(**dict(zip(COLUMNS, cells, strict=True))) for cells in found]

    def frame(self) -> pd.DataFrame:
        """Reads all rows as a table, in the order of `rows`."""
        return frame_of(self.rows())

    def export(self, path: Path) -> None:
        """Writes all rows as CSV or parquet, by the suffix of the path; `read` reads both.

        Raises:
            RematError: see `check_export`.
        """
        check_export(path)
        target = str(path).replace("'", "''")
        self._database.execute(
            f"COPY (SELECT * FROM {_TABLE} ORDER BY {_ORDER}) TO '{target}' ({_EXPORTS[path.suffix]})"
        )


def check_export(path: Path) -> None:
    """Checks the path of an export, and makes its folder if there is none.

    Raises:
        RematError: the suffix is none of CSV or parquet, or there cannot be a file at this path.
    """
    if path.suffix not in _EXPORTS:
        raise RematError(f"{path}: the suffix must be .csv or .parquet, got {path.suffix!r}")
    if path.is_dir():
        raise RematError(f"{path}: a file is needed, got a folder")
    check_folder(path.parent)


def check_folder(folder: Path) -> None:
    """Makes a folder if there is none, and checks that it can be written to.

    Raises:
        RematError: it cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RematError(
            f"{folder}: no folder can be made there ({error.strerror}); choose another --output or --export"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RematError(
            f"{folder}: nothing can be written to this folder; choose another --output or --export, or permit it"
        )


def read(path: Path) -> pd.DataFrame:
    """Reads the table of an exported file.

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
    return frame_of(SolverRow(**dict(zip(COLUMNS, cells, strict=True))) for cells in found)
