"""Documents of ours on disk: one JSON object with its format's name, gzipped or not."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import RematError
from remat.facts.files import unpacked, write_file

_HALF = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)


def write_document(document: Mapping[str, Any], path: Path, *, indent: int | None = None) -> None:
    """Writes a document, gzipped if the name ends in ".gz"; the same one always gives the same bytes."""
    separators = (",", ":") if indent is None else None
    data = json.dumps(document, indent=indent, separators=separators).encode()
    data += b"" if indent is None else b"\n"
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_document(
    path: Path, format: str, error: type[RematError], *, file_kind: str = "", remedy: str = ""
) -> dict[str, Any]:
    """Reads a document, from a file gzipped or not, whatever its name.

    Args:
        path: the file.
        format: "remat.graph" or "remat.plan": what the document must say that it is.
        error: what is raised.
        what, remedy: what to call such a file in a message, and what to do where it is none.

    Raises:
        RematError: the file is damaged, or too large, or holds something else.
    """
    kind = format.removeprefix("remat.")
    file_kind, remedy = file_kind or f"a {kind} file", remedy or f"write one with {kind.title()}.save"
    data = unpacked(path, path.read_bytes(), error)
    try:
        document = json.loads(data)
        if _HALF.search(data):  # pairs of halves make a character; alone, no file and no terminal takes one
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as damage:  # no text, no JSON, or a number of thousands of digits
        raise error(f"{path}: not JSON, or truncated ({damage}); {remedy}") from None
    if not isinstance(document, dict) or cast(dict[str, Any], document).get("format") != format:
        raise error(f'{path}: not {file_kind} (no "format": "{format}"); {remedy}')
    return cast(dict[str, Any], document)
