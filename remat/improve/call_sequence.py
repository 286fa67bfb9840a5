"""Computes the peak memory of calls that are alive at the same time, from what each graph takes under its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import IntArray
from remat.improve.subproblem import Subproblem
from remat.predict.buffers import records_calls


@dataclass(frozen=True)
class CallSequence:
    """Describes calls of compiled graphs whose saved values are alive at the same time.

    Attributes:
        order: for each call, in the order in which the calls begin, the position of its graph among the subproblems.
        in_reverse: whether the calls end in the opposite order; if False, they may end in any order.
        shared: storages that several calls use, or that code between the graphs computes: for each, its bytes, and
            pairs: a position in `order` of a call that returns or reads the storage, and its name in that call's graph.
    """

    order: tuple[int, ...]
    in_reverse: bool = False
    shared: Sequence[tuple[int, Sequence[tuple[int, str]]]] = ()


@dataclass(frozen=True)
class GraphMemory:
    """Holds the memory that a graph takes under one plan, in bytes.

    Attributes:
        forward, backward: the most bytes that are alive in each pass.
        between_passes: the bytes alive between the passes: saved values, and outputs that the caller keeps.
        gradients: the bytes of what the backward pass returns, without the gradients of what earlier graphs computed.
        held_storages: the names of the storages that are alive between the passes.
    """

    forward: int
    backward: int
    between_passes: int
    gradients: int
    held_storages: frozenset[str]


@dataclass(frozen=True)
class _Crossing:
    """Describes a storage that one call returns and others read; pairs hold a call and the storage's name in it."""

    size: int
    producer: tuple[int, str] | None  # None if code between the graphs made it
    takers: Sequence[tuple[int, str]]
    needs_gradient: bool

    @property
    def begin(self) -> int:
        """Returns the position of the first call whose forward pass begins when the storage already exists."""
        return self.takers[0][0] if self.producer is None else self.producer[0] + 1


class CallsInOrder:
    """Computes the peak of one sequence of calls for any plans of their graphs."""

    def __init__(self, parts: Sequence[Subproblem], calls: CallSequence) -> None:
        self._parts, self._calls = parts, calls
        self._crossings = [self._crossing(size, uses) for size, uses in calls.shared]
        self._handed_back = self._handed_back_bytes()

    def peak(self, memories: Sequence[GraphMemory], *, is_bound: bool) -> int:
        """Returns the peak in bytes; arguments are those of `JointPeak.at`."""
        calls, in_reverse = [memories[graph] for graph in self._calls.order], self._calls.in_reverse
        between, gradients = np.array([(one.between_passes, one.gradients) for one in calls], np.int64).T
        if in_reverse:
            beside, later = between.cumsum() - between, gradients.sum() - gradients.cumsum()
        else:  # each other call waits, or is over
            most = np.maximum(between, gradients)
            beside, later = most.sum() - most, 0
        forward = beside + [one.forward for one in calls]
        backward = beside + later + self._handed_back + [one.backward for one in calls]
        for crossing in () if is_bound else self._crossings:
            if crossing.producer is not None and crossing.producer[1] in calls[crossing.producer[0]].held_storages:
                continue  # the call that returned it counts it
            waiting = [call for call, name in crossing.takers if name in calls[call].held_storages]
            forward[crossing.begin if in_reverse else 0 :] += crossing.size
            if waiting:
                backward[min(waiting) if in_reverse else 0 :] += crossing.size
        return int(max(forward.max(), backward.max()))

    def _crossing(self, size: int, uses: Sequence[tuple[int, str]]) -> _Crossing:
        made, takers, needs_gradient = None, list[tuple[int, str]](), False
        for call, name in uses:
            part = self._parts[self._calls.order[call]]
            v = part.graph.index[name]
            size = max(size, int(part.graph.bytes[v]))  # a plan may be one for larger sizes
            if part.graph.input[v]:
                takers.append((call, name))
                needs_gradient |= name in part.earlier
            else:
                made = call, name
        return _Crossing(size, made, sorted(takers), needs_gradient)

    # Whether the peak of the call's own backward pass includes the gradient of one of its results.
    def _counts_gradient(self, call: int, name: str) -> bool:
        part = self._parts[self._calls.order[call]]
        if name not in part.gradients or not records_calls(part.graph):
            return False
        # A gradient that no operator reads goes to an earlier graph.
        return bool((part.graph.producers == part.graph.index[part.gradients[name]]).any())

    # Gradients that later calls have computed for this call, or for earlier ones, are alive in its backward pass.
    def _handed_back_bytes(self) -> IntArray:
        handed = np.zeros(len(self._calls.order), np.int64)
        for crossing in self._crossings:
            if crossing.takers and crossing.needs_gradient:
                first = max(crossing.begin - 1, 0)
                last = crossing.takers[-1][0] if self._calls.in_reverse else first + 1
                is_counted = crossing.producer is not None and self._counts_gradient(*crossing.producer)
                handed[first + is_counted : last] += crossing.size
        for call, graph in enumerate(self._calls.order):  # until it is over, `backward` holds the gradient of the loss
            handed[0 if self._calls.in_reverse else call : call + 1] += _loss_gradient_bytes(self._parts[graph])
        return handed


def _loss_gradient_bytes(part: Subproblem) -> int:
    graph, handed = part.graph, set(part.gradients.values())
    if not records_calls(graph):
        return 0  # shapes are not known
    tangents: list[int] = np.flatnonzero(graph.leaf & graph.in_tangents).tolist()
    scalars = [v for v in tangents if not graph.shapes[v] and graph.names[v] not in handed]
    return int(graph.bytes[scalars].sum())
