"""Keeps plans in torch's compiled graphs, and reports them if torch finds these in its cache on disk.

There torch calls no partitioner. What was planned lies in the very entry that torch finds: it is that of the graph, the
sizes, the settings and the version at hand, and goes wherever the entry goes. Only the lines of the model may have
moved since. Dynamo's graph is the same, node for node, and says where they are now.
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
from remat.pytorch.run.planned_graph import PlannedGraph
from remat.pytorch.run.report import report_again
from remat.pytorch.seam.cache_note import found_note, keep_note

_LOGGER = logging.getLogger("remat")


@dataclass
class UnderWay:
    """Collects what is planned for a graph while Dynamo has it compiled, to keep it in torch's cache."""

    places: Sequence[Place]  # of its nodes, and of those in its regions
    # what was planned for its regions, and at last for all of it.
    planned: list[PlannedGraph] = field(default_factory=list[PlannedGraph])

    def keep_with(self, backward: fx.GraphModule) -> None:
        """Keeps all that was planned with what is compiled of a backward graph."""
        fresh = [replace(planned, graph=replace(planned.graph)) for planned in self.planned]  # without what was derived
        with _no_harm():
            keep_note(backward, _Note(zlib.compress(pickle.dumps((self.places, fresh)))))  # torch's entry is a pickle

    def found_with(self, compiled: Callable[..., object]) -> list[PlannedGraph]:
        """Reads what was kept with a compiled graph, if torch took that from its cache."""
        with _no_harm():
            note = found_note(compiled)
            return [] if note is None else self.read(note)
        return []

    def read(self, note: bytes) -> list[PlannedGraph]:
        """Reads a note, and puts the values at the places of this graph."""
        before, kept = pickle.loads(zlib.decompress(note))
        return [_moved(planned, before, self.places) for planned in kept]


# If a backend of somebody else has torch read it from its cache, it is reported at once.
class _Note(bytes):
    def __reduce__(self) -> tuple[Any, ...]:
        return _read_again, (bytes(self),)


def _read_again(note: bytes) -> _Note:
    if _under_way.get() is None:
        with _no_harm():
            for planned in UnderWay(()).read(note):
                report_again(planned)
    return _Note(note)


# A report that lacks a graph is better than a step that does not compile.
@contextmanager
def _no_harm() -> Generator[None]:
    try:
        yield
    except Exception:  # whatever a plug-in's class, or a torch to come, has in store
        _LOGGER.debug("a plan is not kept with torch's compiled graph, or not found there", exc_info=True)


_under_way: ContextVar[UnderWay | None] = ContextVar("_under_way", default=None)


@contextmanager
def under_way(graph_module: fx.GraphModule) -> Generator[UnderWay]:
    """Records what is planned in the block, while a graph of Dynamo's is compiled."""
    regions = [module.graph for module in graph_module.modules() if isinstance(module, fx.GraphModule)]
    graph = UnderWay([place for region in regions for place in places_in([*region.nodes])])
    token = _under_way.set(graph)
    try:
        yield graph
    finally:
        _under_way.reset(token)


def keep(planned: Sequence[PlannedGraph], backward: fx.GraphModule | None) -> None:
    """Keeps plans with the graph that is being compiled in this thread.

    Args:
        backward: the graph to keep them with; None for a region inside the graph.
    """
    graph = _under_way.get() or UnderWay(())  # somebody else's backend: no places are known
    graph.planned += planned
    if backward is not None:
        graph.keep_with(backward)


# The values are where the model has them now; "" if one place has become two.
def _moved(planned: PlannedGraph, old: Sequence[Place], new: Sequence[Place]) -> PlannedGraph:
    now: dict[Place, Place] = {}
    for place, moved in zip(old, new, strict=bool(old and new)):
        now[place] = moved if now.get(place, moved) == moved else ("", "")
    graph = planned.graph
    places = [now.get(place, ("", "")) for place in zip(graph.modules, graph.sources, strict=True)]
    modules, sources = zip(*places, strict=True)
    return replace(planned, graph=replace(graph, modules=modules, sources=sources), from_cache=True)
