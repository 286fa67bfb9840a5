"""Counts calls of compiled graphs while their saved values are alive, and records which are alive at the same time."""

from __future__ import annotations

import gc
import weakref
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from remat.pytorch.run.shared_storages import Shared, SharedStorages
from remat.pytorch.seam.compilations import saved_values_freed

CallCounts: TypeAlias = frozenset[tuple[str, int]]
"""The keys of graphs, each with the number of its calls that are alive at the same time."""


@dataclass(frozen=True)
class Overlap:
    """Describes calls whose saved values were alive at the same time.

    Attributes:
        order: for each call, the key of its graph, in the order in which the calls began.
        shared: the storages that several of the calls use, or that other graphs passed to them.
        handed_bytes: the most bytes of the calls' inputs that other graphs computed, and that no plan counts.
        in_reverse: whether the calls ended in the reverse of the order in which they began.
    """

    order: tuple[str, ...]
    shared: Shared = ()
    handed_bytes: int = 0
    in_reverse: bool = True


class LiveCalls:
    """Counts calls of graphs from their forward pass to their backward pass, by the keys of the graphs.

    Args:
        watches_results: whether to record also which results are still alive when a backward pass begins.
    """

    def __init__(self, *, watches_results: bool) -> None:
        self._watches = watches_results
        self._numbers = count()
        self._live: dict[int, str] = {}
        self._saved: dict[int, Collection[str]] = {}
        self._released: deque[int] = deque()
        self._begun: deque[weakref.finalize[[int], Any]] = deque()
        self._from_other_graphs: dict[int, int] = {}
        self._storages = SharedStorages()
        self._seen: dict[CallCounts, Overlap] = {}
        self._outputs: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}

    @property
    def together(self) -> CallCounts:
        """Returns how many calls of each graph are alive now."""
        self._count_released()
        return self._alive

    @property
    def _alive(self) -> CallCounts:
        return frozenset(Counter(self._live.values()).items())

    @property
    def now(self) -> Overlap:
        """Describes the calls that are alive now."""
        shared, handed_bytes = self._storages.among(self._live), sum(self._from_other_graphs.values())
        return Overlap(tuple(self._live.values()), shared, handed_bytes)

    def dropped_results(self, key: str) -> frozenset[str]:
        """Returns the names of those results of a graph that were never alive when one of its backward passes began."""
        return frozenset(name for one, name in self._outputs[False] - self._outputs[True] if one == key)

    def begin_call(
        self,
        key: str,
        from_other_graphs: Mapping[int, int],
        activations: Mapping[str, Tensor],
        node: Any,
        saved: Collection[str] = (),
    ) -> None:
        """Counts a call whose saved values are alive from now on.

        Args:
            key: the key of its graph.
            from_other_graphs: the bytes of each storage of its inputs that another graph computed and no plan counts.
            activations: the activations that it reads and returns (see `activations_of`).
            node: the node of autograd that holds the saved values. They are freed when its backward pass has read them,
                or when the node is deleted, whichever comes first.
            saved: the names of the storages that the call saves. Whether others hold these, too, cannot be found out.
        """
        self._count_released()
        self._from_other_graphs.update(from_other_graphs)
        number = next(self._numbers)
        self._live[number], self._saved[number] = key, saved
        self._storages.note(number, activations)
        ended = weakref.finalize(node, self._released.append, number)  # from any thread, at any time
        ended.atexit = False
        self._begun.append(ended)

        def read(*_: Any) -> None:
            if not is_dynamo_compiling():  # under compiled autograd, where Dynamo would trace this function
                self._look_at_results(number, key)
                ended()

        node.register_prehook(read)  # a hook that runs after the node would keep the incoming gradients alive

    # Called when the backward pass of a call begins. Later calls have ended by then and hold nothing, so whatever is
    # alive of the call's inputs and results is held by others. Before the first backward pass, the results of all other
    # calls are recorded, too, if no further call has read them.
    def _look_at_results(self, number: int, key: str) -> None:
        if not self._watches:
            return
        is_first, dropped = number == next(reversed(self._live), None), self._outputs[False] - self._outputs[True]
        held = self._liveness(number, key, is_first)
        if (is_first and self._alive not in self._seen) or any(held.get(result) for result in dropped):
            gc.collect()  # compilations leave reference cycles, which hold results of graphs
            held = self._liveness(number, key, is_first)
        for result, is_held in held.items():
            self._outputs[is_held].add(result)

    def _liveness(self, number: int, key: str, is_first: bool) -> dict[tuple[str, str], bool]:
        held = {(key, name): is_held for name, is_held in self._held_by_others(number, alone=False)}
        for call, other in self._live.items() if is_first else ():
            if call != number:
                held |= {(other, name): True for name, is_held in self._held_by_others(call, alone=True) if is_held}
        return held

    def _held_by_others(self, call: int, *, alone: bool) -> list[tuple[str, bool]]:
        held = self._storages.liveness(call, alone=alone)
        return [(name, is_held) for name, is_held in held.items() if name not in self._saved.get(call, ())]

    def overlaps(self) -> Mapping[CallCounts, Overlap]:
        """Returns, for each set of calls that were alive when one of them ended, how these calls overlapped."""
        self._count_released()
        return self._seen

    def forget(self) -> None:
        """Forgets all overlaps that were recorded so far."""
        self._seen.clear()

    def _count_released(self) -> None:
        # No hook runs if a node is deleted. Only the oldest calls are checked, so that each call takes constant time.
        while self._begun and ((call := self._begun[0].peek()) is None or saved_values_freed(call[0])):
            self._begun.popleft()()
        if self._released and self._live:
            now, before, together = self.now, self._seen.get(self._alive, Overlap(())), self._alive
            # With new plans, inputs from other graphs are no longer recorded, so the first record counts.
            handed_bytes, in_reverse = max(before.handed_bytes, now.handed_bytes), before.in_reverse
            while self._released:
                ended = self._released.popleft()
                in_reverse &= ended == next(reversed(self._live), ended)
                self._live.pop(ended, None)
                self._saved.pop(ended, None)
            overlap = max(before, now, key=lambda one: (sum(len(uses) for _, uses in one.shared), len(one.order)))
            self._seen[together] = replace(overlap, handed_bytes=handed_bytes, in_reverse=in_reverse)
            self._storages.forget(all_of_them=False)
        if not self._live:
            self._from_other_graphs.clear()
            self._storages.forget(all_of_them=True)


def maximal_sets(sets: Collection[CallCounts]) -> list[CallCounts]:
    """Returns the sets of calls that are not contained in another set."""
    return [one for one in sets if not any(one != other and is_subset(one, other) for other in sets)]


def is_subset(small: CallCounts, large: CallCounts) -> bool:
    """Returns whether a set of calls is contained in another set, or equal."""
    return Counter(dict(small)) <= Counter(dict(large))
