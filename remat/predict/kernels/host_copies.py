"""Decides where a pass copies offloaded values: to the host after the last reader, and back before the first.

`remat.pytorch.run.offload_copies` adds these copies to the graphs of both passes, and the predictor counts the same
ones.

Copies run either between the kernels or in a CUDA stream of their own. With a stream, a copy begins in one place and
ends in another. The places follow from the stages of a pass, which matrix products, convolutions and attention delimit:

- In the forward pass, the stage of a value is the largest number of such operators on a path to it. In the backward
  pass, it is the number of such operators that have run.
- A value that is copied to the host in one stage stays on the device until the first copy of the next stage has begun.
- A value that is read in one stage begins to come back when the first value of the previous stage has arrived.

So most copies can take as long as one product or more, and only the values of two stages are in transit. The kernels
wait only for the copies of the last stage of the forward pass. Values that only the backward pass needs come late in
the graph's order. They are computed right after their operands (`early_places`), so that they are not in this last
stage.
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

# The values that are due in one stage, in order, each as (place, value).
_Stage: TypeAlias = list[tuple[int, int]]


@dataclass(frozen=True)
class Copy:
    """Represents a copy of an offloaded value, or, with a copy stream, its beginning or its end."""

    step: CopyStep
    value: int  # position of the value
    # position of another value, whose copy to the host must have begun, or whose copy back must have ended.
    predecessor: int | None = None


class HostCopies:
    """Holds the copies of one pass, in execution order.

    Args:
        copy_stream: whether copies run in a CUDA stream of their own, concurrently with the kernels.
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
        copied = np.flatnonzero(hosted & (due <= len(values)))
        copied = copied[np.argsort(due[copied], kind="stable")].tolist()
        if not copy_stream:
            step: CopyStep = "copied back" if backward else "copied to the host"
            copies = [(int(due[v]), Copy(step, v)) for v in copied]
        elif backward:
            products = np.append(0, graph.compute_bound[values].cumsum())
            copies = _begun_before(_staged(copied, due, products[due[copied]]))
        else:
            copies = _ended_later(_staged(copied, due, _products_behind(graph, values)[due[copied] - 1]), len(values))
        self._waiting = copies[::-1]

    def due_before(self, v: int) -> list[Copy]:
        """Removes and returns the copies that run before the pass computes v."""
        return self._pop_due(self._place[v]) if self._waiting else []

    def remaining(self) -> list[Copy]:
        """Removes and returns the copies that run at the end of the pass."""
        return self._pop_due(len(self._place)) if self._waiting else []

    def _pop_due(self, place: int) -> list[Copy]:
        copies = list[Copy]()
        while self._waiting and self._waiting[-1][0] <= place:
            copies.append(self._waiting.pop()[1])
        return copies


def early_places(graph: Graph, values: IntArray) -> IntArray:
    """Returns places for the values of a forward pass, so that copies in a stream of their own can begin early.

    A value that only the backward pass needs comes late in the graph, with the gradients that read it. It moves to the
    place after its last operand; all others stay.

    Returns:
        an array (k,) of the place after which each value is computed.
    """
    at: list[int] = np.where(graph.input, -1, len(graph)).tolist()
    moves: list[bool] = ((graph.region == Region.EITHER) & ~graph.random & ~graph.cannot_recompute.mask).tolist()
    positions: list[int] = values.tolist()
    for place, v in enumerate(positions):
        read = max((at[u] for u in graph.operands[v]), default=-1)
        at[v] = read if moves[v] and 0 <= read < place else place
    return np.array(at, np.int64)[values]


def _staged(copied: list[int], due: IntArray, stage: IntArray) -> list[_Stage]:
    stages: dict[int, _Stage] = {}
    for v, number in zip(copied, stage.tolist(), strict=True):
        stages.setdefault(number, []).append((int(due[v]), v))
    return [stages[number] for number in sorted(stages)]


# For each value, the longest chain of compute-bound operators that it depends on.
def _products_behind(graph: Graph, values: IntArray) -> IntArray:
    behind = [0] * len(graph)
    positions: list[int] = values.tolist()
    for v in positions:
        behind[v] = max([0, *(behind[u] for u in graph.operands[v])]) + int(graph.compute_bound[v])
    return np.array(behind, np.int64)[values]


# A copy to the host ends when the first one of the next stage has begun; those of the last stage end with the pass.
def _ended_later(stages: list[_Stage], end: int) -> list[tuple[int, Copy]]:
    copies = [(place, Copy("copy to the host begins", v)) for stage in stages for place, v in stage]
    for stage, following in pairwise(stages):
        first, other = following[0]
        copies += [(max(place, first), Copy("copy to the host ends", v, predecessor=other)) for place, v in stage]
    copies += [(end, Copy("copy to the host ends", v)) for stage in stages[-1:] for _, v in stage]
    return sorted(copies, key=lambda copy: copy[0])


# A copy back begins when the first one of the stage before has ended; those of the first stage begin with the pass.
def _begun_before(stages: list[_Stage]) -> list[tuple[int, Copy]]:
    copies = [(0, Copy("copy back begins", v)) for stage in stages[:1] for _, v in stage]
    copies += [(place, Copy("copy back ends", v)) for stage in stages for place, v in stage]
    for stage, following in pairwise(stages):
        first, other = stage[0]
        copies += [(first, Copy("copy back begins", v, predecessor=other)) for _, v in following]
    return sorted(copies, key=lambda copy: copy[0])


# A value that the pass returns without reading counts as read at the end of the pass.
def _first_readers(graph: Graph, place: IntArray, end: int) -> IntArray:
    first = first_readers(graph, place, end + 1)
    return np.where(graph.gradient, np.minimum(first, end), first)


# A reader of a view counts as a reader of the value; a value without readers has its own place.
def _last_readers(graph: Graph, place: IntArray) -> IntArray:
    last = place.copy()
    order = np.argsort(-graph.producers, kind="stable")
    for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
        last[u] = max(last[u], last[v] if graph.view[v] else place[v])
    return last
