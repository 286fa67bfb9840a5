"""Reads a file of results: its bytes, what they say, and the hash that tells one version from another."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from remat.errors import NotInstalled, RematError
from remat.facts.files import unpacked

_PARQUET = b"PAR1"

_TEXT = frozenset(
    ("instance", "graph", "family", "model", "cost_model", "unit", "solver", "status", "termination", "plan")
) | {"note", "error", "commit", "date", "machine", "versions", "graph_sha256"}
"""Columns of a CSV file that are never numbers, even where they look so: a digest such as 12e45."""

_DIGITS = 300
"""Of the longest integer that is read: sums, ratios and logarithms of such numbers are still floats."""


class _TooLong(Exception):
    """Says that no float is near an integer."""


@dataclass(frozen=True)
class Source:
    """Holds a file, read once.

    Attributes:
        path: where it lies.
        data: its bytes.
    """

    path: Path
    data: bytes

    @property
    def sha256(self) -> str:
        """The hash of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def content(self) -> Any:
        """The JSON document, or the rows of a table (CSV or parquet) as dictionaries.

        None if it is text of another kind: a first line without a comma heads no table.

        Raises:
            RematError: it is none of them, or damaged.
            NotInstalled: it is parquet, and pyarrow is missing.
        """
        data = unpacked(self.path, self.data, RematError)
        if data[:4] == _PARQUET:
            return self._parquet(data)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise RematError(f"{self.path}: neither text in UTF-8 (JSON, CSV) nor parquet") from None
        try:
            return self._json(text) if text.lstrip()[:1] in ("{", "[") else self._csv(text)
        except _TooLong as error:
            raise RematError(f"{self.path}: {error}") from None

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text, parse_int=_integer)
        except (json.JSONDecodeError, RecursionError) as error:
            raise RematError(f"{self.path}: not JSON, or truncated ({error})") from None

    def _csv(self, text: str) -> list[dict[str, Any]] | None:
        try:
            names, *lines = [line for line in csv.reader(io.StringIO(text, newline="")) if line] or [[]]
        except csv.Error as error:
            raise RematError(f"{self.path}: not CSV ({error})") from None
        if len(names) < 2:
            self._check_separator("".join(names))
            return None
        # pandas writes its index as a first column without a name; it says nothing.
        skipped = int(names[0] == "")
        names = names[skipped:]
        wrong = next((position for position, line in enumerate(lines, 2) if len(line) != len(names) + skipped), None)
        if wrong is not None:
            raise RematError(
                f"{self.path}: neither JSON nor parquet; and if it is CSV, row {wrong} must have "
                f"{len(names) + skipped} cells, as the first line has; it has {len(lines[wrong - 2])}"
            )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise RematError(f"{self.path}: a column must have a name of its own, got {twice[0]!r} twice; rename one")
        return [{name: _value(name, cell) for name, cell in zip(names, line[skipped:], strict=True)} for line in lines]

    def _check_separator(self, line: str) -> None:
        """Refuses solver runs that anything but commas separates."""
        for character, name in ((";", "semicolons"), ("\t", "tabs")):
            if "solver" in line.split(character):
                raise RematError(f"{self.path}: CSV must be separated by commas, got {name}; write it with commas")

    def _parquet(self, data: bytes) -> list[dict[str, Any]]:
        if find_spec("pyarrow") is None:
            raise NotInstalled(f"{self.path}: parquet needs pyarrow: pip install pyarrow (or give the CSV)")
        from importlib import import_module

        # Through `import_module`: pyarrow ships no types.
        table: Any = import_module("pyarrow.parquet")
        try:
            return table.read_table(io.BytesIO(data)).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
            raise RematError(f"{self.path}: damaged parquet ({error})") from None


def _value(column: str, text: str) -> Any:
    if text == "":
        return None
    if column in _TEXT:
        return text
    if text in ("True", "False", "true", "false"):
        return text.lower() == "true"
    if "_" in text:  # Python reads 1_000 as a number, and no one else does
        return text
    for kind in (_integer, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _integer(text: str) -> int:
    if len(text) > _DIGITS and text.strip(" +-").isdecimal():
        raise _TooLong(f"integers must have at most {_DIGITS} digits, got one of {len(text)}: {text[:12]}...")
    return int(text)
