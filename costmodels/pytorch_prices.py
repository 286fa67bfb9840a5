"""The prices of PyTorch's own partitioner, in whole numbers: what saving a value costs by its default."""

from __future__ import annotations

import numpy as np

from remat import Graph
from remat.errors import InvalidProblem
from remat.facts.columns import LARGEST_TOTAL
from remat.plugin import IntArray

FARTHEST = 100
"""Steps from the backward pass beyond which a price does not grow any more (torch: `get_node_weight`)."""

_GROWTH = np.array([1.1 ** max(steps, 1) for steps in range(FARTHEST + 1)])


def pytorch_prices(graph: Graph) -> IntArray:
    """(n,) what saving each value costs by `get_node_weight` in `torch/_functorch/partitioners.py` of PyTorch 2.13.

    A value's own bytes, twice if each of its own uses can be fused, grow by a tenth with each step between the
    value and the backward pass, and count as whole numbers, as in PyTorch. Parameters are free. An element of a
    tuple can be fused, whatever makes the tuple; what Inductor makes of a seed cannot, for torch's lists lack it.

    Raises:
        InvalidProblem: the prices add up to 2**62 or more.
    """
    written = graph.input | graph.output  # torch takes the end of its graph for a use that cannot be fused
    known = ~np.fromiter((op.startswith("prims.inductor_") for op in graph.ops), np.bool_, len(graph))
    fused = graph.fusible_uses | (graph.tuple_element[graph.producers] & graph.fusible[graph.consumers])
    written[graph.producers[~(fused & known[graph.producers] & known[graph.consumers])]] = True
    weighted = graph.bytes * _GROWTH[steps_to_backward(graph)]
    if 2 * weighted.sum() >= LARGEST_TOTAL:  # what follows would wrap
        raise InvalidProblem(f"PyTorch's prices must add up to less than 2**62, got up to {2 * weighted.sum():.2e}")
    price = weighted.astype(np.int64)
    return np.where(graph.parameter, 0, np.where(written, price, 2 * price))


def steps_to_backward(graph: Graph) -> IntArray:
    """(n,) the fewest uses from each value to one that the forward pass does not need; `FARTHEST` at most."""
    steps = np.where(graph.in_forward, FARTHEST, 0)
    for near in range(1, FARTHEST):
        nearer = (steps[graph.consumers] == near - 1) & (steps[graph.producers] > near)
        if not nearer.any():
            break
        steps[graph.producers[nearer]] = near
    return steps
