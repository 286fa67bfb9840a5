"""Finds equivalent values: a model that repeats a layer computes each value of the layer many times.

Colours are refined as by Weisfeiler and Lehman (1968). The first colour of a value says what it is and how it was
computed; each round adds the colours of its arguments, in order, and of its consumers, sorted. After k rounds two
values have one colour if their surroundings look the same up to a distance of k, forwards and backwards. Their
surroundings may still differ as graphs, since colours compare trees. So a colour says only which values to try
together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from remat.facts.columns import FLAGS, IntArray
from remat.facts.graph import Graph
from remat.facts.uses import operands_of

# Each random operator has a seed of its own, so that without this rule no dropout would be equivalent to another.
_SEED = "prims.inductor_lookup_seed.default"


def _local_colours(graph: Graph) -> list[str]:
    marks = np.stack([getattr(graph, flag) for flag in FLAGS])
    packed = np.packbits(marks, axis=0).T.tolist()
    return [
        repr(fact)
        for fact in zip(
            graph.ops,
            graph.dtypes,
            graph.shapes,
            graph.bytes.tolist(),
            graph.region.tolist(),
            # All seeds of a graph are equal: they differ only by a number among their arguments.
            ["" if op == _SEED else call for op, call in zip(graph.ops, graph.arguments, strict=True)],
            graph.cannot_save.codes.tolist(),
            graph.cannot_recompute.codes.tolist(),
            packed,
            strict=True,
        )
    ]


def equivalence_classes(graph: Graph, rounds: int) -> IntArray:
    """Numbers the values, (n,): equal numbers for values that look the same up to a distance of `rounds`.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> x, y = g.input("x", bytes=4), g.input("y", bytes=4)
    >>> g.output(g.op("sin", x), g.op("sin", y), g.op("cos", g.op("sin", x)))
    >>> equivalence_classes(g.build(), 0).tolist(), equivalence_classes(g.build(), 1).tolist()
    ([0, 0, 1, 1, 2, 3], [0, 1, 2, 2, 3, 4])
    """
    operands, readers = graph.operands, operands_of(len(graph), graph.consumers, graph.producers)
    colour = [_digest(text) for text in _local_colours(graph)]
    for _ in range(rounds):
        colour = [
            _digest(repr((colour[v], [colour[u] for u in operands[v]], sorted(colour[w] for w in readers[v]))))
            for v in range(len(graph))
        ]
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(c, len(number)) for c in colour], np.int64)


def _digest(text: str) -> bytes:
    # Unlike `hash`, this is the same in every process.
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def by_class(values: IntArray, classes: IntArray) -> Iterator[IntArray]:
    """Yields the `values`, (m,) positions, of each class; `classes` holds the class of each position."""
    return (values[classes[values] == each] for each in np.unique(classes[values]))
