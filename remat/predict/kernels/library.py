"""Lowers calls of libraries, whose arguments must be in memory, in a layout that the library takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from remat.predict.kernels.index import Shape, contiguous_strides
from remat.predict.kernels.ir import Buffer, Loop, Reads, Seen
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.stores import layout
from remat.predict.kernels.strides import channels_last, in_order_of
from remat.predict.kernels.view_maps import positive


def library(low: Lowering, call: Call) -> Seen | None:
    """Lowers an operator that has no other rule to a call."""
    return called(low, call, low.arguments(call))


def called(low: Lowering, call: Call, arguments: Sequence[Seen]) -> Seen | None:
    """Makes a call with these arguments; its result, or None for a tuple, whose elements follow."""
    reads: Reads = {(low.stores.for_call(seen), ((), 0)): 1 for seen in arguments}
    loop = Loop(frozenset({call.position}), reads, [], generated=False)
    low.stores.loops.append(loop)
    if call.is_tuple:
        loop.several = True

        def element(low: Lowering, one: Call) -> Seen:
            loop.values |= {one.position}
            return _result(low, one, loop)

        low.elements[call.position] = element
        return None
    return _result(low, call, loop)


def _result(low: Lowering, call: Call, loop: Loop) -> Seen:
    buffer = Buffer(call.position, call.shape, call.itemsize, low.stores.strides[call.position])
    loop.writes.append(buffer)
    return Seen.of_buffer(buffer)


def batched_product(low: Lowering, call: Call) -> Seen | None:
    """Lowers a product of matrices, each in rows or in columns; one that would be neither is stored in rows."""
    for u in call.refs():
        seen = low.seen[u]
        buffer = seen.box.buffer
        if (buffer is None or buffer.strides is None) and not _either_last(seen.shape, low.stores.strides[u]):
            low.seen[u] = low.stores.exactly(seen, contiguous_strides(seen.shape))
    return library(low, call)


def convolution(low: Lowering, call: Call) -> Seen | None:
    """Lowers a convolution, whose image and filters are stored with their channels last."""
    for u in list(call.refs())[:2]:
        low.seen[u] = low.stores.in_order(low.seen[u], channels_last(low.seen[u].shape))
    result = library(low, call)
    if result is not None and result.box.buffer is not None:
        result.box.buffer.strides = channels_last(call.shape)
    return result


def convolution_backward(low: Lowering, call: Call) -> Seen | None:
    """Lowers a convolution's gradients: arguments take the layout for the filters' gradient, then for the image's.

    In a pass without convolutions, where layouts are not the compiler's to choose, they first take eager's.

    As `convolution_backward_lowering` of torch 2.13. Filters of one channel each, the depthwise ones, have a layout
    with channels last in which columns are the innermost all the same, and images are copied into it.
    """
    gradient, image, filters = list(call.refs())[:3]
    if not low.uses.convolves:
        for u in (gradient, image, filters):
            low.seen[u] = low.stores.in_order(low.seen[u], low.stores.strides[u])
    for u in (image, filters, gradient):
        low.stores.store(low.seen[u].box)
    of_image, of_filters = call.args[10][:2]
    for asked, like, ends in ((of_filters, filters, (image, gradient)), (of_image, image, (gradient, filters))):
        last = low.uses.convolves or any(_channels_last(low.seen[u]) for u in (image, filters))
        shape = low.seen[like].shape
        order = channels_last(shape) if last else contiguous_strides(shape)
        for u in ends if asked else ():
            seen = low.seen[u]
            wanted = channels_last(seen.shape) if low.uses.convolves else in_order_of(seen.shape, order)
            low.seen[u] = low.stores.in_order(seen, wanted)
    return library(low, call)


def attention(low: Lowering, call: Call) -> Seen | None:
    """Lowers attention, with arguments in eager's order of strides, or in rows if the last one is not the least."""
    for u in call.refs():
        seen, strides = low.seen[u], low.stores.strides[u]
        if strides and min(strides) != strides[-1]:
            strides = contiguous_strides(seen.shape)
        low.seen[u] = low.stores.in_order(seen, strides)
    return library(low, call)


def concatenation(low: Lowering, call: Call) -> Seen:
    """Lowers a concatenation, which is no kernel: parts that are not stored yet are written in place, others copied."""
    if not isinstance(call.args[0], list):
        raise ValueError("the tensors must be a list")
    listed = cast(list[Any], call.args[0])
    parts = [low.seen[ref.position] for ref in listed if isinstance(ref, Ref)]
    dim = positive(call.arg(1, "dim", 0), len(call.shape))
    strides, start = _whole_strides(low, call, parts), 0
    reads: Reads = {}
    for part in parts:
        still_open = part.plain and (part.box.buffer is None or part.box.buffer.strides is None)
        buffer = low.stores.store(part.box if still_open else low.stores.copy(part).box)
        buffer.strides, buffer.offset = strides, start
        start += part.shape[dim] * strides[dim]
        reads[buffer, ((), 0)] = 1
    whole = Buffer(call.position, call.shape, call.itemsize, strides)
    low.stores.loops.append(Loop(frozenset({call.position}), reads, [whole], generated=False, launched=False))
    return Seen.of_buffer(whole)


def _whole_strides(low: Lowering, call: Call, parts: Sequence[Seen]) -> Shape:
    """Chooses channels last if a part in memory has them so, or, with none in memory, eager (`ConcatKernel.create`)."""
    stored = [(part, part.box.buffer) for part in parts if part.box.buffer is not None]
    if stored:
        last = any(buffer.strides is not None and _channels_last(part) for part, buffer in stored)
    else:
        last = any(low.stores.strides[u] == channels_last(low.seen[u].shape) for u in call.refs() if u in low.seen)
    return channels_last(call.shape) if last else contiguous_strides(call.shape)


def _channels_last(seen: Seen) -> bool:
    return layout(seen) == channels_last(seen.shape)


def _either_last(shape: Shape, strides: Shape) -> bool:
    """Says if a matrix is in rows or in columns (`is_preferred_layout_as_bmm_input`)."""
    *_, rows, columns = shape
    *_, a, b = strides
    return (b == 1 and (rows == 1 or a >= columns)) or (a == 1 and (columns == 1 or b >= rows))
