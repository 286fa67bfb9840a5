"""Cuts the forward pass into segments, after Chen, Xu, Zhang and Guestrin (2016), "Training deep nets with sublinear
memory cost": the backward pass computes a segment again from what was saved at its beginning.

Their algorithm 3 walks through the tensors in order, adds up bytes, and makes a cut at the first allowed place where
the sum exceeds a threshold. Then it searches for the threshold, near the square root of the saved bytes times the
largest segment. Here 64 thresholds make one plan each, and a budget takes the cheapest plan that it allows.

Their networks are chains, where a cut saves one tensor. In a graph, a cut saves each tensor that was computed before it
and is read after it by the forward pass. Generalisations, by where cuts may be:

- `at_articulation_points`: where one tensor crosses, so that the graph is a chain there;
- `at_any_place`: everywhere; all that crosses is saved;
- `in_a_line`: everywhere, but a cut saves only the tensor before it, as if the order of the tensors were a chain. So
  Jain et al. (2020, "Checkmate") compare Chen's algorithm with theirs on graphs, under the name "linearized";
- `beside_products`: as `at_any_place`, and the results of all matrix products and convolutions are saved, too. Chen et
  al. also propose to drop only what is cheap.

Changed: what the forward pass does not compute is never saved, unless it must be.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.rivals.tensor_instance import TensorInstance
from remat.facts.columns import BoolArray, IntArray

THRESHOLDS = 64


def crossing_tensors(instance: TensorInstance, cut: int) -> BoolArray:
    """Returns a mask (k,) of the tensors that cross a cut behind a tensor."""
    place = instance.value[cut]
    return instance.forward & (instance.value <= place) & (instance.last_forward > place)


def cuts(sizes: IntArray, allowed: BoolArray, threshold: float) -> list[int]:
    """Makes a cut behind the first allowed tensor with which the bytes since the last cut exceed the threshold."""
    found, since = list[int](), 0
    for p, (size, is_allowed) in enumerate(zip(sizes.tolist(), allowed.tolist(), strict=True)):
        since += size
        if is_allowed and since > threshold:
            found.append(p)
            since = 0
    return found


def at_articulation_points(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields a plan for each threshold, with cuts where one tensor crosses."""
    yield from _plans(
        instance, instance.forward & (instance.crossing(np.ones_like(instance.value)) == 1), saves_all_that_crosses=True
    )


def at_any_place(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields a plan for each threshold, with cuts everywhere, and all that crosses them saved."""
    yield from _plans(instance, instance.forward, saves_all_that_crosses=True)


def in_a_line(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields a plan for each threshold, with cuts everywhere, and only the tensor before a cut saved."""
    yield from _plans(instance, instance.forward, saves_all_that_crosses=False)


def beside_products(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields the plans of `at_any_place` with the results of matrix products, convolutions and attention saved."""
    products = instance.graph.compute_bound[instance.graph.plannable[instance.value]]
    sizes = np.where(instance.forward & ~products, instance.bytes, 0)
    for saved in _plans(instance, instance.forward, saves_all_that_crosses=True, sizes=sizes):
        yield saved | products


def _plans(
    instance: TensorInstance, allowed: BoolArray, *, saves_all_that_crosses: bool, sizes: IntArray | None = None
) -> Iterator[BoolArray]:
    if sizes is None:
        sizes = np.where(instance.forward, instance.bytes, 0)
    if not allowed.any():
        return
    most = max(int(sizes.sum()), 1)
    for i in range(THRESHOLDS - 1, -1, -1):
        threshold = most ** (i / (THRESHOLDS - 1))
        saved = np.zeros(len(instance), np.bool_)
        for cut in cuts(sizes, allowed, threshold):
            saved |= crossing_tensors(instance, cut) if saves_all_that_crosses else np.arange(len(instance)) == cut
        yield saved
