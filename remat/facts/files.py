"""Writes files as a whole or not at all, and limits how much a gzipped file may unpack to."""

from __future__ import annotations

import gzip
import io
import os
import secrets
import shutil
import zlib
from pathlib import Path

from remat.errors import RematError

LARGEST = 2**29
"""The most bytes that a file may unpack to: a graph takes some 140 for each value."""


def write_file(path: Path, data: bytes) -> None:
    """Writes a file beside the old one, and then replaces that: a reader sees the old or the new one.

    After a failure or Ctrl-C the old file is as it was, with nothing beside it. A link stays a link; permissions stay.
    Raises `OSError`, with `path` as its `filename`.
    """
    if path.exists() and not path.is_file():  # a pipe, a terminal: nothing can take its place
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if target.exists():
            target.open("r+b").close()  # a file that may not be written may not be replaced
        part.write_bytes(data)
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
            del error.filename2  # set to None, the message would end in "-> None"
        part.unlink(missing_ok=True)
        raise


def unpack(path: Path, data: bytes, error: type[RematError]) -> bytes:
    """Returns the content of a file, gzipped or not; raises `error` if it is damaged or too large."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
        raise error(f"{path}: the gzip data is damaged or truncated ({damage})") from None
    if len(content) > LARGEST:
        raise error(f"{path}: at most {LARGEST:,} bytes are unpacked of a file, and this one holds more")
    return content
