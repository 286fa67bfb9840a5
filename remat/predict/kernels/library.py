"""Lowers library calls, whose arguments must be in memory, in a layout that the library accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat.predict.kernels import rules
from remat.predict.kernels.host_copies import Copy
from remat.predict.kernels.index import Shape, contiguous_strides, identity
from remat.predict.kernels.ir import Buffer, Loop, Reads, View
from remat.predict.kernels.lowering import Lowering, Rule
from remat.predict.kernels.pointwise import pointwise
from remat.predict.kernels.realize import Draft, layout
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.reductions import loop_over, reduced_over
from remat.predict.kernels.strides import channels_last, in_order_of
from remat.predict.kernels.view_maps import positive

# The layouts of these products stay open; those of products of batches do not (`InductorChoices._need_to_fix_layout`).
_OPEN = rules.aten("mm addmm")


def keeping_arguments(rule: Rule) -> Rule:
    """Wraps a rule, so that the layouts which its call requires do not affect other readers of its arguments."""

    def lowered(lowering: Lowering, call: Call) -> View | None:
        before = {u: lowering.views[u] for u in call.refs if u in lowering.views}
        result = rule(lowering, call)
        lowering.views.update(before)
        return result

    return lowered


def library(lowering: Lowering, call: Call) -> View | None:
    """Lowers an operator that has no other rule to a call."""
    return call_library(lowering, call, lowering.arguments(call))


def call_library(lowering: Lowering, call: Call, arguments: Sequence[View], *other_values: int) -> View | None:
    """Adds a library call and returns its result, or None for a tuple, whose elements are lowered later.

    Args:
        other_values: positions of other values that the call computes: of the product, if the call adds to it.
    """
    if call.op in rules.PRODUCTS or other_values:
        arguments = [lowering.stores.for_product(view) for view in arguments]
    reads: Reads = {(lowering.stores.for_call(view), ((), 0)): 1 for view in arguments}
    views = tuple(map(_as_argument, arguments))
    at = frozenset({call.position, *other_values})
    unaligned = not lowering.stores.backend.gpu and call.op not in rules.ALIGNED
    loop = Loop(at, reads, [], generated=False, arguments=views, unaligned=unaligned)
    lowering.stores.loops.append(loop)
    if call.is_tuple:
        loop.several = True

        def element(lowering: Lowering, one: Call) -> View:
            loop.values |= {one.position}
            return _result(lowering, one, loop)

        lowering.elements[call.position] = element
        return None
    return _result(lowering, call, loop)


def copy_step(lowering: Lowering, copy: Copy, last_written: dict[int, Buffer]) -> None:
    """Adds the call that begins, ends or makes a copy of an offloaded value.

    For the compiler, a value has no elements while it is on the host or on its way back.

    Args:
        last_written: for each value, the buffer that its last such call wrote; this call adds its own.
    """
    v, view = copy.value, lowering.views[copy.value]
    call, comes = lowering.stores.calls[v], copy.step in ("copied back", "copy back ends")
    written = Buffer(v, call.shape, call.itemsize, lowering.stores.strides[v])
    if not comes:
        is_last = copy.step in ("copied to the host", "copy to the host ends")
        written = Buffer(v, (0, *call.shape), call.itemsize, output=is_last)
    reads = [lowering.stores.for_call(view)] if copy.step != "copy back ends" else []
    if copy.step.endswith("ends"):
        reads.append(last_written[v])
    if copy.predecessor is not None:
        u = copy.predecessor
        reads.append(
            lowering.stores.for_call(lowering.views[u]) if copy.step == "copy back begins" else last_written[u]
        )
    accesses: Reads = {(buffer, ((), 0)): 1 for buffer in reads}
    lowering.stores.loops.append(
        Loop(frozenset({v}), accesses, [written], generated=False, several=True, unaligned=True, copy=copy.step)
    )
    last_written[v] = written
    if comes:
        lowering.views[v] = View.of_buffer(written)


# `for_call` has copied a tensor without strides into row-major order. A call leaves the layout of a buffer open.
def _as_argument(view: View) -> Buffer:
    if view.is_whole and view.box.buffer is not None:
        return view.box.buffer
    return Buffer(view.box.value, view.shape, view.box.itemsize, layout(view) or contiguous_strides(view.shape))


def _result(lowering: Lowering, call: Call, loop: Loop) -> View:
    buffer = lowering.stores.flexible(call.position, call.shape, call.itemsize)
    adds_product = len(loop.values) > 1 and not loop.several
    if call.op not in _OPEN and not adds_product:
        buffer.strides = lowering.stores.strides[call.position]
    loop.writes.append(buffer)
    return View.of_buffer(buffer)


def product_and_bias(lowering: Lowering, call: Call) -> View:
    """Lowers a matrix product with a bias to a product and an expression that adds the bias."""
    bias, *factors = lowering.arguments(call)
    product = call_library(lowering, call, factors)
    assert product is not None
    draft = Draft(lowering.stores, {call.position})
    draft.take(lowering.stores.broadcast(bias, call.shape))
    draft.take(product)
    return draft.done(call.position, call.shape, call.itemsize)


def scan(lowering: Lowering, call: Call) -> View | None:
    """Lowers a running sum or product: on GPUs, a loop that reduces a dimension and writes each element (`ir.Scan`)."""
    if not lowering.stores.backend.gpu:
        return library(lowering, call)
    of, rank = lowering.first(call), len(call.shape)
    axis = positive(call.args[1], rank)
    if not rank or call.shape[axis] == 1:
        return pointwise(lowering, call)
    order = [*(i for i in range(rank) if i != axis), axis]
    loop = loop_over(lowering, call, of, order, rank - 1)
    dims = identity(call.shape)
    loop.written, loop.reduction = (tuple(dims[i] for i in order), 0), "scan"
    loop.writes.append(lowering.stores.flexible(call.position, call.shape, call.itemsize))
    loop.writes[0].fix()
    lowering.stores.loops.append(loop)
    return View.of_buffer(loop.writes[0])


@keeping_arguments
def batched_product(lowering: Lowering, call: Call) -> View | None:
    """Lowers a batched product. A matrix that is neither row-major nor column-major is stored row-major.

    On CPUs, a product with a single row or column is no library call: an expression multiplies, and a loop sums.
    """
    left, right = lowering.arguments(call)
    if not lowering.stores.backend.gpu and 1 in (left.shape[1], right.shape[2]):
        return _summed_products(lowering, call, left, right)
    for u in call.refs:
        view = lowering.views[u]
        buffer = view.box.buffer
        if (buffer is None or buffer.strides is None) and not _either_last(view.shape, lowering.stores.strides[u]):
            lowering.views[u] = lowering.stores.exactly(view, contiguous_strides(view.shape), may_pad=True)
    return library(lowering, call)


def _summed_products(lowering: Lowering, call: Call, left: View, right: View) -> View:
    shape = (*left.shape, right.shape[2])
    (*of_left,), (batch, *of_right) = left.access[0], right.access[0]
    draft = Draft(lowering.stores, {call.position})
    for view, sizes, dims in (
        (left, (*left.shape, 1), (*of_left, ())),
        (right, (right.shape[0], 1, *right.shape[1:]), (batch, (), *of_right)),
    ):
        lowering.stores.settle_rows(view)
        draft.take(lowering.stores.broadcast(View(view.box, sizes, (dims, view.access[1]), view.stored), shape))
    product = draft.done(call.position, shape, call.itemsize)
    return reduced_over(lowering, call, product, [2], call.shape, call.itemsize)


@keeping_arguments
def convolution(lowering: Lowering, call: Call) -> View | None:
    """Lowers a convolution. If the pass keeps images channels-last, image and filters are stored that way.

    A reshaped image is stored before it is reshaped, and then copied into another layout. On GPUs, an expression adds
    the bias to the library's result.
    """
    both = [argument.position for argument in call.args[:2]]
    for u in both:
        lowering.stores.store(lowering.views[u].box)
    last = lowering.uses.convolves or any(_channels_last(lowering.views[u]) for u in both)
    for u in both:
        shape = lowering.views[u].shape
        lowering.views[u] = lowering.stores.in_order(
            lowering.views[u], channels_last(shape) if last else contiguous_strides(shape)
        )
    bias = call.args[2] if lowering.stores.backend.gpu else None
    arguments = [lowering.views[u] for u in call.refs if u in lowering.views and (bias is None or u in both)]
    result = call_library(lowering, call, arguments)
    assert result is not None
    assert result.box.buffer is not None
    result.box.buffer.strides = channels_last(call.shape) if last else contiguous_strides(call.shape)
    return result if bias is None else _plus_bias(lowering, call, result, lowering.views[bias.position])


def _plus_bias(lowering: Lowering, call: Call, result: View, bias: View) -> View:
    ones = (1,) * (len(call.shape) - 2)
    (channels,) = bias.access[0]
    draft = Draft(lowering.stores, {call.position})
    draft.take(result)
    access = (channels, *((),) * len(ones)), bias.access[1]
    draft.take(lowering.stores.broadcast(View(bias.box, (*bias.shape, *ones), access, bias.stored), call.shape))
    return draft.done(call.position, call.shape, call.itemsize)


@keeping_arguments
def convolution_backward(lowering: Lowering, call: Call) -> View | None:
    """Lowers the gradients of a convolution.

    Arguments get the layout that the gradient of the filters requires, then the one that the gradient of the image
    requires (`convolution_backward_lowering` of torch 2.13). In a pass without convolutions, where the compiler does
    not choose layouts, the arguments first get eager's layouts. Filters with one channel each (depthwise) have a
    channels-last layout in which columns are innermost all the same, and images are copied into that layout. Before
    torch 2.13, the arguments have eager's layouts only.
    """
    gradient, image, filters = list(call.refs)[:3]
    if not lowering.uses.convolves or lowering.stores.backend.eager_gradients:
        for u in (gradient, image, filters):
            lowering.views[u] = lowering.stores.in_order(lowering.views[u], lowering.stores.strides[u])
    if lowering.stores.backend.eager_gradients:
        return library(lowering, call)
    for u in (image, filters, gradient):
        lowering.stores.store(lowering.views[u].box)
    of_image, of_filters = call.args[10][:2]
    for asked, like, ends in ((of_filters, filters, (image, gradient)), (of_image, image, (gradient, filters))):
        last = lowering.uses.convolves or any(_channels_last(lowering.views[u]) for u in (image, filters))
        shape = lowering.views[like].shape
        order = channels_last(shape) if last else contiguous_strides(shape)
        for u in ends if asked else ():
            view = lowering.views[u]
            strides = channels_last(view.shape) if lowering.uses.convolves else in_order_of(view.shape, order)
            lowering.views[u] = lowering.stores.in_order(view, strides)
    result = library(lowering, call)
    if lowering.stores.backend.gpu:  # cuDNN gives a gradient the layout of its arguments, even where eager's differs
        last = any(_channels_last(lowering.views[u]) for u in (image, filters))
        lay_out_elements(lowering, call, lambda one: (channels_last if last else contiguous_strides)(one.shape))
    return result


def lay_out_elements(lowering: Lowering, call: Call, strides_of: Callable[[Call], Shape]) -> None:
    """Sets the strides of the elements of a tuple, which a library call returns.

    Args:
        strides_of: returns the strides of an element, in elements.
    """
    element = lowering.elements[call.position]

    def written(lowering: Lowering, one: Call) -> View:
        view = element(lowering, one)
        assert view.box.buffer is not None
        view.box.buffer.strides = strides_of(one)
        return view

    lowering.elements[call.position] = written


def _channels_last(view: View) -> bool:
    return layout(view) == channels_last(view.shape)


# As `is_preferred_layout_as_bmm_input`.
def _either_last(shape: Shape, strides: Shape) -> bool:
    *_, rows, columns = shape
    *_, a, b = strides
    return (b == 1 and (rows == 1 or a >= columns)) or (a == 1 and (columns == 1 or b >= rows))
