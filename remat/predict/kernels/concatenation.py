"""Lowers concatenations: parts are written or copied into the result, or an expression selects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from remat.predict.kernels.index import Access, Shape, contiguous_strides, coordinate
from remat.predict.kernels.ir import Buffer, Loop, Reads, View
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import Draft, layout
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.strides import lies_last, turned
from remat.predict.kernels.view_maps import positive

# `max_pointwise_cat_inputs`.
_MAX_PARTS = 8


def concatenation(lowering: Lowering, call: Call) -> View:
    """Lowers a concatenation: parts are written or copied into it. On GPUs, an expression may select the parts."""
    if not isinstance(call.args[0], list):
        raise ValueError("the tensors must be a list")
    listed = cast(list[Any], call.args[0])
    sources = [ref.position for ref in listed if isinstance(ref, Ref)]
    parts = [lowering.views[u] for u in sources]
    dim = positive(call.arg(1, "dim", 0), len(call.shape))
    if lowering.stores.backend.gpu and _computes_parts(lowering, call, sources):
        return _part_by_part(lowering, call, parts, dim)
    strides, start = _whole_strides(lowering, call, parts), 0
    reads: Reads = {}
    for part in parts:
        still_open = part.is_whole and (part.box.buffer is None or part.box.buffer.strides is None)
        buffer = lowering.stores.store(part.box if still_open else lowering.stores.copy(part).box)
        buffer.strides, buffer.offset = strides, start
        start += part.shape[dim] * strides[dim]
        reads[buffer, ((), 0)] = 1
    whole = Buffer(call.position, call.shape, call.itemsize, strides)
    lowering.stores.loops.append(Loop(frozenset({call.position}), reads, [whole], generated=False, launched=False))
    return View.of_buffer(whole)


# On GPUs, a concatenation may be an expression that selects among its parts (`lowering.cat`).
def _computes_parts(lowering: Lowering, call: Call, sources: Sequence[int]) -> bool:
    if len(sources) > _MAX_PARTS:
        return False
    uses, parts = lowering.uses.network, [lowering.views[u] for u in sources]
    # A part that could be written in place needs no copy; all others are expressions, or have a fixed layout.
    fresh = [part.box.buffer is None or part.box.buffer.strides is not None for part in parts]
    for u, part in zip(sources, parts, strict=True):
        others = [reader for reader in uses.of(u) if reader != call.position]
        again = bool(others) or lowering.uses.returned[u]
        if again and (part.box.buffer is None or any(map(uses.is_elementwise, others))):
            return False
    if any(fresh) and uses.elementwise(call.position, "aten.cat", "aten.constant_pad_nd"):
        return True
    reduced = {buffer for loop in lowering.stores.loops if loop.reduced for buffer in loop.writes}
    return all(fresh) and not any(_has_reduction(part, reduced) for part in parts)


def _has_reduction(part: View, reduced: set[Buffer]) -> bool:
    buffer = part.box.buffer
    return buffer in reduced if buffer is not None else any(read in reduced for read, _ in part.box.reads)


def _part_by_part(lowering: Lowering, call: Call, parts: Sequence[View], dim: int) -> View:
    draft = Draft(lowering.stores, {call.position})
    bounds = [0]
    for part in parts:

        def placed(of: Access, first: int = bounds[-1]) -> Access:
            digits = lowering.shifted(call.shape[dim], of[0][dim], "part", first, of[0][dim])
            return (*of[0][:dim], digits, *of[0][dim + 1 :]), of[1]

        draft.take(part, placed)
        bounds.append(bounds[-1] + part.shape[dim])
    draft.indices[coordinate(call.shape, dim), 0] = None
    # Of each part two comparisons and a masked read, then the choices; parts in the middle have both conditions.
    lowering.stores.weigh(call.position, 5 * len(parts) - 3, [("int64", "0"), *(("bound", n) for n in bounds[1:])])
    return draft.done(call.position, call.shape, call.itemsize)


# As `ConcatKernel.create`: the layout follows the parts in memory; without any, eager's strides. Strides of dimensions
# with one element do not count: without parts in memory, images of one channel are channels-last, too.
def _whole_strides(lowering: Lowering, call: Call, parts: Sequence[View]) -> Shape:
    stored = [(part, part.box.buffer) for part in parts if part.box.buffer is not None]
    if stored:
        last = any(
            buffer.strides is not None and part.shape[1:2] != (1,) and lies_last(part.shape, layout(part))
            for part, buffer in stored
        )
    else:
        shapes = [(u, lowering.views[u].shape) for u in call.refs if u in lowering.views]
        last = any(lies_last(shape, lowering.stores.strides[u]) for u, shape in shapes)
    if last:
        return turned(call.shape)
    return lowering.stores.padded(call.shape, contiguous_strides(call.shape), call.itemsize)
