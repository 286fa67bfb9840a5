"""The file format of `Graph`: one JSON object of columns, so that no torch is needed to read it.

    {"format": "remat.graph", "version": 2, "meta": {...},
     "values": {"name": [...], "op": [...], ..., "view": [0, 1, ...]},
     "uses": {"producer": [...], "consumer": [...], "fusible": [...]},
     "cannot_save": {"<index>": "reason"}, "cannot_recompute": {"<index>": "reason"}}

Flags are 0 and 1. Producers and consumers are positions in the columns of "values". Version 1 had no
"arguments" among the values. The columns "modules" and "sources" are there if anything is known, and "noncontiguous" if
any value is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import InvalidGraph
from remat.facts.bans import Bans
from remat.facts.columns import FLAGS, INTS, LATER_FLAGS, TEXTS, any_set
from remat.facts.json_file import read_document, write_document

FORMAT = "remat.graph"
VERSION = 2


def write_columns(graph: Mapping[str, Any], path: Path) -> None:
    """Writes the columns of a graph, given by the names of its attributes; the same ones always give the same bytes."""
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
    """Reads the columns of a graph, by the names of its attributes; from a file gzipped or not, whatever its name.

    Raises:
        InvalidGraph: it is no graph file, or a column is missing. What the columns hold is checked by `remat.Graph`.
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
    values, uses = _table(document, "values"), _table(document, "uses")
    names = tuple(str(name) for name in _column(values, "values", "name"))
    n = len(names)
    texts = [label for label in TEXTS if label in values or (label == "arguments" and version > 1)]
    flags = [*FLAGS, *(label for label in LATER_FLAGS if label in values)]
    return {
        "names": names,
        "ops": tuple(str(op) for op in _column(values, "values", "op")),
        "dtypes": tuple(str(dtype) for dtype in _column(values, "values", "dtype")),
        "shapes": tuple(_shape(shape) for shape in _column(values, "values", "shape")),
        **{label: _column(values, "values", label) for label in (*INTS, *flags)},
        "producers": _column(uses, "uses", "producer"),
        "consumers": _column(uses, "uses", "consumer"),
        "fusible_uses": _column(uses, "uses", "fusible"),
        "cannot_save": _bans(document, "cannot_save", n),
        "cannot_recompute": _bans(document, "cannot_recompute", n),
        "meta": {str(key): str(value) for key, value in _table(document, "meta").items()},
        **{label: tuple(map(str, _column(values, "values", label))) for label in texts},
    }


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    table = document.get(key)
    if not isinstance(table, dict):
        raise InvalidGraph(f'"{key}" must be an object, got {type(table).__name__}')
    return cast(dict[str, Any], table)


def _column(table: dict[str, Any], label: str, key: str) -> list[Any]:
    column = table.get(key)
    if not isinstance(column, list):
        raise InvalidGraph(f'"{label}.{key}" must be a list, got {type(column).__name__}')
    return cast(list[Any], column)


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(size) is int for size in cast(list[Any], shape)):
        raise InvalidGraph(f'"values.shape" must hold lists of integers, got {shape!r}')
    return tuple(cast(list[int], shape))


def _bans(document: dict[str, Any], key: str, length: int) -> Bans:
    reason_of: dict[int, str] = {}
    for index, reason in _table(document, key).items():
        if not (index.isdecimal() and len(index) < 20 and int(index) < length):
            raise InvalidGraph(f'"{key}" names value {index!r}, but there are only {length} values')
        reason_of[int(index)] = str(reason)
    return Bans.of(length, reason_of)
