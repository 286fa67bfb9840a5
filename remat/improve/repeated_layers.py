"""Finds the layers that the forward pass of a deep model repeats, by the operators in the order of the graph."""

from __future__ import annotations

import numpy as np

from remat.facts.columns import IntArray
from remat.facts.graph import Graph

_OUTSIDE = -1


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
