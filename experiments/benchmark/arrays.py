"""Reads an instance of the benchmark as arrays, for programs that learn from graphs. It needs numpy only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("save_cost", "recompute_cost", "save_bytes", "needed", "cannot_save", "cannot_recompute")


class GraphArrays(NamedTuple):
    """An instance as arrays of 64-bit integers.

    Attributes:
        x: features of the values, of shape (values, columns): costs in the unit of the instance, bytes, and 0 or 1.
        edge_index: the uses, of shape (2, uses): from which value, and to which.
        columns: the names of the columns of `x`.
    """

    x: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    columns: tuple[str, ...]


def load_arrays(path: str | Path) -> GraphArrays:
    """Reads an instance, gzipped or not, as the arrays that PyTorch Geometric calls `x` and `edge_index`.

    Raises:
        ValueError: the file is no instance of version 1.
    """
    data = Path(path).read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    if (document.get("format"), document.get("version")) != ("remat.problem", 1):
        raise ValueError(f'{path}: needs "format": "remat.problem" and "version": 1; take an instance of the benchmark')
    values, uses = document["values"], document["uses"]
    x = np.array([values[name] for name in COLUMNS], np.int64).T.copy()
    x[:, 4:] = x[:, 4:] > 0  # a file numbers the reasons; the numbers mean nothing
    return GraphArrays(x, np.array([uses["producer"], uses["consumer"]], np.int64), COLUMNS)
