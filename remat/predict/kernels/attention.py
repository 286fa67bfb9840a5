"""Lowers fused attention to library calls, whose arguments keep the layouts that the kernels of attention accept."""

from __future__ import annotations

from math import prod

from remat.predict.kernels.index import contiguous_strides
from remat.predict.kernels.ir import View
from remat.predict.kernels.library import keeping_arguments, lay_out_elements, library
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import layout
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.strides import element_strides

_EFFICIENT = "aten._scaled_dot_product_efficient_attention"
# The place of the mask in the forward pass; in the backward pass, those of the result and its gradient.
_MASK, _RESULT, _GRADIENT = 3, 5, 0
_ALIGNED = 8


@keeping_arguments
def attention(lowering: Lowering, call: Call) -> View | None:
    """Lowers attention. Its arguments keep eager's order of strides, if the last dimension is the innermost.

    On GPUs, stored and aligned arguments stay as they are (`sdpa_constraint` of torch 2.11 and 2.13). A computed mask
    of one head is expanded by a copy before the backward pass of attention reads it: once, if it is in memory;
    otherwise again for every call. A computed mask that is not expanded is stored by each call for itself, too
    (`ExternKernel.require_strides`).
    """
    gpu = lowering.stores.backend.gpu
    for place, argument in enumerate([*call.args, *call.kwargs.values()]):
        if not isinstance(argument, Ref):
            continue
        u = argument.position
        view, strides = lowering.views[u], lowering.stores.strides[u]
        stays_expanded = gpu and call.op == _EFFICIENT and place == _MASK
        if gpu and (_is_aligned(view) or (_is_padded(view) and not stays_expanded)):
            continue
        if strides and min(strides) != strides[-1]:
            strides = contiguous_strides(view.shape)
        if gpu and call.op == f"{_EFFICIENT}_backward" and place in (_GRADIENT, _RESULT):
            _, heads, rows, width = view.shape
            strides = (heads * rows * width, width, heads * width, 1)
        expands = gpu and prod(view.shape) > prod(view.box.shape)
        is_realized = _is_realized(lowering, u)
        in_memory = expands and is_realized
        if in_memory:
            lowering.stores.store(view.box)
        if view.is_whole and not is_realized:
            lowering.views[u] = lowering.stores.own_expression(view)
        if not stays_expanded:
            lowering.views[u] = lowering.stores.in_order(lowering.views[u], strides)
        elif expands and not in_memory:
            lowering.views[u] = View(lowering.stores.copy(View.of_box(view.box)).box, view.shape, view.access)
        view.stored |= in_memory  # the compiler changes the box in place, so the next call accepts it
    result = library(lowering, call)
    _as_arguments_lie(lowering, call)
    return result


# Layouts of arguments that are still open are fixed in the order in which the loops that write them read. Results have
# the strides that the operator then gives them, which may differ from eager's (`ExternKernel.process_kernel`).
def _as_arguments_lie(lowering: Lowering, call: Call) -> None:
    arguments = lowering.stores.loops[-1].arguments
    for read in arguments:
        lowering.stores.settle(read)
    refs = [u for u in call.refs if u in lowering.views]
    strides = {u: read.fix() for u, read in zip(refs, arguments, strict=True)}
    calls = lowering.stores.calls  # a function that held `lowering`, which holds it, would keep it until a collection
    lay_out_elements(lowering, call, lambda one: element_strides(one, call, calls, strides))


# As `StorageBox.realize_hint` for a value that several calls read. In a document mask, a read at a computed position
# counts as two: the document of each row, and the document of each column.
def _is_realized(lowering: Lowering, value: int) -> bool:
    box = lowering.views[value].box
    at_computed_position = any(start < 0 for _, (_, start) in box.reads)
    return box.buffer is not None or (lowering.uses.readers[value] > 1 and at_computed_position)


def _is_aligned(view: View) -> bool:
    if len(view.shape) not in (3, 4):
        return True
    buffer = view.box.buffer
    if buffer is None or not (view.stored or view.is_whole):
        return False
    # A layout that is still open counts as row-major, and stays open.
    is_open = view.is_whole and buffer.strides is None
    if (strides := contiguous_strides(view.shape) if is_open else layout(view)) is None:
        return False
    return all(stride % _ALIGNED == 0 for stride in strides[:-1]) and (strides[-1] == 1 or view.shape[-1] <= 1)


# A mask whose row length is no multiple of eight is a slice of one whose row length is.
def _is_padded(view: View) -> bool:
    return bool(view.shape[-1] % _ALIGNED) and view.box.shape[-1:] != () and not view.box.shape[-1] % _ALIGNED
