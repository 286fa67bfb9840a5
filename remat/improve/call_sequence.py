"""Computes the peak of calls that are alive at the same time, from what a plan of each of their graphs takes."""

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
        order: for each call, in the order of beginning, the position of its graph among the subproblems.
        in_reverse: each call ends before those that began earlier; if False, they may end in any order.
        shared: storages that calls return, and take from each other or from code between the graphs: the bytes of each,
            and the calls' positions, with the name that it has there.
    """

    order: tuple[int, ...]
    in_reverse: bool = False
    shared: Sequence[tuple[int, Sequence[tuple[int, str]]]] = ()


@dataclass(frozen=True)
class GraphMemory:
    """Holds what one plan of a graph takes, in bytes.

    Attributes:
        forward, backward: the most that are alive in each pass.
        between: what waits for the backward pass: what is saved, and outputs that somebody holds.
        gradients: what the backward pass leaves, without the gradients that it hands to earlier graphs.
        held: the names of the storages that wait.
    """

    forward: int
    backward: int
    between: int
    gradients: int
    held: frozenset[str]


@dataclass(frozen=True)
class _Crossing:
    """Describes a storage that a call returns or takes; with each call is the name that the storage has there."""

    size: int
    made: tuple[int, str] | None  # None if code between the graphs made it
    takers: Sequence[tuple[int, str]]
    needs_gradient: bool

    @property
    def begin(self) -> int:
        """Returns the first call in whose forward pass it is alive beside what that call makes."""
        return self.takers[0][0] if self.made is None else self.made[0] + 1


class CallsInOrder:
    """Computes the peak of one sequence of calls, whatever the plans of their graphs are."""

    def __init__(self, parts: Sequence[Subproblem], calls: CallSequence) -> None:
        self._parts, self._calls = parts, calls
        self._crossings = [self._crossing(size, uses) for size, uses in calls.shared]
        self._handed_back = self._handed_back_bytes()

    def peak(self, memories: Sequence[GraphMemory], *, is_bound: bool) -> int:
        """Returns the peak in bytes; arguments are those of `JointPeak.at`."""
        calls, in_reverse = [memories[graph] for graph in self._calls.order], self._calls.in_reverse
        between, gradients = np.array([(one.between, one.gradients) for one in calls], np.int64).T
        if in_reverse:
            beside, later = between.cumsum() - between, gradients.sum() - gradients.cumsum()
        else:  # each other call waits, or is over
            most = np.maximum(between, gradients)
            beside, later = most.sum() - most, 0
        forward = beside + [one.forward for one in calls]
        backward = beside + later + self._handed_back + [one.backward for one in calls]
        for crossing in () if is_bound else self._crossings:
            if crossing.made is not None and crossing.made[1] in calls[crossing.made[0]].held:
                continue  # the call that returned it counts it
            waiting = [call for call, name in crossing.takers if name in calls[call].held]
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

    # The peak of the call's backward pass has the gradient in it, as long as it is alive.
    def _counts_gradient(self, call: int, name: str) -> bool:
        part = self._parts[self._calls.order[call]]
        if name not in part.gradients or not records_calls(part.graph):
            return False
        return bool((part.graph.producers == part.graph.index[part.gradients[name]]).any())  # else it is handed on

    # While a call runs backward, the gradients are alive that later calls handed to it, or to calls before it.
    def _handed_back_bytes(self) -> IntArray:
        handed = np.zeros(len(self._calls.order), np.int64)
        for crossing in self._crossings:
            if crossing.takers and crossing.needs_gradient:
                first = max(crossing.begin - 1, 0)
                last = crossing.takers[-1][0] if self._calls.in_reverse else first + 1
                is_counted = crossing.made is not None and self._counts_gradient(*crossing.made)
                handed[first + is_counted : last] += crossing.size
        for call, graph in enumerate(self._calls.order):  # until it is over, `backward` holds the gradient of the loss
            handed[0 if self._calls.in_reverse else call : call + 1] += _loss_gradient_bytes(self._parts[graph])
        return handed


def _loss_gradient_bytes(part: Subproblem) -> int:
    graph, handed = part.graph, part.exchanged.gradients
    if not records_calls(graph):
        return 0  # shapes are not known
    tangents: list[int] = np.flatnonzero(graph.leaf & graph.in_tangents).tolist()
    scalars = [v for v in tangents if not graph.shapes[v] and graph.names[v] not in handed]
    return int(graph.bytes[scalars].sum())
