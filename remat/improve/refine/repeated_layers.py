"""Finds the layers that a deep model repeats, and makes a short graph that has only two of them.

What a plan does in one layer, it can do in all. So the search looks at a graph of two layers, the last one and one that
stands for all others, and its decisions are lifted to the whole graph. What comes before the first layer and after the
last one stays, and so do parts of layers that are not quite like the others. Layers are found in the order of the
graph: the forward pass repeats with one period, and the backward pass with another, in the opposite order. Then every
use is checked: between any two neighbouring layers it must go the same way. If one does not, nothing is cut.
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
"""This many layers stay; on GPT-2 three lead to the same plans, in a fourth more time."""

_OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class ShortGraph:
    """Holds a graph with fewer layers, and what its values stand for in the whole graph.

    Attributes:
        graph: the short graph.
        stands_for: (n,) for each value of the whole graph, the position in the short graph whose decision it takes; -1
            for the parameters of removed layers, about which there is nothing to decide.
        positions: for each value of the short graph, its position in the whole graph.
        layers: how many layers the whole graph has; 1 if nothing was cut.
    """

    graph: Graph
    stands_for: IntArray
    positions: IntArray
    layers: int

    @property
    def copies(self) -> IntArray:
        """Counts how many values of the whole graph each value of the short graph stands for."""
        return np.bincount(self.stands_for[self.stands_for >= 0], minlength=len(self.graph))

    def lift(self, mask: BoolArray) -> BoolArray:
        """Returns the mask over the whole graph that follows from a mask over the short graph."""
        return mask[self.stands_for] & (self.stands_for >= 0)

    def project(self, mask: BoolArray) -> BoolArray:
        """Returns the mask over the short graph that follows from a mask over the whole graph."""
        return mask[self.positions]


def shorten(graph: Graph) -> ShortGraph:
    """Cuts out the layers that repeat others; returns the graph itself if no more than three are equal."""
    whole = whole_graph(graph)
    layout = _Layout.of(graph)
    if layout is None or layout.layers <= KEPT + 1:
        return whole
    try:
        return _cut(graph, layout)
    except (_Irregular, InvalidGraph):  # a use that goes another way somewhere
        return whole


def repeated_layers(graph: Graph) -> IntArray:
    """Numbers, for each of n values, the repeated block of the forward pass that computes it; -1 outside of all."""
    forward = np.flatnonzero(graph.in_forward & ~graph.leaf)
    # Without arguments: a block has seeds of its own for its random numbers.
    number: dict[object, int] = {}
    looks = zip(graph.ops, graph.dtypes, graph.shapes, strict=True)
    tokens = np.array([number.setdefault(look, len(number)) for look in looks], np.int64)
    blocks = _longest_repetition(tokens[forward], forward)
    for period in range(1, blocks.shape[1]):  # a stretch of two layers each may be one of twice as many layers
        if blocks.shape[1] % period == 0:
            shorter = blocks.reshape(-1, period)
            if (tokens[shorter] == tokens[shorter[0]]).all():
                blocks = shorter
                break
    layer = np.full(len(graph), _OUTSIDE)
    layer[blocks] = np.arange(len(blocks))[:, None]
    return layer


def whole_graph(graph: Graph) -> ShortGraph:
    everything = np.arange(len(graph))
    return ShortGraph(graph, everything, everything, 1)


class _Irregular(Exception):
    """Reports that a use does not repeat from layer to layer."""


@dataclass(frozen=True, eq=False)
class _Layout:
    """Holds the positions of the layers in a graph.

    Attributes:
        layer: (n,) the number of the layer, from 0; -1 outside.
        place: (n,) which value of its layer each one is, those of the backward pass last; -1 outside.
        at: (layers, places) the position in the graph.
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
        is_leaf = graph.leaf
        body = np.flatnonzero(~is_leaf)
        late = np.flatnonzero((graph.region != int(Region.FORWARD)) & ~is_leaf)
        if not len(late):
            return None
        split = int((body < late.min()).sum())
        forward, backward = (_longest_repetition(tokens[values], values) for values in (body[:split], body[split:]))
        return _aligned(graph, forward, backward[::-1]) if min(len(forward), len(backward)) >= 2 else None


def _aligned(graph: Graph, forward: IntArray, backward: IntArray) -> _Layout | None:
    """Matches the layers of both passes: two layers belong together if most uses lead from one to the other."""
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


def _longest_repetition(tokens: IntArray, positions: IntArray) -> IntArray:
    """Returns the longest run of equal rows of tokens, as positions (rows, period); it may be empty."""
    best = positions[:0].reshape(0, 1)
    for period in range(1, len(tokens) // 2 + 1):
        equal = np.concatenate([[False], tokens[period:] == tokens[:-period], [False]])
        ends = np.flatnonzero(equal[1:] != equal[:-1]).reshape(-1, 2)
        if not len(ends):
            continue
        start, stop = ends[int((ends[:, 1] - ends[:, 0]).argmax())].tolist()
        times = (stop - start) // period + 1
        if times >= 2 and times * period > best.size:
            best = positions[start : start + times * period].reshape(times, period)
    return best


def _cut(graph: Graph, layout: _Layout) -> ShortGraph:
    """Removes the layers from KEPT - 1 on, except the last one.

    What read a removed value now reads that value of the layer that is as far away as the removed one was.
    """
    _check_uses(graph, layout)
    removed = (layout.layer >= KEPT - 1) & (layout.layer < layout.layers - 1)
    stays = ~removed & ~_read_by_none_left(graph, removed)
    positions = np.flatnonzero(stays)
    new_position = np.full(len(graph), _OUTSIDE)
    new_position[positions] = np.arange(len(positions))
    uses = stays[graph.consumers]
    consumers = graph.consumers[uses]
    producers = _stand_ins(layout, graph.producers[uses], consumers)
    stands_for = np.arange(len(graph))
    stands_for[removed] = layout.at[KEPT - 2][layout.place[removed]]
    columns: dict[str, Any] = {name: _rows_of(getattr(graph, name), positions) for name in _BY_VALUE}
    columns |= {
        "storage": graph.storage[_stand_ins(layout, graph.base[positions], positions)],
        "producers": new_position[producers],
        "consumers": new_position[consumers],
        "fusible_uses": graph.fusible_uses[uses],
    }
    return ShortGraph(replace(graph, **columns), new_position[stands_for], positions, layout.layers)


# The columns of a graph that have an entry for each value which says something of that value alone.
_BY_VALUE = tuple(
    field.name
    for field in fields(Graph)
    if field.name not in ("storage", "producers", "consumers", "fusible_uses", "meta")
)


def _rows_of(column: Bans | tuple[Any, ...] | NDArray[Any], indices: IntArray) -> object:
    if isinstance(column, Bans):
        return column.take(indices)
    positions: list[int] = indices.tolist()
    return tuple(column[i] for i in positions) if isinstance(column, tuple) else column[indices]


def _read_by_none_left(graph: Graph, removed: BoolArray) -> BoolArray:
    read, left = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
    read[graph.producers] = True
    left[graph.producers[~removed[graph.consumers]]] = True
    return graph.leaf & read & ~left


def _check_uses(graph: Graph, layout: _Layout) -> None:
    is_leaf: list[bool] = graph.leaf.tolist()
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
                    else a == b or (is_leaf[a] and is_leaf[b])
                )
                if not repeats and not (inside == 1 and at_an_end):
                    raise _Irregular


def _stand_ins(layout: _Layout, values: IntArray, readers: IntArray) -> IntArray:
    """Returns what `readers`, which stay, read instead of `values`, which may be removed.

    Raises:
        _Irregular: no layer that is left is as far away.
    """
    last = layout.layers - 1
    layer, reader_layer = layout.layer[values], layout.layer[readers]
    target = np.where(reader_layer == last, KEPT - 1, reader_layer) + layer - reader_layer
    # From outside, what is read stays the same, or is counted from the last layer.
    stays = (layer < KEPT - 1) | (layer == last)
    target = np.where(
        reader_layer >= 0, target, np.where(layer == last, KEPT - 1, np.where(stays, layer, layer - last + KEPT - 1))
    )
    inside = layer >= 0
    if ((target < 0) | (target >= KEPT))[inside].any():
        raise _Irregular
    stand_ins = values.copy()
    new_layer = np.where(target == KEPT - 1, last, target)
    stand_ins[inside] = layout.at[new_layer[inside], layout.place[values[inside]]]
    return stand_ins
