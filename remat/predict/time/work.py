"""Defines the work of recomputing a value: whether it needs a kernel, and what it reads, writes and computes.

The backward pass of a compiled model is a sequence of kernels. A recomputed value that fuses joins one of them (paper,
section 3.1): it costs the reads from memory that the kernel does not make anyway, but no launch and no write. Any other
value runs as a separate kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.errors import InvalidGraph
from remat.facts.columns import LARGEST_TOTAL, BoolArray, IntArray, frozen
from remat.facts.graph import Graph, Region, checked_graph

# Operators that select rows or elements by index: they read at most as many bytes of an operand as they write.
_PICKS = ("aten.embedding.", "aten.gather.", "aten.index_select.", "aten.index.")


@dataclass(frozen=True, eq=False)
class Work:
    """Holds the work of computing each value once more, as arrays (n,); values that need no work have zeros."""

    # there is nothing to recompute: inputs, views, tuple elements, constants, empty values, values that are no tensors,
    # and the tangents' closure.
    free: BoolArray
    # it is recomputed by a separate kernel, since PyTorch's partitioner does not call it fusible (`Graph.fusible`;
    # docs/fusion.md compares other definitions).
    own_kernel: BoolArray
    flops: IntArray  # floating-point operations
    read_bytes: IntArray
    written_bytes: IntArray

    @classmethod
    def of(cls, graph: Graph) -> Work:
        """Computes the work of every value, in time linear in the graph (apart from sorting the uses)."""
        made = checked_graph(graph).moved_bytes + _over_elements(graph, graph.moved_bytes)
        free = graph.input | graph.view | graph.tuple_element | (graph.region == Region.TANGENTS) | (made == 0)
        free |= _constants(graph) | np.array([dtype == "symint" for dtype in graph.dtypes], np.bool_)
        own_kernel = ~free & ~graph.fusible
        zero = np.zeros(len(graph), np.int64)
        return cls(
            free=free,
            own_kernel=own_kernel,
            flops=np.where(free, zero, flops_with_elements(graph)),
            read_bytes=np.where(free, zero, _read_bytes(graph)),
            written_bytes=np.where(own_kernel, made, zero),
        )


def flops_with_elements(graph: Graph) -> IntArray:
    """Returns `Graph.flops` (n,), where a tuple without flops gets the sum over its elements."""
    total = float(graph.flops.sum(dtype=np.float64))
    if total >= LARGEST_TOTAL:
        raise InvalidGraph(f"Graph.flops must add up to less than 2**62, got about {total:.2e}")
    return np.where(graph.flops > 0, graph.flops, _over_elements(graph, graph.flops))


# Sums over the elements of each tuple, because the tuple itself has no amount.
def _over_elements(graph: Graph, amounts: IntArray) -> IntArray:
    sums = np.zeros(len(graph), np.int64)
    taken = graph.tuple_element[graph.consumers]
    np.add.at(sums, graph.producers[taken], amounts[graph.consumers[taken]])
    return sums


# A kernel computes these without reading. Random numbers are not among them: `Graph.flops` has their arithmetic.
def _constants(graph: Graph) -> BoolArray:
    constant = ~graph.random & (graph.fusible | np.array([op == "get_attr" for op in graph.ops], np.bool_))
    constant[graph.consumers] = False
    return constant


def _read_bytes(graph: Graph) -> IntArray:
    """Returns the bytes that computing each value reads; each storage counts once, however many views of it are read.

    A value that fuses reads only inputs, and operands over uses that do not fuse; the kernel that it joins has the
    others. A view is in memory if its argument is.
    """
    n, u, v = len(graph), graph.producers, graph.consumers
    read = graph.input[u] | ~graph.fusible_uses
    in_memory = graph.input.copy()
    looks = graph.view[v] & (graph.storage[u] == graph.storage[v])
    for a, b, from_memory in zip(u[looks].tolist(), v[looks].tolist(), read[looks].tolist(), strict=True):
        in_memory[b] |= from_memory or in_memory[a]
    read |= in_memory[u] | ~graph.fusible[v]
    # One row per (consumer, storage): the views of a storage together cannot move more than the whole storage.
    order = np.argsort(v[read] * n + graph.base[u[read]], kind="stable")
    consumer, producer = v[read][order], u[read][order]
    storage = graph.base[producer]
    moved = graph.moved_bytes[producer]
    readers: list[int] = consumer.tolist()
    picked = np.array([graph.ops[i].startswith(_PICKS) for i in readers], np.bool_)
    moved[picked] = np.minimum(moved[picked], graph.bytes[consumer[picked]])
    sums = np.zeros(n, np.int64)
    if len(order):
        starts = np.flatnonzero(np.r_[True, (np.diff(consumer) != 0) | (np.diff(storage) != 0)])
        np.add.at(sums, consumer[starts], np.minimum(np.add.reduceat(moved, starts), graph.bytes[storage[starts]]))
    return sums


def whole_prices(label: str, prices: NDArray[np.float64] | IntArray) -> IntArray:
    """Rounds costs up to integers, so that a positive cost never becomes 0."""
    total = float(prices.sum(dtype=np.float64))
    if not total < LARGEST_TOTAL:
        raise InvalidGraph(f"{label}: the prices of this graph must add up to less than 2**62, got about {total:.2e}")
    return frozen(np.ceil(prices).astype(np.int64))
