"""Decides which loops share a kernel: greedily by shared bytes, as `Scheduler.fuse_nodes` of torch 2.13 on CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cmp_to_key
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.ir import Buffer, Loop
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.loops import Nest, decide_layouts, nest_of

_Score = tuple[int, int, int]


class Scheduler:
    """Fuses the loops of one pass.

    Args:
        loops: in the order of their creation.
    """

    def __init__(self, loops: Sequence[Loop]) -> None:
        decide_layouts(loops)
        loops = _alive(loops)
        self._made: dict[Buffer, int] = {buffer: i for i, loop in enumerate(loops) for buffer in loop.writes}
        self._readers: dict[Buffer, int] = {}
        nests = [nest_of(loop, i) for i, loop in enumerate(loops)]
        _place(nests)
        for nest in nests:
            for buffer, _, _ in nest.reads:
                self._readers[buffer] = self._readers.get(buffer, 0) | 1 << nest.index
                made = self._made.get(buffer)
                if made is not None:
                    nest.ancestors |= nests[made].ancestors | 1 << made
        self._group_of: list[LoopGroup] = [LoopGroup([nest], self._made) for nest in nests]
        self._fused = 0
        """The nests of groups of several, as bits."""

    def groups(self) -> list[LoopGroup]:
        """Returns the kernels, and what launches none, in an order in which they can run."""
        groups = self._sorted(self._group_of)
        for _ in range(rules.ROUNDS):
            before = len(groups)
            groups = self._round(groups)
            if len(groups) in (before, 1):
                break
        return groups

    def is_needed_outside(self, buffer: Buffer, group: LoopGroup) -> bool:
        """Says if a buffer is needed outside a group."""
        return buffer.output or bool(self._readers.get(buffer, 0) & ~group.members)

    def _round(self, groups: list[LoopGroup]) -> list[LoopGroup]:
        for one, other in self._candidates(groups):
            left, right = self._now(one), self._now(other)
            if left is not right and self._can_fuse(left, right) and not self._cycle(left, right):
                both = left.joined(right, self._made)
                self._fused |= both.members
                for nest in both.nests:
                    self._group_of[nest.index] = both
        return self._sorted(self._group_of)

    def _now(self, group: LoopGroup) -> LoopGroup:
        """Returns the group that a group of the last round has become a part of."""
        return self._group_of[group.nests[0].index]

    def _candidates(self, groups: list[LoopGroup]) -> list[tuple[LoopGroup, LoopGroup]]:
        """Lists the pairs that could fuse, the best first; those that share outer loops alone only without others."""
        users: dict[Buffer, list[LoopGroup]] = {}
        for group in groups:
            if group.nests[0].loop.generated:
                for buffer in group.used:
                    users.setdefault(buffer, []).append(group)
        seen: set[tuple[LoopGroup, LoopGroup]] = set()
        whole: list[tuple[_Score, LoopGroup, LoopGroup]] = []
        outer: list[tuple[_Score, LoopGroup, LoopGroup]] = []
        for row in users.values():
            for i, one in enumerate(row):
                for other in row[i + 1 : i + 1 + rules.MAX_ATTEMPTS]:
                    if (one, other) not in seen:
                        seen.add((one, other))
                        if self._can_fuse(one, other):
                            found = outer if one.outer_depth(other) else whole
                            found.append((_score(one, other), one, other))
        # A stable sort, so that of equals the first found is first.
        best = sorted(whole or outer, key=cmp_to_key(_compared), reverse=True)
        return [(one, other) for _, one, other in best]

    def _can_fuse(self, one: LoopGroup, other: LoopGroup) -> bool:
        """Says if two groups can fuse: `Scheduler.can_fuse`, `InductorChoices` and the rules of the C++ backend."""
        if one.ancestors & other.members:
            return False
        shared, count = one.shared_bytes(other), len(one.nests) + len(other.nests)
        if not shared or count > rules.MAX_FUSION or self._takes_memory(one, other, shared):
            return False
        if other.ancestors & one.members:
            if not self._can_follow(one, other):
                return False
            return (not one.is_reduction and one.same_loops(other)) or one.outer_depth(other) > 0
        return (
            shared >= rules.MIN_SHARED_BYTES
            and one.distance(other) <= rules.MAX_DISTANCE
            and count <= rules.MAX_HORIZONTAL_FUSION
            and one.same_loops(other)
        )

    def _can_follow(self, one: LoopGroup, other: LoopGroup) -> bool:
        """Says if a consumer reads all of its producer just where that is written, with nothing in between."""
        for dep in other.unmet:
            if dep in one.writes:
                continue
            if dep[0] in one.written or self._group_of[self._made[dep[0]]].ancestors & one.members:
                return False
        return True

    def _takes_memory(self, one: LoopGroup, other: LoopGroup, shared: int) -> bool:
        """Says if fusing would keep two from using the same memory (`Scheduler.can_fusion_increase_peak_memory`)."""
        sizes = [
            {
                (buffer.itemsize, prod(buffer.shape))
                for buffer, _, _ in group.reads
                if buffer in self._made and self._readers[buffer].bit_count() + buffer.output == 1
            }
            for group in (one, other)
        ]
        return sum(n for _, n in sizes[0] & sizes[1]) > 32 * shared

    def _cycle(self, one: LoopGroup, other: LoopGroup) -> bool:
        """Says if fusing makes a cycle: some group depends on one of them, and the other on that group."""
        members = one.members | other.members
        ancestors = (one.ancestors | other.ancestors) & ~members
        seen: set[LoopGroup] = set()
        stack = list(self._groups(ancestors & self._fused))
        while stack:
            group = stack.pop()
            if group in seen or not group.members & ~ancestors:
                continue
            seen.add(group)
            if group.ancestors & members:
                return True
            stack += self._groups(group.ancestors & ~ancestors & self._fused)
        return False

    def _groups(self, nests: int) -> Iterator[LoopGroup]:
        """Yields the groups of some nests, given as bits, each once."""
        while nests:
            group = self._group_of[(nests & -nests).bit_length() - 1]
            yield group
            nests &= ~group.members

    def _sorted(self, groups: Iterable[LoopGroup]) -> list[LoopGroup]:
        """Sorts groups by place, with dependencies first."""
        seen: set[LoopGroup] = set()
        found: list[LoopGroup] = []
        for root in sorted(dict.fromkeys(groups), key=lambda group: group.first):
            stack = [(root, False)]
            while stack:
                group, done = stack.pop()
                if done:
                    found.append(group)
                elif group not in seen:
                    seen.add(group)
                    stack.append((group, True))
                    before = sorted({self._made[dep[0]] for dep in group.unmet}, reverse=True)
                    stack += [(self._group_of[i], False) for i in before if self._group_of[i] not in seen]
        return found


def _alive(loops: Sequence[Loop]) -> list[Loop]:
    """Drops the loops whose results nobody reads."""
    wanted: set[Buffer] = set()
    kept: list[Loop] = []
    for loop in reversed(loops):
        if not loop.writes or any(buffer.output or buffer in wanted for buffer in loop.writes):
            kept.append(loop)
            wanted.update(buffer for buffer, _ in loop.reads)
            if loop.mutates is not None:
                wanted.add(loop.mutates)
    return kept[::-1]


def _place(nests: Sequence[Nest]) -> None:
    """Numbers the nests; each result of a call with several has a place of its own."""
    read = {buffer for nest in nests for buffer, _, _ in nest.reads}
    place = 0
    for nest in nests:
        nest.place = place
        place += 1
        if nest.loop.several:
            place += sum(buffer.output or buffer in read for buffer in nest.loop.writes)


def _score(one: LoopGroup, other: LoopGroup) -> _Score:
    """Scores a pair by the kind of loops, shared bytes and closeness (`InductorChoices.score_fusion`)."""
    return int(one.is_reduction == other.is_reduction), one.shared_bytes(other), -one.distance(other)


def _compared(a: tuple[_Score, LoopGroup, LoopGroup], b: tuple[_Score, LoopGroup, LoopGroup]) -> int:
    """Compares scores: by bytes where they differ much, by the kind of loops where not (`FusionScore.__lt__`)."""
    left, right = a[0], b[0]
    if max(left[1], right[1]) > 16 * min(left[1], right[1]):
        return left[1] - right[1]
    return (left > right) - (left < right)
