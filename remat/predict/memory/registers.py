"""Says which values a compiler can keep in registers, whatever the plan, for the simulation of peaks.

Other questions about fusion have other answers, and docs/fusion.md compares them. `Graph.fusible` says what
torch's partitioner takes for fusible: that decides which traffic it sees. TorchInductor, which makes the
kernels, knows three things more that move peaks (read in, and compared with, torch 2.13):

- Some operators that the partitioner's lists lack are index arithmetic, and are inlined (`LOWERED`).
- It has no kernels for complex numbers, and calls eager's operators instead.
- A sum of a matrix product and something else is one call of the library, `addmm`: the product by
  itself is never in memory. So are the sums of a weight's gradients from several places.
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
"""Operators that TorchInductor lowers to pointwise kernels, and torch's partitioner does not call fusible."""

_SUM, _PRODUCT = "aten.add.Tensor", "aten.mm.default"


def fusion(
    graph: Graph, producers: IntArray, readers: IntArray, fusible_uses: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Returns (n,) values that can live in registers, and (m,) uses that can be fused.

    Args:
        producers, readers: (m,) the uses of the graph, those of one reader in the order of its arguments.
        fusible_uses: (m,) whether the graph calls them fusible.
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


# Products that are read once, by a sum of their shape; and these sums.
def _added_products(graph: Graph, producers: IntArray, readers: IntArray) -> tuple[list[int], list[int]]:
    sums = np.fromiter((op == _SUM for op in graph.ops), np.bool_, len(graph))
    once = np.bincount(producers, minlength=len(graph)) == 1
    found: dict[int, int] = {}
    candidates = sums[readers] & once[producers]
    for u, v in zip(producers[candidates].tolist(), readers[candidates].tolist(), strict=True):
        if graph.ops[u] == _PRODUCT and graph.shapes[u] == graph.shapes[v]:
            found[v] = u  # of two products, Inductor adds the second one to the first
    return list(found.values()), list(found)
