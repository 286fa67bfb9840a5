"""Describes the fusion groups of one pass, and what they read from memory and write to it.

A pass is a graph that runs from its inputs to its outputs: the forward or the backward graph after the partition. A
fusion group is what one kernel computes. Several groups may compute the same value, each for itself: compilers inline
cheap values into all their readers, and `remat.improve.cross_kernel` adds further ones. At most one group writes a
value to memory for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.errors import InvalidGraph
from remat.facts.graph import Graph


@dataclass(frozen=True)
class Group:
    """Describes what one kernel computes. `remat.predict.kernels.Kernel` has these three attributes, too.

    Attributes:
        values: positions in the graph of what it computes; views cost nothing and may be left out.
        writes: the values that it writes to memory if another group reads them.
        generated: whether the compiler generates the kernel; a library call can compute nothing more.
    """

    values: frozenset[int]
    writes: frozenset[int]
    generated: bool = True

    @classmethod
    def of(cls, values: Iterable[int], writes: Iterable[int] = (), *, generated: bool = True) -> Group:
        return cls(frozenset(values) | frozenset(writes), frozenset(writes), generated)


@dataclass(frozen=True)
class PassTraffic:
    """Holds what the groups of a pass compute, read and write, without values that nothing reads.

    Attributes:
        computes: for each group, the values that it must compute, without views.
        reads: for each group, the values, or views of values, that it reads from memory.
        writes: for each group, what it writes to memory.
        bytes: the size of all reads and writes.
    """

    computes: tuple[frozenset[int], ...]
    reads: tuple[frozenset[int], ...]
    writes: tuple[frozenset[int], ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class Pass:
    """Holds the graph of a pass, and its fusion groups in the order in which they run.

    Attributes:
        graph: the graph; it may have other values than those of the pass. A value in no group is in memory from the
            start, as inputs are.
        groups: the fusion groups.

    Raises:
        InvalidGraph: a group names a position that no value has, or writes what it does not compute; two groups write
            one value; or a group reads what no other group writes.
    """

    graph: Graph
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        n, writer = len(self.graph), dict[int, int]()
        for k, group in enumerate(self.groups):
            strangers = sorted(v for v in group.values | group.writes if not 0 <= v < n)
            if strangers or not group.writes <= group.values:
                odd = strangers or sorted(group.writes - group.values)
                raise InvalidGraph(
                    f"Pass.groups[{k}] must hold positions of the graph's values (0 to {n - 1}) and write only what it "
                    f"computes, got {odd[0]}"
                )
            for v in group.writes:
                if writer.setdefault(v, k) != k:
                    raise InvalidGraph(
                        f"Pass.groups: {self.graph.names[v]!r} must have one writer, got groups {writer[v]} and {k}"
                    )
        _ = self.traffic  # raises InvalidGraph if a value is read, but never written

    @classmethod
    def of_accesses(cls, graph: Graph, kernels: Sequence[tuple[Iterable[int], Iterable[int], bool]]) -> Pass:
        """Makes a pass from what each kernel reads, what it writes, and whether it is generated.

        A kernel computes what it writes, and all values on the way there from what other kernels write: the compiler
        has inlined those, or keeps them in the kernel. If several kernels write one value, the first counts as its
        writer. What is read or returned, but written by no kernel (a concatenation, whose parts are written in place;
        one of several results), becomes a group of its own that is not generated.

        Args:
            kernels: (reads, writes, generated) of each kernel, in order, by positions; inputs may be among the reads.
        """
        arguments = (v for v, op in enumerate(graph.ops) if op == "placeholder")  # `Graph.input` leaves tangents out
        inputs = frozenset(arguments).union(np.flatnonzero(graph.input).tolist())
        empty = cls(graph, ())
        reads = frozenset(empty.bases[v] for read, _, _ in kernels for v in read)
        written = [frozenset(writes) - inputs for _, writes, _ in kernels]
        all_written = frozenset[int]().union(*written)
        loose = sorted((reads | frozenset(empty.roots)) - all_written - inputs)
        stop = inputs | all_written | frozenset(loose)
        groups, claimed = list[Group](), set[int]()
        for (_, _, generated), writes in zip(kernels, written, strict=True):
            fresh = writes - claimed
            claimed |= writes
            groups.append(Group.of(empty._inside(fresh, stop), fresh, generated=generated))
        groups += [Group.of(empty._inside(frozenset([v]), stop), [v], generated=False) for v in loose]
        return cls(graph, tuple(groups))

    def _inside(self, writes: frozenset[int], stop: frozenset[int]) -> set[int]:
        inside, todo = set[int](), list(writes)
        while todo:
            v = todo.pop()
            if v not in inside:
                inside.add(v)
                bases = {self.bases[u] for u in self.graph.operands[v]}
                todo += [base for base in bases if base not in stop or base in writes]
        return inside

    @cached_property
    def bases(self) -> list[int]:
        """Returns for each value the value in whose memory it lives: itself, unless it is a view."""
        return [b if view else i for i, (b, view) in enumerate(zip(self.graph.base, self.graph.view, strict=True))]

    @cached_property
    def writer(self) -> dict[int, int]:
        """Maps each value that is written to the group that writes it."""
        return {v: k for k, group in enumerate(self.groups) for v in group.writes}

    @cached_property
    def computed_values(self) -> frozenset[int]:
        """Returns the values that some group computes; all others are in memory from the start."""
        return frozenset[int]().union(*(group.values for group in self.groups))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Returns the values that must be written: results, and values without readers, such as a copy to an input."""
        used = np.zeros(len(self.graph), np.bool_)
        used[self.graph.producers] = True
        positions = (*np.flatnonzero(self.graph.output).tolist(), *np.flatnonzero(~used).tolist())
        return tuple(dict.fromkeys(self.bases[v] for v in positions))

    @cached_property
    def traffic(self) -> PassTraffic:
        """Computes the traffic of the groups, backwards from the values that must be written."""
        computes: list[set[int]] = [set() for _ in self.groups]
        reads: list[set[int]] = [set() for _ in self.groups]
        writes: list[set[int]] = [set() for _ in self.groups]
        todo = [(self.writer[v], v) for v in self.roots if v in self.writer]
        for k, v in todo:
            writes[k].add(v)
        while todo:
            k, v = todo.pop()
            if v in computes[k]:
                continue
            computes[k].add(v)
            for u in self.graph.operands[v]:
                base = self.bases[u]
                if base in self.groups[k].values:
                    todo.append((k, base))
                    continue
                reads[k].add(u)
                if base in self.computed_values:
                    writer = self._writer_for(base, k, v)
                    writes[writer].add(base)
                    todo.append((writer, base))
        moved = sum(map(self._read_bytes, reads)) + sum(int(self.graph.bytes[v]) for each in writes for v in each)
        return PassTraffic(_frozen(computes), _frozen(reads), _frozen(writes), moved)

    def _writer_for(self, base: int, k: int, v: int) -> int:
        if base not in self.writer:
            read, by = self.graph.names[base], self.graph.names[v]
            raise InvalidGraph(
                f"Pass.groups[{k}] reads {read!r} for {by!r}, but no group writes it: name it in its group's writes"
            )
        return self.writer[base]

    def _read_bytes(self, reads: Iterable[int]) -> int:
        # Each storage counts once, and no more of it than the views reach through which it is read.
        reached: dict[int, int] = {}
        for u in reads:
            reached[self.bases[u]] = reached.get(self.bases[u], 0) + int(self.graph.moved_bytes[u])
        return sum(min(bytes, int(self.graph.storage_bytes[base])) for base, bytes in reached.items())

    def with_more(self, k: int, values: Iterable[int]) -> Pass:
        """Returns the same pass, but group `k` also computes `values` itself."""
        grown = replace(self.groups[k], values=self.groups[k].values | frozenset(values))
        return Pass(self.graph, (*self.groups[:k], grown, *self.groups[k + 1 :]))


def _frozen(sets: list[set[int]]) -> tuple[frozenset[int], ...]:
    return tuple(map(frozenset, sets))
