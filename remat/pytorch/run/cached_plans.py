"""Stores plans with the compiled graphs in torch's cache on disk, and reports them when torch reads such a graph.

Torch calls no partitioner for a graph that it finds in its cache. So the plans are stored in the same entry of the
cache, and are those of the same graph, sizes, settings and version. Only the lines of the model may have moved since
then. Dynamo's graph is the same, node by node, and has the present lines.
"""

from __future__ import annotations

import logging
import pickle
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from remat.pytorch.read.places import Place, places_in
from remat.pytorch.run.plan_log import report_cached
from remat.pytorch.run.planned_graph import PlannedGraph
from remat.pytorch.seam.cache_notes import found_note, keep_note

_LOGGER = logging.getLogger("remat")


@dataclass
class PlanCollector:
    """Collects the plans that are made while Dynamo compiles one of its graphs, and stores them in torch's cache."""

    places: Sequence[Place]  # the lines of the nodes of Dynamo's graph, with those of its regions
    # the plans of the graph's regions, followed by that of the graph.
    planned: list[PlannedGraph] = field(default_factory=list[PlannedGraph])

    def store_with(self, backward: fx.GraphModule) -> None:
        """Stores the plans in the cache entry of a backward graph."""
        # Graphs without their cached properties.
        fresh = [replace(planned, graph=replace(planned.graph)) for planned in self.planned]
        with _no_harm():
            keep_note(backward, _Note(zlib.compress(pickle.dumps((self.places, fresh)))))  # torch pickles the entry

    def load_from(self, compiled: Callable[..., object]) -> list[PlannedGraph]:
        """Returns the plans that were stored with a compiled graph; none if the graph is not from torch's cache."""
        with _no_harm():
            note = found_note(compiled)
            return [] if note is None else self.read(note)
        return []

    def read(self, note: bytes) -> list[PlannedGraph]:
        """Reads stored plans, and gives their values the present lines of the model."""
        before, kept = pickle.loads(zlib.decompress(note))
        return [_with_places(planned, before, self.places) for planned in kept]


# A note reports its plans while torch unpickles it, if torch reads it for another backend.
class _Note(bytes):
    def __reduce__(self) -> tuple[Any, ...]:
        return _read_again, (bytes(self),)


def _read_again(note: bytes) -> _Note:
    if _collector.get() is None:
        with _no_harm():
            for planned in PlanCollector(()).read(note):
                report_cached(planned)
    return _Note(note)


# A report without one of its graphs is better than a step that does not compile.
@contextmanager
def _no_harm() -> Generator[None]:
    try:
        yield
    except Exception:  # pickling a plug-in, or another version of torch, may raise anything
        _LOGGER.debug("a plan is not stored with torch's compiled graph, or not read from there", exc_info=True)


_collector: ContextVar[PlanCollector | None] = ContextVar("_collector", default=None)


@contextmanager
def collecting_plans(graph_module: fx.GraphModule) -> Generator[PlanCollector]:
    """Collects the plans that are made in the block, in which a graph of Dynamo is compiled."""
    regions = [module.graph for module in graph_module.modules() if isinstance(module, fx.GraphModule)]
    graph = PlanCollector([place for region in regions for place in places_in([*region.nodes])])
    token = _collector.set(graph)
    try:
        yield graph
    finally:
        _collector.reset(token)


def store_plans(planned: Sequence[PlannedGraph], backward: fx.GraphModule | None) -> None:
    """Adds plans to those of the graph that this thread compiles, and stores all of them if the graph is complete.

    Args:
        backward: the backward graph; None if the plans are those of a region inside the graph.
    """
    graph = _collector.get() or PlanCollector(())  # another backend: it collects no lines
    graph.planned += planned
    if backward is not None:
        graph.store_with(backward)


# Replaces old lines by new ones, and by "" if there is more than one new line for an old one.
def _with_places(planned: PlannedGraph, old: Sequence[Place], new: Sequence[Place]) -> PlannedGraph:
    now: dict[Place, Place] = {}
    for place, moved in zip(old, new, strict=bool(old and new)):
        now[place] = moved if now.get(place, moved) == moved else ("", "")
    graph = planned.graph
    places = [now.get(place, ("", "")) for place in zip(graph.modules, graph.sources, strict=True)]
    modules, sources = zip(*places, strict=True)
    return replace(planned, graph=replace(graph, modules=modules, sources=sources), from_cache=True)
