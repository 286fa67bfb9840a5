"""Predicts the kernels of the backward pass, as far as they do not depend on what is saved.

TorchInductor's rules decide which values can be fused (`remat.predict.memory.registers`). They include cases that
torch's partitioner (`Graph.fusible`) lacks: index arithmetic is inlined, and `addmm` is one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.plugin import BoolArray, Graph, IntArray
from remat.predict.kernels import Fuser
from remat.predict.memory.registers import fusion


@dataclass(frozen=True, eq=False)
class BackwardKernels:
    """Holds which backward kernels need each value of a graph of n values, and what the forward pass writes.

    The kernels are those that `remat.predict.kernels` predicts for the plan that saves all values that the backward
    pass needs. A recomputed value joins one of these kernels, or has a separate kernel, which writes it. The kernel is
    separate if a library call of the backward pass reads or computes the value, or if it is returned as a gradient.
    """

    graph: Graph
    not_recomputable: BoolArray  # (n,) views are always recomputed
    kernels: list[int]  # bit mask of the kernels that compute a value of the tangents' closure; 0 for other values
    own_kernel: BoolArray  # (n,) values that may be recomputed, but only by a separate kernel
    written: BoolArray  # (n,) values that the forward pass writes to memory, whatever is saved

    @classmethod
    def of(cls, graph: Graph, not_recomputable: BoolArray) -> BackwardKernels:
        order = np.argsort(graph.consumers, kind="stable")
        u, v = graph.producers[order], graph.consumers[order]
        fusible, fused = fusion(graph, u, v, graph.fusible_uses[order])
        return cls(
            graph=graph,
            not_recomputable=not_recomputable,
            kernels=_kernels(graph),
            own_kernel=_own_kernel(graph, not_recomputable, fusible | graph.view, u, v, fused),
            written=_written(graph, u[~fused & graph.in_forward[v]]),
        )

    def reads(self) -> IntArray:
        """Returns, for each of n values, the number of kernels of the tangents' closure that need it.

        A kernel needs a value if it reads the value or computes something from it on the way. A value of the closure
        itself counts 0, because it cannot be saved.
        """
        graph = self.graph
        tangents = graph.in_tangents.tolist()
        through = (~(self.not_recomputable | self.own_kernel) | graph.view | graph.in_tangents).tolist()
        reached = list(self.kernels)
        order = np.argsort(graph.producers, kind="stable")[::-1]  # readers come before what they read
        for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
            if through[v] and not tangents[u]:
                reached[u] |= reached[v]
        return np.where(graph.in_tangents, 0, np.array([bits.bit_count() for bits in reached], np.int64))


def _kernels(graph: Graph) -> list[int]:
    bits = [0] * len(graph)
    all_saved = graph.needed & ~graph.cannot_save.mask
    for k, kernel in enumerate(kernel for kernel in Fuser(graph).kernels(all_saved) if kernel.backward):
        for v in kernel.values:
            bits[v] |= 1 << k
    # A view, or a product that became part of a sum, has no kernel: it belongs to its readers' kernels.
    order = np.argsort(graph.producers, kind="stable")[::-1]
    inlined = [not kernels for kernels in bits]
    for u, v in zip(graph.producers[order].tolist(), graph.consumers[order].tolist(), strict=True):
        if inlined[u]:
            bits[u] |= bits[v]
    first_free = max((kernels.bit_length() for kernels in bits), default=0)
    return [
        (kernels or 1 << first_free + v) if inside else 0  # a value without a kernel gets a separate bit
        for v, (kernels, inside) in enumerate(zip(bits, graph.in_tangents.tolist(), strict=True))
    ]


# Values with a separate kernel; a use through a view is a use of the value. Library calls that are not recomputed stay
# in the forward pass, so the backward pass does not read their operands.
def _own_kernel(
    graph: Graph,
    not_recomputable: BoolArray,
    fusible: BoolArray,
    producers: IntArray,
    consumers: IntArray,
    fused: BoolArray,
) -> BoolArray:
    view, call, fixed = graph.view.tolist(), (~fusible).tolist(), not_recomputable.tolist()
    alone = (graph.gradient | ~fusible).tolist()
    columns = producers[::-1].tolist(), consumers[::-1].tolist(), fused[::-1].tolist()
    for u, v, is_fused in zip(*columns, strict=True):
        if alone[v] if view[v] else (call[v] or not is_fused) and not fixed[v]:
            alone[u] = True
    return np.array(alone, np.bool_) & ~graph.view & ~not_recomputable & ~graph.in_tangents


# Values that the forward pass writes, by whole storages: a view is written if and only if its base is.
def _written(graph: Graph, called_on: IntArray) -> BoolArray:
    written = graph.input | graph.output
    written[called_on] = True
    return graph.owners(written)[graph.base]
