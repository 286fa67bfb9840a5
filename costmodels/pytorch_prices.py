"""Computes the default prices of PyTorch's own partitioner for saving a value, as integers."""

from __future__ import annotations

import numpy as np

from remat import Graph
from remat.errors import InvalidProblem
from remat.facts.columns import LARGEST_TOTAL
from remat.plugin import IntArray

FARTHEST = 100
"""The distance from the backward pass beyond which a price does not grow (torch: `get_node_weight`)."""

_GROWTH = np.array([1.1 ** max(steps, 1) for steps in range(FARTHEST + 1)])


def pytorch_prices(graph: Graph) -> IntArray:
    """Returns an array (n,) of the price of saving each value, as PyTorch 2.13 computes it.

    The source is `get_node_weight` in `torch/_functorch/partitioners.py`: the value's own bytes, twice if each of its
    uses can be fused. A price grows by a tenth with each step between the value and the backward pass, and is truncated
    to an integer. Parameters are free. An element of a tuple can be fused, whatever operator computes the tuple.
    Inductor's operators on seeds cannot, because torch's lists lack them.

    Raises:
        InvalidProblem: the prices add up to 2**62 or more.
    """
    written = graph.input | graph.output  # torch counts the end of its graph as a use that cannot be fused
    listed = ~np.fromiter((op.startswith("prims.inductor_") for op in graph.ops), np.bool_, len(graph))
    fused = graph.fusible_uses | (graph.tuple_element[graph.producers] & graph.fusible[graph.consumers])
    written[graph.producers[~(fused & listed[graph.producers] & listed[graph.consumers])]] = True
    weighted = graph.bytes * _GROWTH[steps_to_backward(graph)]
    if 2 * weighted.sum() >= LARGEST_TOTAL:  # the integers below would overflow silently
        raise InvalidProblem(f"PyTorch's prices must add up to less than 2**62, got up to {2 * weighted.sum():.2e}")
    price = weighted.astype(np.int64)
    return np.where(graph.parameter, 0, np.where(written, price, 2 * price))


def steps_to_backward(graph: Graph) -> IntArray:
    """Returns an array (n,): the fewest uses from each value to one outside the region FORWARD; at most `FARTHEST`."""
    steps = np.where(graph.in_forward, FARTHEST, 0)
    for near in range(1, FARTHEST):
        nearer = (steps[graph.consumers] == near - 1) & (steps[graph.producers] > near)
        if not nearer.any():
            break
        steps[graph.producers[nearer]] = near
    return steps
