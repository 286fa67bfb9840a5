"""Reads and writes files of this library: one JSON object with the name of its format, gzipped or not."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import RematError
from remat.facts.files import unpack, write_file

_SURROGATE = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)


def write_document(document: Mapping[str, Any], path: Path, *, indent: int | None = None) -> None:
    """Writes a document, gzipped if the name ends in ".gz"; equal documents always give equal bytes."""
    separators = (",", ":") if indent is None else None
    data = json.dumps(document, indent=indent, separators=separators).encode()
    data += b"" if indent is None else b"\n"
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_document(
    path: Path, format: str, error: type[RematError], *, file_kind: str = "", remedy: str = ""
) -> dict[str, Any]:
    """Reads a document of a format, such as "remat.graph", from a file that may be gzipped.

    Raises `error` if the file is damaged, too large, or has another format. A message about the format names
    `file_kind` and `remedy`.
    """
    kind = format.removeprefix("remat.")
    file_kind, remedy = file_kind or f"a {kind} file", remedy or f"write one with {kind.title()}.save"
    data = unpack(path, path.read_bytes(), error)
    try:
        document = json.loads(data)
        if _SURROGATE.search(data):  # a pair of surrogates is a character; a single one cannot be printed or written
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as damage:  # not text, not JSON, or a number with too many digits
        raise error(f"{path}: not JSON, or truncated ({damage}); {remedy}") from None
    if not isinstance(document, dict) or cast(dict[str, Any], document).get("format") != format:
        raise error(f'{path}: not {file_kind} (no "format": "{format}"); {remedy}')
    return cast(dict[str, Any], document)


def table_in(document: Mapping[str, Any], key: str, error: type[RematError]) -> dict[str, Any]:
    """Returns the object under a key of a document; raises `error` if there is none."""
    table = document.get(key)
    if not isinstance(table, dict):
        raise error(f'"{key}" must be an object, got {type(table).__name__}')
    return cast(dict[str, Any], table)


def column_in(table: Mapping[str, Any], key: str, error: type[RematError], label: str = "") -> list[Any]:
    """Returns the list under a key of a table with the name `label`; raises `error` if there is none."""
    column = table.get(key)
    if not isinstance(column, list):
        raise error(f'"{label}{"." if label else ""}{key}" must be a list, got {type(column).__name__}')
    return cast(list[Any], column)
