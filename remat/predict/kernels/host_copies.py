"""Says where a pass copies what is offloaded: to the host behind its last reader, and back before the first.

`remat.pytorch.run.offload_copies` adds the copies to the graphs of both passes by this, and they are predicted by it.

Copies are made between the kernels, or beside them, in a stream of their own. Then a copy begins in one place and ends
in another. Matrix products and the like cut a pass into stages: those of the forward pass by how many a value waits
for, those of the backward pass by how many have run. What is copied to the host in one stage stays on the device until
the first copy of the next has begun; what is read in one stage begins to come back when the first value of the one
before has come. So most copies have the time of a product, or more, and only the values of two stages are on their way.
For those of the last stage of the forward pass the kernels wait. What the backward pass alone needs comes late in the
order of the graph: it is computed behind what it reads (`early_places`), so that its copy is not among these.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region
from remat.predict.memory.order import first_readers

CopyStep: TypeAlias = Literal[
    "copied to the host",
    "copied back",
    "copy to the host begins",
    "copy to the host ends",
    "copy back begins",
    "copy back ends",
]


@dataclass(frozen=True)
class Copy:
    """Describes a copy of an offloaded value; if copies have a stream of their own, the begin or the end of one."""

    step: CopyStep
    value: int  # position of the value
    # position of another value, whose copy to the host has begun before, or whose copy back has ended.
    predecessor: int | None = None


class HostCopies:
    """Lists the copies of one pass, in the order in which they are due.

    Args:
        copy_stream: whether copies run in a stream of their own, beside the kernels.
    """

    def __init__(self, graph: Graph, values: IntArray, hosted: BoolArray, *, backward: bool, copy_stream: bool) -> None:
        self._waiting = list[tuple[int, Copy]]()
        if not hosted.any():
            return
        place = np.full(len(graph), -1)
        place[values] = np.arange(len(values))
        # The elements of a tuple follow it at once, wherever they were in the graph.
        self._place: list[int] = np.where(graph.tuple_element, -1, place).tolist()
        due = _first_readers(graph, place, len(values)) if backward else _last_readers(graph, place) + 1
        found = np.flatnonzero(hosted & (due <= len(values)))
        found = found[np.argsort(due[found], kind="stable")].tolist()
        if not copy_stream:
            step: CopyStep = "copied back" if backward else "copied to the host"
            copies = [(int(due[v]), Copy(step, v)) for v in found]
        elif backward:
            products = np.append(0, graph.compute_bound[values].cumsum())
            copies = _begun_before(_staged(found, due, products[due[found]]))
        else:
            copies = _ended_later(_staged(found, due, _products_behind(graph, values)[due[found] - 1]), len(values))
        self._waiting = copies[::-1]

    def due_before(self, v: int) -> list[Copy]:
        """Removes and returns the copies that are made before the pass computes v."""
        return self._pop_due(self._place[v]) if self._waiting else []

    def remaining(self) -> list[Copy]:
        """Removes and returns the copies that are made at the end of the pass."""
        return self._pop_due(len(self._place)) if self._waiting else []

    def _pop_due(self, place: int) -> list[Copy]:
        copies = list[Copy]()
        while self._waiting and self._waiting[-1][0] <= place:
            copies.append(self._waiting.pop()[1])
        return copies


def early_places(graph: Graph, values: IntArray) -> IntArray:
    """Finds a place for each value of a forward pass at which copies beside the kernels can begin early.

    A value that the backward pass alone needs moves behind the last value that it reads: in the graph it comes late,
    with the gradients that read it. All others stay where they are.

    Returns:
        (k,) the place behind which each is computed.
    """
    at: list[int] = np.where(graph.input, -1, len(graph)).tolist()
    moves: list[bool] = ((graph.region == Region.EITHER) & ~graph.random & ~graph.cannot_recompute.mask).tolist()
    positions: list[int] = values.tolist()
    for place, v in enumerate(positions):
        read = max((at[u] for u in graph.operands[v]), default=-1)
        at[v] = read if moves[v] and 0 <= read < place else place
    return np.array(at, np.int64)[values]


# The values that are due in one stage, in order, each behind its place.
_Stage: TypeAlias = list[tuple[int, int]]


def _staged(found: list[int], due: IntArray, stage: IntArray) -> list[_Stage]:
    stages: dict[int, _Stage] = {}
    for v, number in zip(found, stage.tolist(), strict=True):
        stages.setdefault(number, []).append((int(due[v]), v))
    return [stages[number] for number in sorted(stages)]


# How many matrix products and the like each value waits for, one behind the other.
def _products_behind(graph: Graph, values: IntArray) -> IntArray:
    behind = [0] * len(graph)
    positions: list[int] = values.tolist()
    for v in positions:
        behind[v] = max([0, *(behind[u] for u in graph.operands[v])]) + int(graph.compute_bound[v])
    return np.array(behind, np.int64)[values]


# A copy to the host ends when one of the next stage has begun; the last ones end with the pass.
def _ended_later(stages: list[_Stage], end: int) -> list[tuple[int, Copy]]:
    copies = [(place, Copy("copy to the host begins", v)) for stage in stages for place, v in stage]
    for stage, following in pairwise(stages):
        first, other = following[0]
        copies += [(max(place, first), Copy("copy to the host ends", v, predecessor=other)) for place, v in stage]
    copies += [(end, Copy("copy to the host ends", v)) for stage in stages[-1:] for _, v in stage]
    return sorted(copies, key=lambda copy: copy[0])


# A copy back begins when the first one of the stage before has come; the first ones begin with the pass.
def _begun_before(stages: list[_Stage]) -> list[tuple[int, Copy]]:
    copies = [(0, Copy("copy back begins", v)) for stage in stages[:1] for _, v in stage]
    copies += [(place, Copy("copy back ends", v)) for stage in stages for place, v in stage]
    for stage, following in pairwise(stages):
        first, other = stage[0]
        copies += [(first, Copy("copy back begins", v, predecessor=other)) for _, v in following]
    return sorted(copies, key=lambda copy: copy[0])


# A value that the pass returns unread is read at its end.
def _first_readers(graph: Graph, place: IntArray, end: int) -> IntArray:
    first = first_readers(graph, place, end + 1)
    return np.where(graph.gradient, np.minimum(first, end), first)


# The readers of a view count; without any reader, a value's own place.
def _last_readers(graph: Graph, place: IntArray) -> IntArray:
    last = place.copy()
    order = np.argsort(-graph.producers, kind="stable")
    for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
        last[u] = max(last[u], last[v] if graph.view[v] else place[v])
    return last
