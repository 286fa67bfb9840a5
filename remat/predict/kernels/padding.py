"""Finds the gaps that TorchInductor leaves in tensors on GPUs (`comprehensive_padding`).

A row that begins at a multiple of 128 bytes is read in fewer memory transactions. So each stride above 1,024 elements
is rounded up to such a multiple, where the compiler may still choose the layout: not in results of the pass, which have
eager's strides, and not in what a convolution reads, which would be copied.
Source: `Layout._pad_strides` and `mark_nodes_dislike_padding` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from remat.facts.columns import BoolArray
from remat.predict.kernels.index import Shape
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.rules import aten
from remat.predict.kernels.strides import lies_last
from remat.predict.kernels.view_maps import VIEWS

_ALIGNED_BYTES = 128
# Strides up to this many elements are not padded (`padding_stride_threshold`).
_SHORT = 1024

_NEED_DENSE = aten("convolution convolution_backward _scaled_mm _scaled_mm_v2")
_REDUCTIONS = aten("var_mean sum mean prod any amin amax min max argmin argmax scatter_reduce")


@dataclass(slots=True)
class Padding:
    """Says whether a layout that is fixed now is padded: it depends on the operator that is lowered at that time."""

    active: bool = True

    def applied(self, shape: Shape, strides: Shape, itemsize: int) -> Shape:
        """Returns the strides that a layout with these dense strides gets now."""
        return padded_strides(shape, strides, itemsize) if self.active else strides


@lru_cache(maxsize=1 << 13)
def padded_strides(shape: Shape, strides: Shape, itemsize: int) -> Shape:
    """Returns dense strides with gaps: those above 1,024 become multiples of 128 bytes.

    >>> padded_strides((4, 8, 65, 65), (33800, 4225, 65, 1), 4)  # 65 is a short row, and 65 rows are 4,225 elements
    (34048, 4256, 65, 1)
    """
    # One channel is no reason to keep a layout (`Layout.is_channels_last_contiguous`).
    if not prod(shape) * itemsize or (lies_last(shape, strides) and shape[1] != 1):
        return strides
    aligned, padded, step, is_padded = _ALIGNED_BYTES // itemsize, [0] * len(shape), 1, False
    for dim in sorted(range(len(shape)), key=lambda i: (strides[i], -i)):
        if step > _SHORT and step % aligned:
            step, is_padded = -(-step // aligned) * aligned, True
        padded[dim] = step
        step *= shape[dim]
    return tuple(padded) if is_padded else strides


def results_with_views(calls: Sequence[Call], results: BoolArray) -> frozenset[int]:
    """Returns the results of a pass, and the values of which they are views (`extend_user_visible_output_strides`)."""
    found = set(results.nonzero()[0].tolist())
    waiting = list(found)
    while waiting:
        call = calls[waiting.pop()]
        if call.op in VIEWS and call.sources and call.sources[0] not in found:
            found.add(call.sources[0])
            waiting.append(call.sources[0])
    return frozenset(found)


def unpadded(calls: Sequence[Call], values: Sequence[int], results: frozenset[int]) -> frozenset[int]:
    """Returns the values of a pass that fix layouts without gaps when they are lowered.

    Args:
        values: what the pass computes, in order.
        results: those of `results_with_views`.
    """
    needed, dense = {v for v in values if calls[v].op in _NEED_DENSE}, set[int]()
    for v in reversed(values) if needed else ():
        if v in needed or v in dense:
            dense.add(v)
            dense.update(u for u in calls[v].sources if calls[u].op not in _REDUCTIONS and calls[u].op != "getitem")
    # While a result that is a sum is lowered, the layouts of what it reads are fixed, and padded.
    return frozenset(dense).union(v for v in results if calls[v].op not in _REDUCTIONS)
