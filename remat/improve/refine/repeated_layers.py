"""Finds the layers that a deep model repeats, and makes a short graph that has only two of them.

What a plan does in one layer, it can do in all. So a search looks at a graph of two layers, the last, and
one that stands for all others, and its decisions are lifted to the whole. What comes before the first layer
and after the last stays, and with it parts of layers that are not quite like the others. The layers
are found in the order of the graph, which repeats itself: the forward pass with one period, and the
backward pass with another, the other way round. Every use is then checked: between any two
neighbouring layers it must go the same way. Where that does not hold, nothing is cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.errors import InvalidGraph
from remat.facts.bans import Bans
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region
from remat.improve.refine.equivalence_classes import equivalence_classes

KEPT = 2
"""Layers that stay; on GPT-2 three lead to the same plans, in a fourth more time."""

_OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class ShortGraph:
    """A graph with fewer layers, and what its values stand for in the whole.

    Attributes:
        graph: the short graph.
        stands_for: (n,) for each value of the whole, the position in the short graph whose decision it takes;
            -1 for the parameters of removed layers, about which there is nothing to decide.
        kept: for each value of the short graph, its position in the whole.
        layers: how many layers the whole has; 1 where nothing was cut.
    """

    graph: Graph
    stands_for: IntArray
    kept: IntArray
    layers: int

    @property
    def copies(self) -> IntArray:
        """How many values of the whole each value of the short graph stands for."""
        return np.bincount(self.stands_for[self.stands_for >= 0], minlength=len(self.graph))

    def lift(self, mask: BoolArray) -> BoolArray:
        """Returns a mask over the short graph, lifted to the whole."""
        return mask[self.stands_for] & (self.stands_for >= 0)

    def project(self, mask: BoolArray) -> BoolArray:
        """Returns a mask over the whole, as far as the short graph has its values."""
        return mask[self.kept]


def shorten(graph: Graph) -> ShortGraph:
    """Cuts out the layers that repeat others; returns the graph itself where no more than three are equal."""
    whole = whole_graph(graph)
    layout = _Layout.of(graph)
    if layout is None or layout.layers <= KEPT + 1:
        return whole
    try:
        return _cut(graph, layout)
    except (_Irregular, InvalidGraph):  # a use that goes another way somewhere
        return whole


def whole_graph(graph: Graph) -> ShortGraph:
    """Returns the graph as it is."""
    everything = np.arange(len(graph))
    return ShortGraph(graph, everything, everything, 1)


class _Irregular(Exception):
    """Says that a use does not repeat from layer to layer."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """Says where the layers are.

    Attributes:
        layer: (n,) from 0; -1 outside.
        place: (n,) which value of its layer each one is; those of the backward pass follow the others'. -1 outside.
        at: (layers, places) the inverse.
    """

    layer: IntArray
    place: IntArray
    at: IntArray

    @property
    def layers(self) -> int:
        return len(self.at)

    @classmethod
    def of(cls, graph: Graph) -> _Layout | None:
        tokens = equivalence_classes(graph, 0)
        given = graph.leaf
        body = np.flatnonzero(~given)
        late = np.flatnonzero((graph.region != int(Region.FORWARD)) & ~given)
        if not len(late):
            return None
        split = int((body < late.min()).sum())
        forward, backward = body[:split], body[split:]
        first, second = _longest_repetition(tokens[forward]), _longest_repetition(tokens[backward])
        if min(first.times, second.times) < 2:
            return None
        return _aligned(graph, first.rows(forward), second.rows(backward)[::-1])


def _aligned(graph: Graph, forward: IntArray, backward: IntArray) -> _Layout | None:
    """Joins the layers of both passes: those that read each other most belong together."""
    layer_f, layer_b = (np.full(len(graph), _OUTSIDE) for _ in range(2))
    layer_f[forward] = np.arange(len(forward))[:, None]
    layer_b[backward] = np.arange(len(backward))[:, None]
    crossing = (layer_f[graph.producers] >= 0) & (layer_b[graph.consumers] >= 0)
    if not crossing.any():
        return None
    u, v = graph.producers[crossing], graph.consumers[crossing]
    shifts: list[int] = (layer_f[u] - layer_b[v]).tolist()
    shift = Counter(shifts).most_common(1)[0][0]
    start, stop = max(0, shift), min(len(forward), len(backward) + shift)
    if stop - start < 2:
        return None
    at = np.concatenate([forward[start:stop], backward[start - shift : stop - shift]], axis=1)
    layer, place = (np.full(len(graph), _OUTSIDE) for _ in range(2))
    layer[at] = np.arange(len(at))[:, None]
    place[at] = np.arange(at.shape[1])[None, :]
    return _Layout(layer, place, at)


@dataclass(frozen=True)
class _Repetition:
    """`times` equal stretches of `period` tokens, from `start` on."""

    start: int
    period: int
    times: int

    def rows(self, positions: IntArray) -> IntArray:
        """Returns the positions of the stretches, (times, period)."""
        return positions[self.start : self.start + self.times * self.period].reshape(self.times, self.period)


def _longest_repetition(tokens: IntArray) -> _Repetition:
    best = _Repetition(0, 1, 0)
    for period in range(1, len(tokens) // 2 + 1):
        equal = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        ends = np.flatnonzero(equal[1:] != equal[:-1]).reshape(-1, 2)
        if not len(ends):
            continue
        start, stop = ends[int((ends[:, 1] - ends[:, 0]).argmax())].tolist()
        times = (stop - start) // period + 1
        if times >= 2 and times * period > best.times * best.period:
            best = _Repetition(start, period, times)
    return best


def _cut(graph: Graph, layout: _Layout) -> ShortGraph:
    """Removes the layers from KEPT - 1 on, but for the last.

    What stays reads, instead of a value that was removed, its counterpart in the layer that now is as
    far away as the removed one was.
    """
    _check_uses(graph, layout)
    removed = (layout.layer >= KEPT - 1) & (layout.layer < layout.layers - 1)
    stays = ~removed & ~_read_by_none_left(graph, removed)
    kept = np.flatnonzero(stays)
    position = np.full(len(graph), _OUTSIDE)
    position[kept] = np.arange(len(kept))
    uses = stays[graph.consumers]
    consumers = graph.consumers[uses]
    producers = _stand_ins(layout, graph.producers[uses], consumers)
    stands_for = np.arange(len(graph))
    stands_for[removed] = layout.at[KEPT - 2][layout.place[removed]]
    columns: dict[str, Any] = {name: _taken(getattr(graph, name), kept) for name in _BY_VALUE}
    columns |= {
        "storage": graph.storage[_stand_ins(layout, graph.base[kept], kept)],
        "producers": position[producers],
        "consumers": position[consumers],
        "fusible_uses": graph.fusible_uses[uses],
    }
    return ShortGraph(replace(graph, **columns), position[stands_for], kept, layout.layers)


_BY_VALUE = tuple(
    field.name
    for field in fields(Graph)
    if field.name not in ("storage", "producers", "consumers", "fusible_uses", "meta")
)
"""The columns of a graph with an entry a value that only speaks of that value."""


def _taken(column: Bans | tuple[Any, ...] | NDArray[Any], kept: IntArray) -> object:
    if isinstance(column, Bans):
        return column.take(kept)
    positions: list[int] = kept.tolist()
    return tuple(column[i] for i in positions) if isinstance(column, tuple) else column[kept]


def _read_by_none_left(graph: Graph, removed: BoolArray) -> BoolArray:
    read, left = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
    read[graph.producers] = True
    left[graph.producers[~removed[graph.consumers]]] = True
    return graph.leaf & read & ~left


def _check_uses(graph: Graph, layout: _Layout) -> None:
    """Raises `_Irregular` unless each layer uses what the layer before it uses, one layer on."""
    given: list[bool] = graph.leaf.tolist()
    layer: list[int] = layout.layer.tolist()
    place: list[int] = layout.place.tolist()
    rows: list[list[int]] = layout.at.tolist()
    for i in range(layout.layers - 1):
        at_an_end = i in (0, layout.layers - 2)
        for v, w in zip(rows[i], rows[i + 1], strict=True):
            if len(graph.operands[v]) != len(graph.operands[w]):
                raise _Irregular
            for a, b in zip(graph.operands[v], graph.operands[w], strict=True):
                inside = int(layer[a] >= 0) + int(layer[b] >= 0)
                repeats = (
                    place[a] == place[b] and layer[b] == layer[a] + 1
                    if inside == 2
                    else a == b or (given[a] and given[b])
                )
                if not repeats and not (inside == 1 and at_an_end):
                    raise _Irregular


def _stand_ins(layout: _Layout, values: IntArray, readers: IntArray) -> IntArray:
    """Returns what readers that stay read instead of some values, which may be removed.

    Raises:
        _Irregular: its counterpart would be in no layer.
    """
    last = layout.layers - 1
    of, by = layout.layer[values], layout.layer[readers]
    now = np.where(by == last, KEPT - 1, by) + of - by
    # From outside, what is read stays the same, or is counted from the last layer.
    stays = (of < KEPT - 1) | (of == last)
    now = np.where(by >= 0, now, np.where(of == last, KEPT - 1, np.where(stays, of, of - last + KEPT - 1)))
    inside = of >= 0
    if ((now < 0) | (now >= KEPT))[inside].any():
        raise _Irregular
    found = values.copy()
    new_layer = np.where(now == KEPT - 1, last, now)
    found[inside] = layout.at[new_layer[inside], layout.place[values[inside]]]
    return found
