"""Decides which loops share a kernel: greedily by shared bytes, like `Scheduler.fuse_nodes` of torch 2.13."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cmp_to_key
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, Generic, TypeVar

from remat.predict.kernels import rules
from remat.predict.kernels.ir import Buffer, Loop
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.loops import Nest, decide_layout

_Score = tuple[int, int, int]
N = TypeVar("N", bound=Nest)
G = TypeVar("G", bound=LoopGroup)
T = TypeVar("T")
_Pair = tuple[G, G]
_Walks = tuple[Sequence[Nest], Sequence[Nest]]


class Scheduler(ABC, Generic[N, G]):
    """Fuses the loops of one pass by the rules that all backends share.

    Attributes:
        number: the place of each buffer in the order of creation; each result of a call has its own.
        names: Inductor's name of each buffer, by which it sorts what a group needs, and what is freed at a time.
    """

    def __init__(self, loops: Sequence[Loop]) -> None:
        for loop in loops:
            decide_layout(loop)
        self.names = _names(loops)
        loops = _alive(loops)
        self._writer_of: dict[Buffer, int] = {buffer: i for i, loop in enumerate(loops) for buffer in loop.writes}
        self._readers: dict[Buffer, int] = {}
        nests: list[N] = [self._nest(loop, i) for i, loop in enumerate(loops)]
        self.number = _placed(nests)
        for nest in nests:
            for buffer, _, _ in nest.reads:
                self._readers[buffer] = self._readers.get(buffer, 0) | 1 << nest.index
                writer = self._writer_of.get(buffer)
                if writer is not None:
                    nest.ancestors |= nests[writer].ancestors | 1 << writer
        self._read_once = {
            buffer: (buffer.itemsize, prod(buffer.shape), loops[i].unaligned)
            for buffer, i in self._writer_of.items()
            if self.readers(buffer).bit_count() + buffer.output == 1
        }
        """Buffers with a single reader, each with the key that decides which buffers can reuse its memory."""
        self._group_of: list[G] = [self._group([nest]) for nest in nests]
        self._needs: dict[G, list[Buffer]] = {}
        self._fused = 0
        """Bit mask of the nests in groups of more than one nest."""
        self._refused: dict[_Pair[G], _Walks] = {}
        """Pairs that could not fuse, with their nests at that time."""

    @abstractmethod
    def _nest(self, loop: Loop, index: int) -> N: ...

    @abstractmethod
    def _group(self, nests: list[N]) -> G: ...

    @abstractmethod
    def _can_fuse(self, one: G, other: G) -> bool: ...

    @abstractmethod
    def _joined(self, one: G, other: G) -> G: ...

    # A backend may drop pairs in a round.
    def _best(self, pairs: list[_Pair[G]]) -> list[_Pair[G]]:
        return pairs

    def groups(self) -> list[G]:
        groups = self._sorted(self._group_of)
        for _ in range(rules.ROUNDS):
            before = len(groups)
            groups = self._round(groups)
            if len(groups) in (before, 1):
                break
        return groups

    def is_needed_outside(self, buffer: Buffer, group: G) -> bool:
        """Returns whether the pass returns a buffer, or a nest outside the group reads it."""
        return buffer.output or bool(self.readers(buffer) & ~group.members)

    def readers(self, buffer: Buffer) -> int:
        """Returns the nests that read a buffer, as a bit mask."""
        return self._readers.get(buffer, 0)

    def _round(self, groups: list[G]) -> list[G]:
        for one, other in self._candidates(groups):
            left, right = (self._group_of[group.nests[0].index] for group in (one, other))  # as fused so far
            if left is not right and self._can_fuse(left, right) and not self._cycle(left, right):
                both = self._joined(left, right)
                self._fused |= both.members
                for nest in both.nests:
                    self._group_of[nest.index] = both
        return self._sorted(self._group_of)

    def _candidates(self, groups: list[G]) -> list[tuple[G, G]]:
        users: dict[Buffer, list[G]] = {}
        for group in groups:
            if group.nests[0].loop.generated:
                for buffer in group.used:
                    users.setdefault(buffer, []).append(group)
        pairs: dict[tuple[G, G], None] = {}
        for row in users.values():
            for i, one in enumerate(row):
                for other in row[i + 1 : i + 1 + rules.MAX_ATTEMPTS]:
                    pairs[one, other] = None
        allowed = [(one, other) for one, other in pairs if not self._is_refused(one, other)]
        # The sort is stable: among equals, the pair that came first stays first.
        scored = [(self._score(one, other), one, other) for one, other in self._best(allowed)]
        return [(one, other) for _, one, other in sorted(scored, key=cmp_to_key(_compared), reverse=True)]

    # A pair that could not fuse in an earlier round still cannot. A group changes only the order of its loops, and then
    # it has other nests. Outside the pair, `_can_fuse` asks only whether a producer's group depends on `one`. That
    # forbids a fusion, and stays true, because groups and their ancestors only grow.
    def _is_refused(self, one: G, other: G) -> bool:
        before = self._refused.get((one, other))
        if before is not None and before[0] is one.nests and before[1] is other.nests:
            return True
        before = one.nests, other.nests
        if self._can_fuse(one, other):
            return False
        if one.nests is before[0] and other.nests is before[1]:
            self._refused[one, other] = before
        return True

    # As `InductorChoices.score_fusion`.
    def _score(self, one: G, other: G) -> _Score:
        return int(one.is_reduction == other.is_reduction), self._shared(one, other), -one.distance(other)

    def _shared(self, one: G, other: G) -> int:
        return one.shared_bytes(other)

    # As `Scheduler.can_fusion_increase_peak_memory`: fused loops cannot use the same memory one after the other.
    def _takes_memory(self, one: G, other: G, shared: int) -> bool:
        left, right = (
            {self._read_once[buffer] for buffer, _, _ in group.reads if buffer in self._read_once}
            for group in (one, other)
        )
        return sum(n for _, n, _ in left & right) > 32 * shared

    # A fusion makes a cycle if a third group depends on one of the two, and the other depends on that group.
    def _cycle(self, one: G, other: G) -> bool:
        members = one.members | other.members
        ancestors = (one.ancestors | other.ancestors) & ~members
        seen, waiting = 0, ancestors & self._fused
        while waiting:
            group = self._group_of[waiting.bit_length() - 1]
            seen |= group.members
            if group.members & ~ancestors:
                if group.ancestors & members:
                    return True
                waiting |= group.ancestors & ~ancestors & self._fused
            waiting &= ~seen
        return False

    def needs(self, group: G) -> list[Buffer]:
        """Returns the buffers that a group reads and other groups write, sorted by name as text (buf10 before buf9)."""
        if group not in self._needs:
            self._needs[group] = sorted({dep[0] for dep in group.unmet}, key=self.names.__getitem__)
        return self._needs[group]

    def _sorted(self, groups: Iterable[G]) -> list[G]:
        def needed(group: G) -> list[G]:
            return [self._group_of[self._writer_of[buffer]] for buffer in self.needs(group)]

        return with_needs_first(sorted(dict.fromkeys(groups), key=lambda group: group.first), needed)


def with_needs_first(items: Iterable[T], needed: Callable[[T], list[T]]) -> list[T]:
    """Sorts items topologically, and otherwise keeps their order (`Scheduler.topological_sort_schedule`)."""
    visited: set[T] = set()
    ordered: list[T] = []
    for root in items:
        stack = [(root, False)]
        while stack:
            item, done = stack.pop()
            if done:
                ordered.append(item)
            elif item not in visited:
                visited.add(item)
                stack.append((item, True))
                for earlier in reversed(needed(item)):
                    if earlier not in visited:
                        stack.append((earlier, False))
    return ordered


def when_ready(needed: Mapping[T, Collection[T]], key: Callable[[T, Mapping[T, int]], Any]) -> list[T]:
    """Sorts items topologically: of those that are ready, the one with the smallest key comes first.

    Args:
        needed: for each item, the items that must come before it.
        key: takes an item and the places of all items sorted so far; no two items have the same key.

    Raises:
        ValueError: items need each other, in a cycle.
    """
    waiting = {item: len(earlier) for item, earlier in needed.items()}
    later: dict[T, list[T]] = {item: [] for item in needed}
    for item, earlier in needed.items():
        for one in earlier:
            later[one].append(item)
    place: dict[T, int] = {}
    ready = [(key(item, place), item) for item, count in waiting.items() if not count]
    heapify(ready)
    while ready:
        _, item = heappop(ready)
        place[item] = len(place)
        for one in later[item]:
            waiting[one] -= 1
            if not waiting[one]:
                heappush(ready, (key(one, place), one))
    if len(place) < len(needed):
        raise ValueError(f"no order: a cycle of {[item for item in needed if item not in place][:5]}")
    return list(place)


def _alive(loops: Sequence[Loop]) -> list[Loop]:
    needed_buffers: set[Buffer] = set()
    alive: list[Loop] = []
    for loop in reversed(loops):
        if not loop.writes or any(buffer.output or buffer in needed_buffers for buffer in loop.writes):
            alive.append(loop)
            needed_buffers.update(buffer for buffer, _ in loop.reads)
            if loop.mutates is not None:
                needed_buffers.add(loop.mutates)
    return alive[::-1]


# As `GraphLowering.register_buffer`, which also counts buffers that are removed later.
def _names(loops: Sequence[Loop]) -> dict[Buffer, str]:
    names: dict[Buffer, str] = {}
    count = 0
    for loop in loops:
        count += loop.several
        for buffer in loop.writes:
            names[buffer] = f"buf{count}"
            count += 1
    return names


def _placed(nests: Sequence[Nest]) -> dict[Buffer, int]:
    read = {buffer for nest in nests for buffer, _, _ in nest.reads}
    numbers: dict[Buffer, int] = {}
    place = 0
    for nest in nests:
        nest.place = place
        place += 1
        for buffer in nest.loop.writes:
            numbers[buffer] = nest.place
            if nest.loop.several and (buffer.output or buffer in read):
                numbers[buffer] = place
                place += 1
    return numbers


# Shared bytes decide if they differ by more than a factor of 16, otherwise the kind of loops (`FusionScore.__lt__`).
def _compared(a: tuple[_Score, LoopGroup, LoopGroup], b: tuple[_Score, LoopGroup, LoopGroup]) -> int:
    left, right = a[0], b[0]
    if max(left[1], right[1]) > 16 * min(left[1], right[1]):
        return left[1] - right[1]
    return (left > right) - (left < right)
