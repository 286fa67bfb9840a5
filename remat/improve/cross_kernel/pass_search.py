"""Searches for values that the kernels of a pass should compute again instead of reading them (paper, section 3.7)."""

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
    """Holds what `recompute_across` decided.

    Attributes:
        groups: the fusion groups, each with what it computes again.
        again: for each group, the values of other groups that it computes again.
        bytes_before, bytes: the predicted reads and writes of all groups, before and after.
    """

    groups: tuple[Group, ...]
    again: tuple[frozenset[int], ...]
    bytes_before: int
    bytes: int


def recompute_across(full_pass: Pass) -> Recomputed:
    """Decides for each fusion group of a pass what it computes again instead of reading it.

    The groups are visited as readers B in the order in which they run, each with the groups A that it reads from, the
    nearest first. A choice is taken if it lowers the traffic of the whole pass. Then B also reads what A read, and so
    touches other groups. Therefore all pairs are visited again until no pair changes anything.

    In a pair, all other groups stay as they are. So no pair can see that a value need not be written at all if each of
    its readers computes it again. When the pairs are done, this is tried for each value, the last first, and taken if
    it lowers the traffic; then the pairs follow once more. The search ends, since groups only grow.
    """
    search = _PassSearch(full_pass)
    while search.pairs() or search.values():
        pass
    result = search.current
    recomputed = tuple(
        computed - before.values for computed, before in zip(result.traffic.computes, full_pass.groups, strict=True)
    )
    return Recomputed(result.groups, recomputed, full_pass.traffic.bytes, result.traffic.bytes)


class _PassSearch:
    def __init__(self, full_pass: Pass) -> None:
        self.current, self.model = full_pass, find_costmodel(DEFAULT_PAIR_MODEL)
        # A pair whose groups have not changed since gives the same answer.
        self.answered = set[tuple[object, ...]]()

    def pairs(self) -> bool:  # whether any of them changed something
        before = self.current
        for b in range(len(before.groups)):
            for a in self._possible_writers(b):
                traffic = self.current.traffic
                key = (a, b, traffic.computes[a], traffic.computes[b], traffic.reads[a], traffic.reads[b])
                if key not in self.answered and touches(self.current, a, b):
                    self.answered.add(key)
                    self._try([(b, self._choice(a, b))])
        return self.current is not before

    def values(self) -> bool:  # whether any of them changed something
        return any(self._recompute_in_all_readers(v) for v in sorted(self.current.writer, reverse=True))

    def _try(self, more: Iterable[tuple[int, frozenset[int]]]) -> bool:
        better = self.current
        for k, values in more:
            better = better.with_more(k, values)
        if better.traffic.bytes >= self.current.traffic.bytes:
            return False
        self.current = better
        return True

    def _possible_writers(self, b: int) -> list[int]:
        now = self.current
        if not now.groups[b].generated:
            return []
        read = {now.bases[u] for u in now.traffic.reads[b]}
        return sorted({now.writer[v] for v in read if v in now.writer and now.graph.fusible[v]}, reverse=True)

    def _posed(self, a: int, b: int) -> Problem:
        return self.model.pose(pair(self.current, a, b))

    def _choice(self, a: int, b: int) -> frozenset[int]:
        plan = solve(self._posed(a, b)).plan
        assert plan is not None  # saving all that B reads is legal
        return frozenset(self.current.graph.index[name] for name in plan.recomputed) & self.current.groups[a].values

    def _recompute_in_all_readers(self, v: int) -> bool:
        now, a = self.current, self.current.writer[v]
        readers = [k for k, reads in enumerate(now.traffic.reads) if any(now.bases[u] == v for u in reads)]
        if len(readers) < 2 or v in now.roots or not all(now.groups[k].generated for k in readers):
            return False
        again = self._with_unwritten_operands(v, a)
        names = [now.graph.names[value] for value in again]
        if not now.graph.fusible[v] or any(_banned(self._posed(a, k), names) for k in readers):
            return False
        return self._try((k, again) for k in readers)

    def _with_unwritten_operands(self, v: int, a: int) -> frozenset[int]:
        """Collects a value, and the unwritten values of its group from which it is computed."""
        values, todo = {v}, [v]
        while todo:
            bases = {self.current.bases[u] for u in self.current.graph.operands[todo.pop()]} - values
            fresh = {base for base in bases & self.current.groups[a].values if base not in self.current.writer}
            values |= fresh
            todo += fresh
        return frozenset(values)


def _banned(problem: Problem, names: Iterable[str]) -> bool:
    return any(problem.cannot_recompute.reason(problem.index[name]) is not None for name in names)
