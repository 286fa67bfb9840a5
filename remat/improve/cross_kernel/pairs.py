"""States as a joint graph which values of a fusion group A a group B, which reads them, should compute again.

A stands for the forward pass and B for the backward pass (paper, section 3.7).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.facts.graph_builder import GraphBuilder
from remat.improve.cross_kernel.fusion_groups import Pass


def pair(full_pass: Pass, a: int, b: int) -> Graph:
    """Builds the joint graph of two groups, A as the forward pass and B as the backward pass.

    What A reads are its inputs. A value of A that another group needs, or that the pass returns, is an output:
    it is written whatever is decided here (paper, 3.7). So is one that A computes, but another group writes.
    What B reads of others than A, or of A's inputs, stands for the tangents. Views belong to both sides.
    What both compute appears twice, that of B as "... (again)".

    Args:
        whole: the pass.
        a, b: positions of the groups; B reads what A writes.

    Raises:
        InvalidOption: B reads nothing that A writes.
    """
    if not 0 <= a < len(full_pass.groups) or not 0 <= b < len(full_pass.groups) or a == b:
        raise InvalidOption(
            f"pair() takes two different groups of the pass (0 to {len(full_pass.groups) - 1}), got {a} and {b}"
        )
    if not touches(full_pass, a, b):
        raise InvalidOption(f"pair() takes touching groups, but group {b} reads nothing that group {a} writes")
    return _Pair(full_pass, a, b).graph()


def touches(full_pass: Pass, a: int, b: int) -> bool:
    """Says if group `b` reads what group `a` writes."""
    return any(full_pass.writer.get(full_pass.bases[u]) == a for u in full_pass.traffic.reads[b])


class _Pair:
    """Sorts the values of two groups into the two sides of a joint graph."""

    def __init__(self, whole: Pass, a: int, b: int) -> None:
        self.whole, self.a, self.b = whole, a, b
        traffic = whole.traffic
        self.ours, self.theirs = traffic.computes[a], traffic.computes[b]
        self.read = traffic.reads[b]
        self.available = self.ours | {whole.bases[u] for u in traffic.reads[a]}
        used = {u for v in self.ours for u in whole.graph.operands[v]} | self.read
        self.views = self._views([u for u in used if whole.bases[u] in self.available])
        self.builder = GraphBuilder()

    def graph(self) -> Graph:
        """Builds A's side in the order of the pass, then B's."""
        for v in sorted(self.available | self.views):
            self._add_to_a(v)
        self.builder.output(*(self.whole.graph.names[v] for v in sorted(self._written_anyway())))
        self._add_b()
        graph = self.builder.build()
        # In a kernel nothing is written on the way, whatever lists say about its operators; and B is a kernel, too.
        return replace(graph, fusible_uses=np.ones(len(graph.producers), np.bool_))

    def _add_to_a(self, v: int) -> None:
        graph, name, size = self.whole.graph, self.whole.graph.names[v], int(self.whole.graph.bytes[v])
        if v in self.available - self.ours:
            self.builder.input(name, bytes=size)
            return
        operands = self.whole.graph.operands[v]
        if v in self.views:
            first = next(u for u in operands if graph.storage[u] == graph.storage[v])
            inside = self._stays_inside(self.whole.bases[v])
            self.builder.op(graph.ops[v], graph.names[first], name=name, bytes=size, view=True, cannot_save=inside)
            return
        self.builder.op(
            graph.ops[v],
            *(graph.names[u] for u in operands),
            name=name,
            bytes=size,
            fusible=bool(graph.fusible[v]) and self.whole.groups[self.a].generated,
            random=bool(graph.random[v]),
            compute_bound=bool(graph.compute_bound[v]),
            cannot_save=self._stays_inside(v),
            cannot_recompute=graph.cannot_recompute.reason(v) or self._reads_for_once(v),
        )

    def _stays_inside(self, v: int) -> str | None:
        """Says why a value cannot be read from memory: a tuple, for one. What B reads now it may go on reading."""
        if v in self.available - self.ours or v in {self.whole.bases[u] for u in self.read}:
            return None
        return self.whole.graph.cannot_save.reason(v) or (None if v in self.whole.writer else "no group writes it")

    def _reads_for_once(self, v: int) -> str | None:
        """Says why what a value reads must not be read later."""
        bases = {self.whole.bases[u] for u in self.whole.graph.operands[v]} - self.ours
        reasons = (self.whole.graph.cannot_save.reason(base) for base in sorted(bases))
        return next((f"reads what must not be read later: {reason}" for reason in reasons if reason), None)

    def _add_b(self) -> None:
        graph, bases = self.whole.graph, self.whole.bases
        # All of B comes after A, even what it computes from nothing but A's values.
        launch = self.builder.tangent("(B)", bytes=0)
        name_of = {v: f"{graph.names[v]} (again)" if v in self.available else graph.names[v] for v in self.theirs}
        for v in sorted({bases[u] for u in self.read} - self.available):
            name_of[v] = self.builder.tangent(graph.names[v], bytes=int(graph.bytes[v]))
        for v in sorted(self.theirs):
            operands = [name_of.get(bases[u], graph.names[u]) for u in self.whole.graph.operands[v]]
            self.builder.op(graph.ops[v], launch, *operands, name=name_of[v], bytes=int(graph.bytes[v]))
        self.builder.gradient(*(name_of[v] for v in sorted(self.whole.traffic.writes[self.b])))

    def _views(self, reads: list[int]) -> set[int]:
        """Finds the views among `reads`, and those that they look through."""
        found, bases = set[int](), self.whole.bases
        while reads:
            view = reads.pop()
            if bases[view] != view and view not in found:
                found.add(view)
                reads += self.whole.graph.operands[view]
        return found

    def _written_anyway(self) -> set[int]:
        """Finds A's values that are in memory whatever B does."""
        whole = self.whole
        groups = (reads for k, reads in enumerate(whole.traffic.reads) if k not in (self.a, self.b))
        read_elsewhere = {whole.bases[u] for reads in groups for u in reads}
        not_theirs = {v for v in self.ours if whole.writer.get(v, self.a) != self.a}
        return set(self.ours) & (read_elsewhere | set(whole.roots) | not_theirs)
