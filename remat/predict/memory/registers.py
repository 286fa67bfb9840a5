"""Decides which values a compiler can keep in registers, whatever the plan, for the simulation of peaks.

docs/fusion.md compares this with other questions about fusion. `Graph.fusible` is what torch's partitioner calls
fusible, which decides which traffic it sees. TorchInductor, which generates the kernels, has three more rules that
change peaks (source: torch 2.13, and comparisons with it):

- Some operators that are missing in the partitioner's lists are index arithmetic, and are inlined (`LOWERED`).
- Inductor has no kernels for complex numbers, and calls eager's operators instead.
- A sum that includes a matrix product is one library call, `addmm`, so the product itself is never in memory. This
  includes sums of a weight's gradients from several places.
"""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph

LOWERED = frozenset(
    f"{name}.default"
    for name in (
        "aten.copy",
        "aten.embedding",
        "aten.repeat",
        "aten.select_scatter",
        "aten.slice_scatter",
        "prims._low_memory_max_pool_with_offsets",
        "prims.fma",
        "prims.rev",
    )
)
"""Operators that TorchInductor lowers to pointwise kernels although torch's partitioner does not call them fusible."""

_SUM, _PRODUCT = "aten.add.Tensor", "aten.mm.default"


def fusion(
    graph: Graph, producers: IntArray, readers: IntArray, fusible_uses: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Returns the values that can be in registers (n,), and the uses that can be fused (m,).

    Args:
        producers, readers: (m,) the uses of the graph; those of one reader are in the order of its arguments.
        fusible_uses: (m,) the uses that the graph calls fusible.
    """
    lowered = np.fromiter((op in LOWERED for op in graph.ops), np.bool_, len(graph))
    fallback = np.fromiter((dtype.startswith("complex") for dtype in graph.dtypes), np.bool_, len(graph))
    fallback[readers[fallback[producers]]] = True
    fusible = (graph.fusible | lowered) & ~fallback
    touched = lowered[producers] | lowered[readers]
    uses = fusible_uses | (touched & fusible[producers] & fusible[readers])
    uses &= ~fallback[producers] & ~fallback[readers]
    product, sums = _added_products(graph, producers, readers)
    fusible[sums], fusible[product] = False, True
    is_sum, is_product = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.bool_)
    is_sum[sums] = is_product[product] = True
    uses &= ~is_sum[producers] & ~is_sum[readers]
    return fusible, uses | is_product[producers]


# Returns products whose only reader is a sum of their shape, and these sums.
def _added_products(graph: Graph, producers: IntArray, readers: IntArray) -> tuple[list[int], list[int]]:
    sums = np.fromiter((op == _SUM for op in graph.ops), np.bool_, len(graph))
    once = np.bincount(producers, minlength=len(graph)) == 1
    product_of: dict[int, int] = {}
    candidates = sums[readers] & once[producers]
    for u, v in zip(producers[candidates].tolist(), readers[candidates].tolist(), strict=True):
        if graph.ops[u] == _PRODUCT and graph.shapes[u] == graph.shapes[v]:
            product_of[v] = u  # of two products, Inductor adds the second one to the first
    return list(product_of.values()), list(product_of)
