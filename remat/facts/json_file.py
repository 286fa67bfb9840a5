"""Documents of ours on disk: one JSON object with its format's name, gzipped or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import RematError


def write_document(document: Mapping[str, Any], path: Path, *, indent: int | None = None) -> None:
    """Writes a document, gzipped if the name ends in ".gz"; the same one always gives the same bytes."""
    separators = (",", ":") if indent is None else None
    data = json.dumps(document, indent=indent, separators=separators).encode()
    data += b"" if indent is None else b"\n"
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def read_document(path: Path, format: str, error: type[RematError]) -> dict[str, Any]:
    """Reads a document, from a file gzipped or not, whatever its name.

    Args:
        path: the file.
        format: "remat.graph" or "remat.plan": what the document must say that it is.
        error: what is raised.

    Raises:
        RematError: the file is damaged, or holds something else.
    """
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        document = json.loads(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
        raise error(f"{path}: the gzip data is damaged or truncated ({damage})") from None
    except (ValueError, RecursionError) as damage:  # no text, no JSON, or a number of thousands of digits
        raise error(f"{path}: not JSON, or truncated ({damage})") from None
    if not isinstance(document, dict) or cast(dict[str, Any], document).get("format") != format:
        kind = format.removeprefix("remat.")
        raise error(f'{path}: not a {kind} file (no "format": "{format}"); write one with {kind.title()}.save')
    return cast(dict[str, Any], document)
