"""Writes files whole or not at all, and unpacks no more of a file than fits into memory."""

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
"""Bytes that are unpacked of a file: a graph takes some 140 for each value."""


def write_file(path: Path, data: bytes) -> None:
    """Writes a file beside the one of that name, and puts it in its place: whoever reads sees the old or the new one.

    A failure or Ctrl-C leaves the old file as it was, and nothing beside it. A link stays one; permissions stay.

    Raises:
        OSError: the file cannot be written; its `filename` is `path`.
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
            error.filename, error.filename2 = str(path), None
        part.unlink(missing_ok=True)
        raise


def unpacked(path: Path, data: bytes, error: type[RematError]) -> bytes:
    """Returns what a file holds, whether it is gzipped or not; what is damaged or too large is an `error`."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        whole = gzip.GzipFile(fileobj=io.BytesIO(data)).read(LARGEST + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as damage:
        raise error(f"{path}: the gzip data is damaged or truncated ({damage})") from None
    if len(whole) > LARGEST:
        raise error(f"{path}: at most {LARGEST:,} bytes are unpacked of a file, and this one holds more")
    return whole
