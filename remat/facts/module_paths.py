"""Finds the values that parts of a model compute: modules by patterns of their paths, or what the model has marked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from remat.errors import InvalidOption
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.words import near_of


@dataclass(frozen=True)
class Marked:
    """Names the values of one graph that PyTorch marks with one memory budget."""

    budget: float
    names: frozenset[str] = field(repr=False)


def with_parents(path: str) -> list[str]:
    """Returns a path and those of all modules that contain it, the innermost first.

    >>> with_parents("layers.0.mlp")
    ['layers.0.mlp', 'layers.0', 'layers']
    """
    parts = path.split(".") if path else []
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def matching(pattern: object, modules: Collection[str], unmatched: str) -> set[str]:
    """Returns the modules that match a pattern; raises `InvalidOption`, beginning with `unmatched`, if none does."""
    if not isinstance(pattern, str):
        raise InvalidOption(f"regions must be paths of modules or patterns, got {pattern!r}")
    matches = {module for module in modules if fnmatchcase(module, pattern)}
    if not matches:
        raise InvalidOption(f"{unmatched} is {pattern!r}{near_of(pattern, modules)}")
    return matches


def computed_in(graph: Graph, part: object) -> BoolArray:
    """Returns a mask (n,) of the values of a `Marked`, or of those computed within modules that match a pattern."""
    if isinstance(part, Marked):
        return np.array([name in part.names for name in graph.names], np.bool_)
    parents = {path: with_parents(path) for path in dict.fromkeys(graph.modules)}
    modules = dict.fromkeys(module for path in parents.values() for module in path)
    matches = matching(part, modules, "regions: no module of this graph")
    return np.array([not matches.isdisjoint(parents[path]) for path in graph.modules], np.bool_)
