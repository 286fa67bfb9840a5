"""Reads and writes the file format of `Graph`: one JSON object of columns, which can be read without torch.

    {"format": "remat.graph", "version": 2, "meta": {...},
     "values": {"name": [...], "op": [...], ..., "view": [0, 1, ...]},
     "uses": {"producer": [...], "consumer": [...], "fusible": [...]},
     "cannot_save": {"<index>": "reason"}, "cannot_recompute": {"<index>": "reason"}}

Flags are 0 and 1. Producers and consumers are positions in the columns of "values". Version 1 had no "arguments" among
the values. The columns "modules", "sources" and "noncontiguous" are left out if they are all empty or false.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import InvalidGraph
from remat.facts.bans import Bans
from remat.facts.columns import FLAGS, INTS, LATER_FLAGS, TEXTS, any_set
from remat.facts.json_file import column_in, read_document, table_in, write_document

FORMAT = "remat.graph"
VERSION = 2


def write_columns(graph: Mapping[str, Any], path: Path) -> None:
    """Writes the columns of a graph, by the names of its attributes; equal columns always give equal bytes."""
    values: dict[str, Any] = {
        "name": graph["names"],
        "op": graph["ops"],
        "dtype": graph["dtypes"],
        "shape": graph["shapes"],
        **{label: graph[label] for label in TEXTS if label == "arguments" or any(graph[label])},
        **{label: graph[label].tolist() for label in INTS},
        **{label: graph[label].astype(int).tolist() for label in FLAGS},
        **{label: graph[label].astype(int).tolist() for label in LATER_FLAGS if any_set(graph[label])},
    }
    uses = {
        "producer": graph["producers"].tolist(),
        "consumer": graph["consumers"].tolist(),
        "fusible": graph["fusible_uses"].astype(int).tolist(),
    }
    document = {
        "format": FORMAT,
        "version": VERSION,
        "meta": dict(graph["meta"]),
        "values": values,
        "uses": uses,
        "cannot_save": graph["cannot_save"].as_dict(),
        "cannot_recompute": graph["cannot_recompute"].as_dict(),
    }
    write_document(document, path)


def read_columns(path: Path) -> dict[str, Any]:
    """Reads the columns of a graph, by the names of its attributes, from a file that may be gzipped.

    Raises `InvalidGraph` if a column is missing. The constructor of `remat.Graph` checks the contents.
    """
    document = read_document(path, FORMAT, InvalidGraph)
    try:
        return _columns(document)
    except InvalidGraph as error:
        raise InvalidGraph(f"{path}: {error}") from None


def _columns(document: dict[str, Any]) -> dict[str, Any]:
    version = document.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise InvalidGraph(f"schema version {version!r}, but this remat reads 1 to {VERSION}; upgrade remat")
    values, uses = (table_in(document, key, InvalidGraph) for key in ("values", "uses"))
    names = tuple(str(name) for name in column_in(values, "name", InvalidGraph, "values"))
    n = len(names)
    texts = [label for label in TEXTS if label in values or (label == "arguments" and version > 1)]
    flags = [*FLAGS, *(label for label in LATER_FLAGS if label in values)]
    return {
        "names": names,
        "ops": tuple(str(op) for op in column_in(values, "op", InvalidGraph, "values")),
        "dtypes": tuple(str(dtype) for dtype in column_in(values, "dtype", InvalidGraph, "values")),
        "shapes": tuple(_shape(shape) for shape in column_in(values, "shape", InvalidGraph, "values")),
        **{label: column_in(values, label, InvalidGraph, "values") for label in (*INTS, *flags)},
        "producers": column_in(uses, "producer", InvalidGraph, "uses"),
        "consumers": column_in(uses, "consumer", InvalidGraph, "uses"),
        "fusible_uses": column_in(uses, "fusible", InvalidGraph, "uses"),
        "cannot_save": _bans(document, "cannot_save", n),
        "cannot_recompute": _bans(document, "cannot_recompute", n),
        "meta": {str(key): str(value) for key, value in table_in(document, "meta", InvalidGraph).items()},
        **{label: tuple(map(str, column_in(values, label, InvalidGraph, "values"))) for label in texts},
    }


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int for size in cast(list[Any], shape)):
        raise InvalidGraph(f'"values.shape" must hold lists of integers, got {shape!r}')
    return tuple(cast(list[int], shape))


def _bans(document: dict[str, Any], key: str, length: int) -> Bans:
    reason_of: dict[int, str] = {}
    for index, reason in table_in(document, key, InvalidGraph).items():
        if not (index.isdecimal() and len(index) < 20 and int(index) < length):
            raise InvalidGraph(f'"{key}" names value {index!r}, but there are only {length} values')
        reason_of[int(index)] = str(reason)
    return Bans.of(length, reason_of)
