"""Says where a pass copies what is offloaded: to the host behind its last reader, and back before the first.

`remat.pytorch.run.offloading` adds the copies to the graphs of both passes by this, and they are predicted by it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.predict.memory.order import first_readers


class HostCopies:
    """The copies of one pass, in the order in which they are due.

    Args:
        graph: the joint graph.
        values: what the pass computes, in order.
        hosted: (n,) what is offloaded.
        backward: it is the pass that copies back.

    Attributes:
        to: where it copies to.
    """

    def __init__(self, graph: Graph, values: IntArray, hosted: BoolArray, *, backward: bool) -> None:
        self.to: Literal["to the host", "back"] = "back" if backward else "to the host"
        place = np.full(len(graph), -1)
        place[values] = np.arange(len(values))
        # The elements of a tuple follow it at once, wherever they were in the graph.
        self._place: list[int] = np.where(graph.tuple_element, -1, place).tolist()
        due = first_readers(graph, place, len(graph) + 1) if backward else _last_readers(graph, place) + 1
        found = np.flatnonzero(hosted & (due <= len(values)))
        order = np.lexsort((found, due[found]))[::-1]
        self._waiting: list[tuple[int, int]] = list(zip(due[found][order].tolist(), found[order].tolist(), strict=True))

    def before(self, v: int) -> list[int]:
        """Takes off the values that are copied before the pass computes v."""
        return self._taken(self._place[v])

    def left(self) -> list[int]:
        """Takes off the values that are copied when the pass has computed all."""
        return self._taken(len(self._place))

    def _taken(self, place: int) -> list[int]:
        taken = list[int]()
        while self._waiting and self._waiting[-1][0] <= place:
            taken.append(self._waiting.pop()[1])
        return taken


def _last_readers(graph: Graph, place: IntArray) -> IntArray:
    """(n,) the place of the last operator of the pass that reads a value, or a view of it; its own for none."""
    last = place.copy()
    order = np.argsort(-graph.producers, kind="stable")
    for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
        last[u] = max(last[u], last[v] if graph.view[v] else place[v])
    return last
