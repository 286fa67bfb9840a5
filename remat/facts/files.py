"""Writes files completely or not at all, and limits the unpacked size of gzipped files."""

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
"""The largest unpacked size of a file, in bytes: a graph takes about 140 per value."""


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and then replaces the old one, so that a reader sees either the old or the new file.

    After a failure or Ctrl-C, the old file is unchanged, and no other file is left. Links and permissions are kept.
    Raises `OSError`, with `path` as its `filename`.
    """
    if path.exists() and not path.is_file():  # a pipe or a terminal cannot be replaced
        path.write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if target.exists():
            target.open("r+b").close()  # raises if the file is not writable
        part.write_bytes(data)
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)
            del error.filename2  # with None instead, the message would end in "-> None"
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
        raise error(f"{path}: a file must hold at most {LARGEST:,} bytes when it is unpacked, and this one holds more")
    return content
