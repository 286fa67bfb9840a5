"""What the kernels of the backward pass will be, as far as that does not depend on what is saved.

Which values can be fused is TorchInductor's view (`remat.predict.memory.registers`), which knows more than the lists of
torch's partitioner in `Graph.fusible`: index arithmetic is inlined, `addmm` is one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.plugin import BoolArray, Graph, IntArray
from remat.predict.kernels import Fuser
from remat.predict.memory.registers import fusion


@dataclass(frozen=True, eq=False)
class BackwardKernels:
    """Predicted once for a graph of n values, and for what may be recomputed of it.

    The kernels are those that `remat.predict.kernels` predicts for the plan that saves all that the backward pass
    needs: what is recomputed joins kernels that are there anyway, or is a kernel of its own.

    Attributes:
        graph: where the values are from.
        stuck: (n,) what is not recomputed. Views are taken again in any case.
        kernels: the kernels that compute each value of the tangents' closure, as bits of an integer; else 0.
        apart: (n,) what may be recomputed, but only by a kernel of its own, which writes it: what a library call
            of the backward pass needs, what is such a call, and what is returned as a gradient.
        written: (n,) what the forward pass writes, whatever is saved.
    """

    graph: Graph
    stuck: BoolArray
    kernels: list[int]
    apart: BoolArray
    written: BoolArray

    @classmethod
    def of(cls, graph: Graph, stuck: BoolArray) -> BackwardKernels:
        """The prediction, in time linear in the graph."""
        order = np.argsort(graph.consumers, kind="stable")
        u, v = graph.producers[order], graph.consumers[order]
        fusible, fused = fusion(graph, u, v, graph.fusible_uses[order])
        return cls(
            graph=graph,
            stuck=stuck,
            kernels=_kernels(graph),
            apart=_apart(graph, stuck, fusible | graph.view, u, v, fused),
            written=_written(graph, u[~fused & graph.in_forward[v]]),
        )

    def reads(self) -> IntArray:
        """(n,) how many kernels each value reaches directly, or through what they may compute on their way.

        Counted are the kernels of the tangents' closure; 0 within it, whose values are not for saving.
        """
        graph = self.graph
        tangents = graph.in_tangents.tolist()
        through = (~(self.stuck | self.apart) | graph.view | graph.in_tangents).tolist()
        reached = list(self.kernels)
        order = np.argsort(graph.producers, kind="stable")[::-1]  # all that a value reaches before the value
        for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
            if through[v] and not tangents[u]:
                reached[u] |= reached[v]
        counts = [bits.bit_count() for bits in reached]
        return np.where(graph.in_tangents, 0, np.array(counts, np.int64))


def _kernels(graph: Graph) -> list[int]:
    bits = [0] * len(graph)
    everything = graph.needed & ~graph.cannot_save.mask
    for k, kernel in enumerate(kernel for kernel in Fuser(graph).kernels(everything) if kernel.backward):
        for v in kernel.values:
            bits[v] |= 1 << k
    # What is in no kernel by itself, such as a view, or a product that became part of a sum, is in its readers'.
    order = np.argsort(graph.producers, kind="stable")[::-1]
    inlined = [not found for found in bits]
    for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
        if inlined[u]:
            bits[u] |= bits[v]
    alone = max((found.bit_length() for found in bits), default=0)
    return [
        (found or 1 << alone + v) if inside else 0
        for v, (found, inside) in enumerate(zip(bits, graph.in_tangents.tolist(), strict=True))
    ]


def _apart(
    graph: Graph, stuck: BoolArray, fusible: BoolArray, producers: IntArray, consumers: IntArray, fused: BoolArray
) -> BoolArray:
    """A use through a view is a use of the value. Calls that are not recomputed stay in the forward pass."""
    view, call, kept = graph.view.tolist(), (~fusible).tolist(), stuck.tolist()
    found = (graph.gradient | ~fusible).tolist()
    columns = producers[::-1].tolist(), consumers[::-1].tolist(), fused[::-1].tolist()
    for u, v, together in zip(*columns, strict=True):
        if found[v] if view[v] else (call[v] or not together) and not kept[v]:
            found[u] = True
    return np.array(found, np.bool_) & ~graph.view & ~stuck & ~graph.in_tangents


def _written(graph: Graph, called_on: IntArray) -> BoolArray:
    """A view is written if and only if its base is, so the fact spreads over the whole storage."""
    kept = graph.input | graph.output
    kept[called_on] = True
    by_base = np.zeros(len(graph), np.bool_)
    by_base[graph.base[kept]] = True
    return by_base[graph.base]
