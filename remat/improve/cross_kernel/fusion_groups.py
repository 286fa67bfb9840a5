"""Describes the fusion groups of one pass, and what they read from memory and write to it.

A *pass* is one graph that runs from its inputs to its outputs: a forward or a backward graph after the partition. A
*fusion group* is what one kernel computes. A value may be computed by several groups, by each for itself: compilers
inline cheap values into all their readers, and `remat.improve.cross_kernel` makes more of the kind. At most one
group writes it to memory for the others.
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
    """Says what one kernel computes. `remat.predict.kernels.Kernel` has these three attributes, too.

    Attributes:
        values: positions in the graph of what it computes; views need not be named, they are free.
        writes: those that it writes to memory if anybody reads them; nobody else does.
        generated: the compiler writes the kernel; otherwise it is a library call, which can compute nothing more.
    """

    values: frozenset[int]
    writes: frozenset[int]
    generated: bool = True

    @classmethod
    def of(cls, values: Iterable[int], writes: Iterable[int] = (), *, generated: bool = True) -> Group:
        """Makes a group of any collections of positions."""
        return cls(frozenset(values) | frozenset(writes), frozenset(writes), generated)


@dataclass(frozen=True)
class PassTraffic:
    """Says what the groups of a pass really do: what nobody reads in the end is not computed.

    Attributes:
        computes: of each group, the values that it must compute, views left out.
        reads: of each group, what it reads from memory: values or views of values.
        writes: of each group, what it writes to memory.
        bytes: of all reads and writes.
    """

    computes: tuple[frozenset[int], ...]
    reads: tuple[frozenset[int], ...]
    writes: tuple[frozenset[int], ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class Pass:
    """Joins a graph that runs once with its fusion groups, in the order in which they run.

    Attributes:
        graph: all of its values, and perhaps others, whatever their region. A value that is in no group is in
            memory from the start, as inputs are.
        groups: see `Group`.

    Raises:
        InvalidGraph: a group names a value that is none, two groups write one value, or a group reads
            what no other group writes.
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
        _ = self.traffic  # finds what is read, but never written

    @classmethod
    def of_accesses(cls, graph: Graph, kernels: Sequence[tuple[Iterable[int], Iterable[int], bool]]) -> Pass:
        """Makes a pass of what each kernel reads, writes, and whether it is generated.

        A kernel computes what it writes, and all that is in the way from there to what other kernels write: that
        is what the compiler has inlined, or keeps in the kernel. If several kernels write one value, the first
        stands for all. What is read or returned, but written by none (a concatenation, whose parts are written in
        place; one result of several), is a group of its own that is not generated.

        Args:
            graph: the values.
            kernels: (reads, writes, generated) of each, in order; inputs may be named.
        """
        arguments = (v for v, op in enumerate(graph.ops) if op == "placeholder")  # tangents are no inputs of a graph
        given = frozenset(arguments).union(np.flatnonzero(graph.input).tolist())
        empty = cls(graph, ())
        reads = frozenset(empty.bases[v] for read, _, _ in kernels for v in read)
        written = [frozenset(writes) - given for _, writes, _ in kernels]
        known = frozenset[int]().union(*written)
        loose = sorted((reads | frozenset(empty.roots)) - known - given)
        stop = given | known | frozenset(loose)
        groups, seen = list[Group](), set[int]()
        for (_, _, generated), writes in zip(kernels, written, strict=True):
            fresh = writes - seen
            seen |= writes
            groups.append(Group.of(empty._inside(fresh, stop), fresh, generated=generated))
        groups += [Group.of(empty._inside(frozenset([v]), stop), [v], generated=False) for v in loose]
        return cls(graph, tuple(groups))

    def _inside(self, writes: frozenset[int], stop: frozenset[int]) -> set[int]:
        """Walks back from what a kernel writes to what is in memory, and returns what lies between."""
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
        """The value in whose memory each value lives: itself, unless it is a view."""
        return [b if view else i for i, (b, view) in enumerate(zip(self.graph.base, self.graph.view, strict=True))]

    @cached_property
    def writer(self) -> dict[int, int]:
        """The group that writes each value, for values that some group writes."""
        return {v: k for k, group in enumerate(self.groups) for v in group.writes}

    @cached_property
    def grouped(self) -> frozenset[int]:
        """The values that some group computes; all others are in memory from the start."""
        return frozenset[int]().union(*(group.values for group in self.groups))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The values that must be written: results, and what nobody uses (an effect, such as a copy into an input)."""
        used = np.zeros(len(self.graph), np.bool_)
        used[self.graph.producers] = True
        positions = (*np.flatnonzero(self.graph.output).tolist(), *np.flatnonzero(~used).tolist())
        return tuple(dict.fromkeys(self.bases[v] for v in positions))

    @cached_property
    def traffic(self) -> PassTraffic:
        """The traffic of the groups, found backwards from what must be written."""
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
                if base in self.grouped:
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
        """Counts each storage once, and no more of it than the views reach through which it is read."""
        reached: dict[int, int] = {}
        for u in reads:
            reached[self.bases[u]] = reached.get(self.bases[u], 0) + int(self.graph.moved_bytes[u])
        return sum(min(bytes, int(self.graph.storage_bytes[base])) for base, bytes in reached.items())

    def with_more(self, k: int, values: Iterable[int]) -> Pass:
        """Returns the same pass, where group `k` computes `values` itself, too."""
        grown = replace(self.groups[k], values=self.groups[k].values | frozenset(values))
        return Pass(self.graph, (*self.groups[:k], grown, *self.groups[k + 1 :]))


def _frozen(sets: list[set[int]]) -> tuple[frozenset[int], ...]:
    return tuple(map(frozenset, sets))
