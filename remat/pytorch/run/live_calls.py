"""Counts the calls of compiled graphs whose saved values are alive, and records which were alive at the same time."""

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

Together: TypeAlias = frozenset[tuple[str, int]]
"""Keys of graphs, and how many calls of each are alive at the same time."""


@dataclass(frozen=True)
class Overlap:
    """Describes calls that were alive at the same time.

    Attributes:
        order: the key of each call's graph, in the order of beginning.
        shared: the storages that the calls have in common, or that other graphs handed to them.
        handed_bytes: the most bytes that graphs computed for them, and that no plan counts.
        in_reverse: whether each call ended before those that began earlier.
    """

    order: tuple[str, ...]
    shared: Shared = ()
    handed_bytes: int = 0
    in_reverse: bool = True


class LiveCalls:
    """Counts calls from their forward pass to their backward pass, by the keys of their graphs.

    Args:
        watches_results: also records whether results are still held when the backward pass begins.
    """

    def __init__(self, *, watches_results: bool) -> None:
        self._watches = watches_results
        self._numbers = count()
        self._live: dict[int, str] = {}
        self._saved: dict[int, Collection[str]] = {}
        self._released: deque[int] = deque()
        self._begun: deque[weakref.finalize[[int], Any]] = deque()
        self._made_elsewhere: dict[int, int] = {}
        self._storages = SharedStorages()
        self._seen: dict[Together, Overlap] = {}
        self._outputs: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}

    @property
    def together(self) -> Together:
        """Returns the calls that are alive now."""
        self._count_released()
        return self._alive

    @property
    def _alive(self) -> Together:
        return frozenset(Counter(self._live.values()).items())

    @property
    def now(self) -> Overlap:
        """Describes the calls that are alive now."""
        shared, handed_bytes = self._storages.among(self._live), sum(self._made_elsewhere.values())
        return Overlap(tuple(self._live.values()), shared, handed_bytes)

    def dropped(self, key: str) -> frozenset[str]:
        """Returns which results of a graph nobody was ever seen to hold in its backward pass, by their names there."""
        return frozenset(name for one, name in self._outputs[False] - self._outputs[True] if one == key)

    def began(
        self,
        key: str,
        made_elsewhere: Mapping[int, int],
        activations: Mapping[str, Tensor],
        node: Any,
        saved: Collection[str] = (),
    ) -> None:
        """Counts a call whose saved values are alive from now on.

        Args:
            made_elsewhere: the bytes of each storage that another graph made for it, where no plan can know.
            activations: those that it takes and makes (see `activations_of`).
            node: of autograd, that holds the saved values. They are free once they were read, or nobody can read them
                any more, whichever comes first.
            saved: the names of storages that the call itself saves. It is not known whether others hold them, too.
        """
        self._count_released()
        self._made_elsewhere.update(made_elsewhere)
        number = next(self._numbers)
        self._live[number], self._saved[number] = key, saved
        self._storages.note(number, activations)
        ended = weakref.finalize(node, self._released.append, number)  # from any thread, at any time
        ended.atexit = False
        self._begun.append(ended)

        def read(*_: Any) -> None:
            if not is_dynamo_compiling():  # under compiled autograd, where Dynamo would watch what changes in here
                self._look_at_results(number, key)
                ended()

        node.register_prehook(read)  # not a hook after the node: torch would keep the incoming gradients alive for it

    # Called when the backward pass of a call begins. By then later calls are over and hold nothing, so what it took or
    # made is held by others, if at all. What no other call took is also looked at before the first backward pass.
    def _look_at_results(self, number: int, key: str) -> None:
        if not self._watches:
            return
        is_first, dropped = number == next(reversed(self._live), None), self._outputs[False] - self._outputs[True]
        held = self._liveness(number, key, is_first)
        if (is_first and self._alive not in self._seen) or any(held.get(result) for result in dropped):
            gc.collect()  # compilations leave cycles behind, which hold results of graphs
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

    def overlaps(self) -> Mapping[Together, Overlap]:
        """Returns which calls were alive together when one ended."""
        self._count_released()
        return self._seen

    def forget(self) -> None:
        """Forgets what was alive at the same time so far."""
        self._seen.clear()

    def _count_released(self) -> None:
        # Those that no hook told of: the oldest one first, or each call would ask about all that are alive.
        while self._begun and ((call := self._begun[0].peek()) is None or saved_values_freed(call[0])):
            self._begun.popleft()()
        if self._released and self._live:
            now, before, together = self.now, self._seen.get(self._alive, Overlap(())), self._alive
            # Once plans are made, what is handed over is not looked at any more: what was found first is all.
            handed_bytes, in_reverse = max(before.handed_bytes, now.handed_bytes), before.in_reverse
            while self._released:
                ended = self._released.popleft()
                in_reverse &= ended == next(reversed(self._live), ended)
                self._live.pop(ended, None)
                self._saved.pop(ended, None)
            overlap = max(before, now, key=_uses)
            self._seen[together] = replace(overlap, handed_bytes=handed_bytes, in_reverse=in_reverse)
            self._storages.forget(all_of_them=False)
        if not self._live:
            self._made_elsewhere.clear()
            self._storages.forget(all_of_them=True)


def _uses(overlap: Overlap) -> tuple[int, int]:
    return sum(len(uses) for _, uses in overlap.shared), len(overlap.order)


def maximal_sets(sets: Collection[Together]) -> list[Together]:
    """Returns the sets of calls that are no part of another set."""
    return [one for one in sets if not any(one != other and is_part(one, other) for other in sets)]


def is_part(small: Together, large: Together) -> bool:
    """Says whether a set of calls is a part of another set, or the same."""
    counts = dict(large)
    return all(counts.get(key, 0) >= times for key, times in small)
