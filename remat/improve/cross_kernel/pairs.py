"""Poses, as a joint graph, which values of fusion group A are computed again in group B instead of being read.

A plays the part of the forward pass, and B that of the backward pass (paper, section 3.7).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.facts.graph_builder import GraphBuilder
from remat.improve.cross_kernel.fusion_groups import Pass


def pair(full_pass: Pass, a: int, b: int) -> Graph:
    """Builds the joint graph of two groups, with A as the forward pass and B as the backward pass.

    What A reads is an input. A value of A is an output, which is written whatever is decided here, if another group
    needs it, if the pass returns it (paper, 3.7), or if another group writes it. What B reads, but A neither computes
    nor reads, becomes a tangent. Views belong to both sides. What both groups compute appears twice, for B as
    "... (again)".

    Args:
        full_pass: the pass.
        a, b: positions of the two groups; B must read what A writes.

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
    """Returns whether group `b` reads what group `a` writes."""
    return any(full_pass.writer.get(full_pass.bases[u]) == a for u in full_pass.traffic.reads[b])


class _Pair:
    def __init__(self, full_pass: Pass, a: int, b: int) -> None:
        self.full_pass, self.a, self.b = full_pass, a, b
        traffic = full_pass.traffic
        self.a_values, self.b_values = traffic.computes[a], traffic.computes[b]
        self.read = traffic.reads[b]
        self.available = self.a_values | {full_pass.bases[u] for u in traffic.reads[a]}
        used = {u for v in self.a_values for u in full_pass.graph.operands[v]} | self.read
        self.views = self._views([u for u in used if full_pass.bases[u] in self.available])
        self.builder = GraphBuilder()

    def graph(self) -> Graph:
        for v in sorted(self.available | self.views):
            self._add_to_a(v)
        self.builder.output(*(self.full_pass.graph.names[v] for v in sorted(self._written_anyway())))
        self._add_b()
        graph = self.builder.build()
        # Each group is one kernel, so that all uses inside it are fused, whatever the lists of fusible operators say.
        return replace(graph, fusible_uses=np.ones(len(graph.producers), np.bool_))

    def _add_to_a(self, v: int) -> None:
        graph, name, size = self.full_pass.graph, self.full_pass.graph.names[v], int(self.full_pass.graph.bytes[v])
        if v in self.available - self.a_values:
            self.builder.input(name, bytes=size)
            return
        operands = self.full_pass.graph.operands[v]
        if v in self.views:
            first = next(u for u in operands if graph.storage[u] == graph.storage[v])
            inside = self._stays_inside(self.full_pass.bases[v])
            self.builder.op(graph.ops[v], graph.names[first], name=name, bytes=size, view=True, cannot_save=inside)
            return
        self.builder.op(
            graph.ops[v],
            *(graph.names[u] for u in operands),
            name=name,
            bytes=size,
            fusible=bool(graph.fusible[v]) and self.full_pass.groups[self.a].generated,
            random=bool(graph.random[v]),
            compute_bound=bool(graph.compute_bound[v]),
            cannot_save=self._stays_inside(v),
            cannot_recompute=graph.cannot_recompute.reason(v) or self._unrecomputable_reason(v),
        )

    def _stays_inside(self, v: int) -> str | None:
        """Returns why a value, such as a tuple, cannot be read from memory; None if it can."""
        if v in self.available - self.a_values or v in {self.full_pass.bases[u] for u in self.read}:
            return None
        return self.full_pass.graph.cannot_save.reason(v) or (
            None if v in self.full_pass.writer else "no group writes it"
        )

    def _unrecomputable_reason(self, v: int) -> str | None:
        bases = {self.full_pass.bases[u] for u in self.full_pass.graph.operands[v]} - self.a_values
        reasons = (self.full_pass.graph.cannot_save.reason(base) for base in sorted(bases))
        return next((f"reads what must not be read later: {reason}" for reason in reasons if reason), None)

    def _add_b(self) -> None:
        graph, bases = self.full_pass.graph, self.full_pass.bases
        # All of B comes after A, even what it computes from nothing but A's values.
        launch = self.builder.tangent("(B)", bytes=0)
        name_of = {v: f"{graph.names[v]} (again)" if v in self.available else graph.names[v] for v in self.b_values}
        for v in sorted({bases[u] for u in self.read} - self.available):
            name_of[v] = self.builder.tangent(graph.names[v], bytes=int(graph.bytes[v]))
        for v in sorted(self.b_values):
            operands = [name_of.get(bases[u], graph.names[u]) for u in self.full_pass.graph.operands[v]]
            self.builder.op(graph.ops[v], launch, *operands, name=name_of[v], bytes=int(graph.bytes[v]))
        self.builder.gradient(*(name_of[v] for v in sorted(self.full_pass.traffic.writes[self.b])))

    def _views(self, reads: list[int]) -> set[int]:
        views, bases = set[int](), self.full_pass.bases
        while reads:
            view = reads.pop()
            if bases[view] != view and view not in views:
                views.add(view)
                reads += self.full_pass.graph.operands[view]
        return views

    def _written_anyway(self) -> set[int]:
        full_pass = self.full_pass
        groups = (reads for k, reads in enumerate(full_pass.traffic.reads) if k not in (self.a, self.b))
        read_elsewhere = {full_pass.bases[u] for reads in groups for u in reads}
        written_elsewhere = {v for v in self.a_values if full_pass.writer.get(v, self.a) != self.a}
        return set(self.a_values) & (read_elsewhere | set(full_pass.roots) | written_elsewhere)
