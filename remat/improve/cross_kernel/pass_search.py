"""Searches for what the kernels of a pass should compute again instead of reading it (paper, section 3.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remat.answer.registry import DEFAULT_PAIR_MODEL, find_costmodel
from remat.improve.cross_kernel.fusion_groups import Group, Pass
from remat.improve.cross_kernel.pairs import pair, touches
from remat.problem.problem import Problem
from remat.proof.solve import solve


@dataclass(frozen=True)
class Recomputed:
    """Holds what `recompute_across` found.

    Attributes:
        groups: the fusion groups, each with what it computes again.
        again: of each group, the values of other groups that it computes again.
        bytes_before, bytes: predicted traffic of the pass, reads and writes of all groups.
    """

    groups: tuple[Group, ...]
    again: tuple[frozenset[int], ...]
    bytes_before: int
    bytes: int


def recompute_across(full_pass: Pass) -> Recomputed:
    """Finds, for each fusion group of a pass, what it should compute again instead of reading it.

    The groups are visited as readers B in the order in which they run; for each, those that it reads from, the
    nearest first. A choice is kept if it lowers the traffic of the whole pass. As B then reads what A read, it
    touches other groups; so this is repeated until no pair changes anything.

    One thing no pair can see, as all others are taken to stay as they are: that a value need not be written at
    all if each of its several readers computes it again. So when the pairs are done, this is tried of one value
    after the other, the last first, by the same yardstick; and where it helps, the pairs are asked once more.
    It all ends, since groups only grow.

    Args:
        whole: the pass.
    """
    search = _Search(full_pass)
    while search.pairs() or search.values():
        pass
    now = search.now
    again = tuple(done - before.values for done, before in zip(now.traffic.computes, full_pass.groups, strict=True))
    return Recomputed(now.groups, again, full_pass.traffic.bytes, now.traffic.bytes)


class _Search:
    """Holds a pass that grows, and what was asked about it already."""

    def __init__(self, whole: Pass) -> None:
        self.now, self.model = whole, find_costmodel(DEFAULT_PAIR_MODEL)
        # A pair whose groups have not changed since gives the same answer.
        self.known: set[tuple[object, ...]] = set()

    def pairs(self) -> bool:
        """Asks once about all touching pairs, and says if any of them changed something."""
        before = self.now
        for b in range(len(before.groups)):
            for a in self._written_for(b):
                traffic = self.now.traffic
                key = (a, b, traffic.computes[a], traffic.computes[b], traffic.reads[a], traffic.reads[b])
                if key not in self.known and touches(self.now, a, b):
                    self.known.add(key)
                    self._try([(b, self._choice(a, b))])
        return self.now is not before

    def values(self) -> bool:
        """Lets all readers of one value compute it again, and says if that helped with any."""
        return any(self._spread(v) for v in sorted(self.now.writer, reverse=True))

    def _try(self, more: Iterable[tuple[int, frozenset[int]]]) -> bool:
        better = self.now
        for k, values in more:
            better = better.with_more(k, values)
        if better.traffic.bytes >= self.now.traffic.bytes:
            return False
        self.now = better
        return True

    def _written_for(self, b: int) -> list[int]:
        """Lists the groups that group `b` reads from and might compute a part of, the nearest first."""
        now = self.now
        if not now.groups[b].generated:
            return []
        read = {now.bases[u] for u in now.traffic.reads[b]}
        return sorted({now.writer[v] for v in read if v in now.writer and now.graph.fusible[v]}, reverse=True)

    def _posed(self, a: int, b: int) -> Problem:
        return self.model.pose(pair(self.now, a, b))

    def _choice(self, a: int, b: int) -> frozenset[int]:
        """Finds what B should compute again of A's values."""
        plan = solve(self._posed(a, b)).plan
        assert plan is not None  # saving all that B reads is legal
        return frozenset(self.now.graph.index[name] for name in plan.recomputed) & self.now.groups[a].values

    def _spread(self, v: int) -> bool:
        now, a = self.now, self.now.writer[v]
        readers = [k for k, reads in enumerate(now.traffic.reads) if any(now.bases[u] == v for u in reads)]
        if len(readers) < 2 or v in now.roots or not all(now.groups[k].generated for k in readers):
            return False
        again = self._with_what_is_inside(v, a)
        names = [now.graph.names[value] for value in again]
        if not now.graph.fusible[v] or any(_banned(self._posed(a, k), names) for k in readers):
            return False
        return self._try((k, again) for k in readers)

    def _with_what_is_inside(self, v: int, a: int) -> frozenset[int]:
        """Collects a value, and those of its group that it is made of and that nobody writes."""
        found, todo = {v}, [v]
        while todo:
            bases = {self.now.bases[u] for u in self.now.graph.operands[todo.pop()]} - found
            fresh = {base for base in bases & self.now.groups[a].values if base not in self.now.writer}
            found |= fresh
            todo += fresh
        return frozenset(found)


def _banned(problem: Problem, names: Iterable[str]) -> bool:
    return any(problem.cannot_recompute.reason(problem.index[name]) is not None for name in names)
