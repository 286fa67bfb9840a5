"""Stores measured times in small JSON files, one per device and version of torch.

{"format": "remat.timings", "version": 1, "device": "NVIDIA H200, torch 2.13.0, float32 ieee/tf32",
 "ns": {"aten.mm.default(float32[64,32],float32[32,8])": 5123, ...}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from remat.errors import InvalidOption
from remat.facts.columns import LARGEST_TOTAL
from remat.facts.graph import Graph
from remat.facts.json_file import read_document, write_document
from remat.predict.time.device import cache_folder

FORMAT = "remat.timings"
VERSION = 1


def timings_file(device: str) -> Path:
    return cache_folder() / f"timings-{re.sub(r'[^A-Za-z0-9.]+', '-', device).strip('-')}.json"


def read_timings(path: Path, device: str) -> dict[str, int]:
    """Returns the times in a file by the keys of `call_keys`; empty if there is no file."""
    if not path.exists():
        return {}
    if path.is_dir():
        raise InvalidOption(f"{path} must be a file for the times, got a folder")
    what, remedy = "a file of timings of this version of remat", "delete it to measure anew"
    table = read_document(path, FORMAT, InvalidOption, file_kind=what, remedy=remedy)
    times = table.get("ns")
    if table.get("version") != VERSION or not isinstance(times, dict):
        raise InvalidOption(f"{path}: not {what}; {remedy}")
    if table.get("device") != device:
        raise InvalidOption(f"{path} must hold times of {device!r}, got {table.get('device')!r}; use another file")
    ns_of = cast(dict[str, Any], times)
    wrong = next((key for key, ns in ns_of.items() if type(ns) is not int or not 0 <= ns < LARGEST_TOTAL), None)
    if wrong is not None:
        raise InvalidOption(f"{path}: the time of {wrong} must be whole nanoseconds, got {ns_of[wrong]!r}")
    return ns_of


def write_timings(path: Path, device: str, times: Mapping[str, int]) -> None:
    """Writes all times; another process sees either the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, "version": VERSION, "device": device, "ns": dict(sorted(times.items()))}
    write_document(document, path, indent=1)


def call_keys(graph: Graph, values: list[int]) -> list[str]:
    """Returns a key for each call; calls with the same operator, constants, types and shapes have the same key."""
    keys: list[str] = []
    for v in values:
        of = [f"{graph.dtypes[u]}{str(list(graph.shapes[u])).replace(' ', '')}" for u in graph.operands[v]]
        keys.append(f"{graph.ops[v]}({','.join(of)}){graph.arguments[v]}")
    return keys
