"""Lowers pooling of images to expressions that read each position of a window; large windows are library calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from remat.predict.kernels.index import Dims, contiguous_strides, opaque, strided
from remat.predict.kernels.ir import Buffer, Loop, View, merged
from remat.predict.kernels.library import library
from remat.predict.kernels.loops import decide_layout
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.pointwise import pointwise
from remat.predict.kernels.realize import Draft, layout
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.strides import channels_last

# Averages over larger windows are library calls (`lowering._avg_poolnd`, `avg_pool2d_backward`).
_LARGEST_WINDOW = 25


def pool_indices(lowering: Lowering, call: Call) -> View:
    """Lowers the conversion of positions in windows to positions in an image to arithmetic on coordinates."""
    view = pointwise(lowering, call)
    _, kernel, sizes, stride, *_ = call.args
    rank = len(kernel)
    steps = [s * row for s, row in zip(stride, contiguous_strides(tuple(sizes)), strict=True)]
    place = strided(call.shape, (*(0,) * (len(call.shape) - rank), *steps))
    view.box.indices = (*view.box.indices, (place, 0))
    return view


def max_pool(lowering: Lowering, call: Call) -> None:
    """Lowers the maximum over windows, and its position, to expressions that read each position of a window."""
    image = lowering.first(call)
    lowering.stores.hint(image)
    _, kernel, stride, padding, dilation, *_ = call.args

    def result(lowering: Lowering, one: Call) -> View:
        draft = _windows(lowering, one, image, (kernel, stride, padding, dilation))
        draft.ops.add(call.position)
        view = draft.done(one.position, one.shape, one.itemsize)
        # Each read has a comparison, and with padding also conditions on the coordinates. The position of the
        # maximum takes twelve more operations for each read but the first (`ir.get_reduction_combine_fn`).
        places = len(draft.reads)
        compared = 12 * (places - 1) if one.args[1] else 0
        if places * (8 if any(padding) else 2) + compared > lowering.stores.backend.max_ops:
            view = lowering.as_image(one.position, view)
            lowering.stores.store(view.box)
        return view

    lowering.elements[call.position] = result


def average_pool(lowering: Lowering, call: Call) -> View | None:
    """Lowers the average over windows to an expression that reads each position of a window."""
    kernel, stride, padding = _window(call, 1)
    if prod(kernel) > _LARGEST_WINDOW:
        return library(lowering, call)
    image = lowering.first(call)
    lowering.stores.hint(image)
    draft = _windows(lowering, call, image, (kernel, stride, padding, [1] * len(kernel)))
    return draft.done(call.position, call.shape, call.itemsize)


def average_pool_backward(lowering: Lowering, call: Call) -> View | None:
    """Lowers the gradient of an average to an expression that reads all windows that contain a position."""
    return _gathered(lowering, call, [lowering.first(call)])


def max_pool_backward(lowering: Lowering, call: Call) -> View | None:
    """Lowers the gradient of a maximum to an expression that reads the windows around a position, and their argmax.

    Since torch 2.13, graphs have a scatter instead (`torch._decomp`), except with deterministic algorithms.
    """
    gradient, image, chosen = (lowering.views[u] for u in call.refs)
    if any(step != 1 for step in call.args[5]):
        return library(lowering, call)
    result = _gathered(lowering, call, [gradient, chosen])
    if result is not None and any(map(_has_channels_last, (image, gradient))):
        return lowering.stores.in_order(result, channels_last(call.shape))
    return result


# An expression is channels-last if it would be stored so now.
def _has_channels_last(view: View) -> bool:
    box = view.box
    buffer = box.buffer
    if buffer is None and view.is_whole:
        buffer = Buffer(box.value, box.shape, box.itemsize)
        decide_layout(Loop(box.ops, box.reads, [buffer], box.shape))
        return buffer.strides == channels_last(view.shape)
    return buffer is not None and buffer.strides is not None and layout(view) == channels_last(view.shape)


def _gathered(lowering: Lowering, call: Call, of: Sequence[View]) -> View | None:
    kernel, stride, _ = _window(call, 2)
    overlapping = [
        max(1, *(h // s - max(0, (h - k) // s) for h in range(2 * k))) for k, s in zip(kernel, stride, strict=True)
    ]
    if prod(overlapping) > _LARGEST_WINDOW:
        return library(lowering, call)
    lowering.stores.hint(of[0])
    draft = Draft(lowering.stores, {call.position})
    for place in product(*map(range, overlapping)):
        at: Dims = tuple(opaque(n, "window", i, call.position, *place) for i, n in enumerate(call.shape[-2:]))
        for view in of:
            dims, start = view.access
            draft.take(View(view.box, call.shape, ((*dims[:-2], *at), start), view.stored))
    return draft.done(call.position, call.shape, call.itemsize)


def _window(call: Call, first: int) -> tuple[list[int], list[int], list[int]]:
    kernel = call.arg(first, "kernel_size")
    stride, padding = call.arg(first + 1, "stride") or kernel, call.arg(first + 2, "padding") or [0]
    return _pair(kernel), _pair(stride), _pair(padding)


def _pair(one: list[int]) -> list[int]:
    return one * 2 if len(one) == 1 else one


def _windows(
    lowering: Lowering, call: Call, image: View, window: tuple[list[int], list[int], list[int], list[int]]
) -> Draft:
    kernel, stride, padding, dilation = window
    dims, start = image.access
    rank = len(kernel)
    steps = [digits[-1][1] if digits else 0 for digits in dims[-rank:]]
    moved = (*dims[:-rank], *strided(call.shape[-rank:], tuple(k * s for k, s in zip(stride, steps, strict=True))))
    draft = Draft(lowering.stores, {call.position})
    for place in product(*map(range, kernel)):
        shift = sum((i * d - p) * s for i, d, p, s in zip(place, dilation, padding, steps, strict=True))
        merged(draft.reads, lowering.stores.loads(View(image.box, call.shape, (moved, start + shift), image.stored)))
    draft.note(image)
    draft.indices.clear()
    return draft
