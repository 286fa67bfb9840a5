"""Lists the kernels of a compiler without fusion: one per operator, none for views and elements of tuples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from remat.facts.graph import Graph
from remat.predict.kernels.kernel import Kernel
from remat.predict.memory.order import Order


def unfused_kernels(graph: Graph, order: Order) -> Iterator[Kernel]:
    free = graph.view | graph.tuple_element
    elements: list[list[int]] = [[] for _ in range(len(graph))]
    for v in np.flatnonzero(graph.tuple_element & ~graph.view).tolist():
        for u in graph.operands[v]:
            elements[u].append(v)
    for values, backward in ((order.forward, False), (order.backward, True)):
        launched: list[int] = values[~free[values]].tolist()
        for v in launched:
            yield _kernel(graph, v, elements[v], backward)


def _kernel(graph: Graph, v: int, elements: list[int], backward: bool) -> Kernel:
    base, moved, size = graph.base, graph.moved_bytes, graph.storage_bytes
    read: dict[int, int] = {}
    for u in graph.operands[v]:
        storage = int(base[u])
        read[storage] = min(read.get(storage, 0) + int(moved[u]), int(size[u]))
    written = {int(base[x]): int(moved[x]) for x in (elements or [v])}
    values, sizes = tuple(sorted({v, *elements})), (sum(read.values()), sum(written.values()))
    return Kernel(backward, bool(graph.fusible[v]), values, tuple(read), tuple(written), *sizes)
