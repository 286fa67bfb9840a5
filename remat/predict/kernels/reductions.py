"""Lowers sums and other reductions to separate loops that always store their results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.index import Access, Dims, Shape, composed, identity, led_to, reshaped, uneven
from remat.predict.kernels.ir import Buffer, Loop, Reads, View
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import Draft, layout
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.splits import PROCESSORS, host_processors, split_reduction
from remat.predict.kernels.view_maps import at, positive


def reduction(lowering: Lowering, call: Call) -> View | None:
    of = lowering.first(call)
    which = call.arg(1, "dim")
    rank = len(of.shape)
    axes = [positive(d, rank) for d in ([which] if isinstance(which, int) else which or range(rank))]
    if call.op in ("aten.var", "aten.var_mean"):
        return _variance(lowering, call, of, axes, call.op == "aten.var_mean")
    if call.is_tuple:  # `max` and `min`: one loop for the value and one for its position

        def result(lowering: Lowering, one: Call) -> View:
            return _element(reduced_over(lowering, call, of, axes, one.shape, one.itemsize), one)

        lowering.elements[call.position] = result
        return None
    total = reduced_over(lowering, call, of, axes, call.shape, call.itemsize)
    if call.op != "aten.mean":
        return total
    lowering.stores.weigh(call.position, 2)  # a count, and a division by it
    return _over(lowering, call, (total,), call.shape)


def _over(lowering: Lowering, call: Call, of: Sequence[View], shape: Shape) -> View:
    draft = Draft(lowering.stores, {call.position})
    for view in of:
        draft.take(lowering.stores.broadcast(view, shape))
    return draft.done(call.position, shape, of[0].box.itemsize)


def reduced_over(lowering: Lowering, call: Call, of: View, axes: list[int], shape: Shape, itemsize: int) -> View:
    """Reduces some dimensions of a value: in a separate loop, or in an expression if they are short."""
    kept = [i for i in range(len(of.shape)) if i not in axes]
    sizes, reduced = tuple(of.shape[i] for i in kept), tuple(of.shape[i] for i in axes)
    alone = prod(sizes) == 1 and not lowering.stores.backend.gpu
    if prod(reduced) == 1 or (prod(reduced) < rules.UNROLLED and not alone):
        return _unrolled(lowering, call, of, axes, shape, itemsize)
    buffer = lowering.stores.flexible(call.position, shape, itemsize)
    to_one = prod(sizes) == 1 and lowering.stores.backend.gpu
    rows = _rows_of(lowering, of) if to_one else None
    if to_one and not rows and split_reduction(sizes, reduced, [], lowering.stores.settle)[0] > 1:
        of, axes = _along_memory(lowering, of, axes)
    loop = loop_over(lowering, call, of, [*kept, *axes], len(kept))
    _reduce(lowering, loop, [buffer], call.op.removeprefix("aten."), rows=rows)
    return View.of_buffer(buffer)


# A sum of all elements that is split first stores what it sums, for later readers, and then runs along the dimension
# that is the innermost in memory (`Reduction.check_for_split_dense_dim_reindexing`).
def _along_memory(lowering: Lowering, of: View, axes: list[int]) -> tuple[View, list[int]]:
    own = lowering.stores.own_expression(of)
    lowering.stores.settle(lowering.stores.store(of.box))
    strides = layout(of) or ()
    dense = next((i for i, stride in enumerate(strides[:-1]) if stride == 1), None)
    return own, axes if dense is None else [*(i for i in axes if i != dense), dense]


def _rows_of(lowering: Lowering, of: View) -> tuple[Shape, Shape] | None:
    """Returns the shapes that the reductions nearest before an expression keep and reduce.

    It returns None if they differ, or do not have as many points together as the expression has elements.

    A sum over everything that follows such a reduction is split as that one, so that both can share a kernel: the mean
    of squares after a normalization of rows (`extract_input_node_reduction_ranges`).
    """
    reads = [buffer for buffer, _ in lowering.stores.loads(of)] if of.inlined else []
    rows: set[tuple[Shape, Shape]] = set()
    while reads and not rows:
        written = ((buffer, lowering.stores.loop_of(buffer)) for buffer in dict.fromkeys(reads))
        made = [(buffer, loop) for buffer, loop in written if loop is not None and loop.generated]
        rows = {(buffer.shape, loop.reduced) for buffer, loop in made if loop.reduced}
        reads = [buffer for _, loop in made for buffer, _ in loop.reads]
    found = rows.pop() if len(rows) == 1 else ((), ())
    return found if prod(found[0]) * prod(found[1]) == prod(of.shape) > 1 else None


def loop_over(lowering: Lowering, call: Call, of: View, order: list[int], num_outer: int) -> Loop:
    """Returns a loop over the elements of a value, which keeps the first dimensions and reduces the others."""

    def turned(access: Access) -> Access:
        return tuple(access[0][i] for i in order), access[1]

    reads: Reads = {(buffer, turned(access)): times for (buffer, access), times in lowering.stores.loads(of).items()}
    ops = of.box.ops if of.inlined else frozenset[int]()
    indices = tuple(turned(composed(of.access, index)) for index in of.box.indices) if of.inlined else ()
    sizes = tuple(of.shape[i] for i in order)
    return Loop(ops | {call.position}, reads, [], sizes[:num_outer], sizes[num_outer:], indices)


# Adds one loop per result, or several where the reduction is split: as other rows, or into equal parts.
def _reduce(
    lowering: Lowering,
    loop: Loop,
    results: Sequence[Buffer],
    how: str,
    unsplit: tuple[int, int] | None = None,
    rows: tuple[Shape, Shape] | None = None,
) -> None:
    stores = lowering.stores
    processors = PROCESSORS if stores.backend.gpu else host_processors()
    parts, across = split_reduction(loop.sizes, loop.reduced, list(loop.reads), stores.settle, processors)
    if parts > 1 and stores.backend.gpu:
        outer, inner = rows or ((parts,), (-(-prod(loop.reduced) // parts),))
        loop = _first_parts(lowering, loop, len(results), outer, inner, results[0], how)
    for buffer in results:
        written = (_written(buffer.shape, loop.sizes), 0)
        made = Loop(loop.values, loop.reads, [buffer], loop.sizes, loop.reduced, loop.indices, written)
        made.reduction, made.across, made.unsplit = how, across, unsplit
        stores.loops.append(made)


def _first_parts(
    lowering: Lowering, loop: Loop, results: int, outer: Shape, inner: Shape, like: Buffer, how: str
) -> Loop:
    num_outer, sizes = len(loop.sizes), (*loop.sizes, *outer)

    def cut(access: Access) -> Access:
        dims = access[0][num_outer:]
        if len(outer) + len(inner) > 2:
            return (*access[0][:num_outer], *reshaped(dims, (*outer, *inner))), access[1]
        (parts,), (size,) = outer, inner
        flat = reshaped(dims, (prod(loop.reduced),))[0] if len(dims) != 1 else dims[0]
        if len(flat) == 1 and flat[0][1] >= 0:  # the last part may be smaller
            return (*access[0][:num_outer], ((parts, flat[0][1] * size),), ((size, flat[0][1]),)), access[1]
        pieces = reshaped(dims, (parts, size)) if prod(loop.reduced) == parts * size else ()
        if pieces and all(s >= 0 for digits in pieces for _, s in digits):
            return (*access[0][:num_outer], *pieces), access[1]
        steps = [(n, abs(led_to(dims, first))) for n, first in ((parts, size), (size, 1))]
        return (
            *access[0][:num_outer],
            *(uneven(n, step, i, dims, parts) for i, (n, step) in enumerate(steps)),
        ), access[1]

    reads: Reads = {(buffer, cut(access)): times for (buffer, access), times in loop.reads.items()}
    indices = tuple(cut(index) for index in loop.indices)
    # A variance in parts is a mean, a sum of squares, and a count.
    itemsize = 4 if lowering.stores.calls[like.value].dtype in rules.HALF else like.itemsize
    partial = [
        lowering.stores.flexible(like.value, sizes, itemsize) for _ in range(3 if how.startswith("var") else results)
    ]
    unsplit = (prod(loop.sizes), prod(loop.reduced))
    _reduce(lowering, Loop(loop.values, reads, [], sizes, inner, indices), partial, how, unsplit)
    whole: Reads = {(buffer, (identity(sizes), 0)): 1 for buffer in partial}
    return Loop(loop.values, whole, [], loop.sizes, outer)


def _unrolled(lowering: Lowering, call: Call, of: View, axes: list[int], shape: Shape, itemsize: int) -> View:
    dims, start = of.access
    thin: Dims = tuple(() if i in axes else digits for i, digits in enumerate(dims))
    draft = Draft(lowering.stores, {call.position})
    places = [*product(*(range(of.shape[axis]) for axis in axes))]
    for place in places:
        shift = sum(at(dims[axis], i) for axis, i in zip(axes, place, strict=True))
        view = View(of.box, of.shape, (thin, start + shift), of.stored)
        draft.take(view, lambda access: (_without(access[0], axes, shape), access[1]))
    converts = lowering.stores.calls[call.sources[0]].dtype == "bool" != call.dtype  # as in a sum of conditions
    lowering.stores.weigh(call.position, len(places) * (1 + converts) - 1)
    return draft.done(call.position, shape, itemsize)


def _without(dims: Dims, axes: list[int], shape: Shape) -> Dims:
    return dims if len(shape) == len(dims) else tuple(d for i, d in enumerate(dims) if i not in axes)


# Short rows take the mean first, then the squares; long ones take both at once (`use_two_step_variance`).
def _variance(lowering: Lowering, call: Call, of: View, axes: list[int], with_mean: bool) -> View | None:
    keep = tuple(1 if i in axes else n for i, n in enumerate(of.shape))
    dropped = tuple(n for i, n in enumerate(of.shape) if i not in axes)
    shape, itemsize = keep if call.kwargs.get("keepdim") else dropped, of.box.itemsize
    count = prod(of.shape[i] for i in axes)
    if count <= lowering.stores.backend.two_step_variance and prod(dropped) != 1:
        lowering.stores.weigh(call.position, 2)
        mean = _over(lowering, call, (reduced_over(lowering, call, of, axes, keep, itemsize),), keep)
        if with_mean:
            lowering.stores.store(mean.box)
        squares = _over(lowering, call, (of, mean), of.shape)
        variance = _over(lowering, call, (reduced_over(lowering, call, squares, axes, shape, itemsize),), shape)
        if shape != keep:
            dims = _without(mean.access[0], axes, shape)
            mean = lowering.stores.take_view(mean, shape, (dims, 0))
    else:
        kept = [i for i in range(len(of.shape)) if i not in axes]
        loop = loop_over(lowering, call, of, [*kept, *axes], len(kept))
        # The third result is the count. Nothing reads it, so it is removed.
        results = [lowering.stores.flexible(call.position, shape, itemsize) for _ in range(3)]
        _reduce(lowering, loop, results, "var")
        mean, squared, _ = map(View.of_buffer, results)
        correction = call.kwargs.get("correction")  # the sum is divided by max(0, count - correction)
        dtype, numbers = lowering.stores.calls[of.box.value].dtype, (0, count, 1 if correction is None else correction)
        lowering.stores.weigh(call.position, 3, {(dtype, repr(number)) for number in numbers})
        variance = _over(lowering, call, (squared,), shape)
    if not with_mean:
        return variance

    def result(_: Lowering, one: Call) -> View:
        return _element((variance, mean)[int(one.args[1])], one)

    lowering.elements[call.position] = result
    return None


def _element(view: View, one: Call) -> View:
    view.box.value = one.position
    if view.box.buffer is not None:
        view.box.buffer.value = one.position
    return view


def _written(shape: Shape, sizes: Shape) -> Dims:
    dims = identity(shape)
    if len(sizes) == len(shape):
        return dims
    real = [digits for digits in dims if digits]
    return tuple(real.pop(0) if n != 1 and real else () for n in sizes)
