"""Lowers sums and other reductions to loops of their own, which always store their result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.index import Access, Digits, Dims, Shape, identity, through
from remat.predict.kernels.ir import Buffer, Loop, Reads, Seen, merged
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.stores import Draft
from remat.predict.kernels.view_maps import at, positive


def reduction(low: Lowering, call: Call) -> Seen | None:
    """Lowers a reduction over some dimensions, or over all."""
    of = low.first(call)
    which = call.arg(1, "dim")
    rank = len(of.shape)
    axes = [positive(d, rank) for d in ([which] if isinstance(which, int) else which or range(rank))]
    if call.op in ("aten.var", "aten.var_mean"):
        return _variance(low, call, of, axes, call.op == "aten.var_mean")
    if call.is_tuple:  # of `max` and `min`: the value and its place are a loop each

        def result(low: Lowering, one: Call) -> Seen:
            return _element(_reduced(low, call, of, axes, one.shape, one.itemsize), one)

        low.elements[call.position] = result
        return None
    total = _reduced(low, call, of, axes, call.shape, call.itemsize)
    return _over(low, call, (total,), call.shape) if call.op == "aten.mean" else total


def _over(low: Lowering, call: Call, of: Sequence[Seen], shape: Shape) -> Seen:
    """Makes an expression over values of the same shape or smaller."""
    draft = Draft(low.stores, {call.position})
    for seen in of:
        draft.take(low.stores.broadcast(seen, shape))
    return draft.done(call.position, shape, of[0].box.itemsize)


def _reduced(low: Lowering, call: Call, of: Seen, axes: list[int], shape: Shape, itemsize: int) -> Seen:
    kept = [i for i in range(len(of.shape)) if i not in axes]
    sizes, reduced = tuple(of.shape[i] for i in kept), tuple(of.shape[i] for i in axes)
    if prod(reduced) == 1 or (prod(reduced) < rules.UNROLLED and prod(sizes) != 1):
        return _unrolled(low, call, of, axes, shape, itemsize)

    def turned(access: Access) -> Access:
        return tuple(access[0][i] for i in (*kept, *axes)), access[1]

    reads: Reads = {(buffer, turned(access)): times for (buffer, access), times in low.stores.loads(of).items()}
    inlined = of.inlined
    ops = of.box.ops if inlined else frozenset[int]()
    indices = tuple(turned(through(of.access, index)) for index in of.box.indices) if inlined else ()
    buffer = Buffer(call.position, shape, itemsize)
    low.stores.loops.append(
        Loop(ops | {call.position}, reads, [buffer], sizes, reduced, indices, (_written(shape, sizes), 0))
    )
    return Seen.of_buffer(buffer)


def _unrolled(low: Lowering, call: Call, of: Seen, axes: list[int], shape: Shape, itemsize: int) -> Seen:
    """Lowers a short reduction to an expression that reads several times."""
    dims, start = of.access
    thin: Dims = tuple(() if i in axes else digits for i, digits in enumerate(dims))
    draft = Draft(low.stores, {call.position})
    for place in product(*(range(of.shape[axis]) for axis in axes)):
        shift = sum(at(dims[axis], i) for axis, i in zip(axes, place, strict=True))
        for (buffer, (seen, first)), times in low.stores.loads(
            Seen(of.box, of.shape, (thin, start + shift), of.stored)
        ).items():
            merged(draft.reads, {(buffer, (_without(seen, axes, shape), first)): times})
    draft.note(Seen(of.box, of.shape, (thin, start), of.stored))
    draft.indices = {(_without(seen, axes, shape), first): None for seen, first in draft.indices}
    return draft.done(call.position, shape, itemsize)


def _without(dims: Dims, axes: list[int], shape: Shape) -> Dims:
    return dims if len(shape) == len(dims) else tuple(d for i, d in enumerate(dims) if i not in axes)


def _variance(low: Lowering, call: Call, of: Seen, axes: list[int], with_mean: bool) -> Seen | None:
    """Lowers a variance: mean first, squares second where rows are short, else at once (`use_two_step_variance`)."""
    keep = tuple(1 if i in axes else n for i, n in enumerate(of.shape))
    dropped = tuple(n for i, n in enumerate(of.shape) if i not in axes)
    shape, itemsize = keep if call.kwargs.get("keepdim") else dropped, of.box.itemsize
    if prod(of.shape[i] for i in axes) <= rules.TWO_STEP_VARIANCE and prod(dropped) != 1:
        mean = _over(low, call, (_reduced(low, call, of, axes, keep, itemsize),), keep)
        if with_mean:
            low.stores.store(mean.box)
        squares = _over(low, call, (of, mean), of.shape)
        variance = _over(low, call, (_reduced(low, call, squares, axes, shape, itemsize),), shape)
        if shape != keep:
            dims = _without(mean.access[0], axes, shape)
            mean = low.stores.shown(mean, shape, (dims, 0))
    else:
        mean = _reduced(low, call, of, axes, shape, itemsize)
        variance = _over(low, call, (_reduced(low, call, of, axes, shape, itemsize),), shape)
    if not with_mean:
        return variance

    def result(_: Lowering, one: Call) -> Seen:
        return _element((variance, mean)[int(one.args[1])], one)

    low.elements[call.position] = result
    return None


def _element(seen: Seen, one: Call) -> Seen:
    """Says of what is stored that it is the element, not the tuple."""
    seen.box.value = one.position
    if seen.box.buffer is not None:
        seen.box.buffer.value = one.position
    return seen


def _written(shape: Shape, sizes: Shape) -> Dims:
    """Returns where a reduction writes, over the dimensions that it keeps."""
    dims = identity(shape)
    if len(sizes) == len(shape):
        return dims
    real = [digits for digits in dims if digits]
    found: list[Digits] = []
    for n in sizes:
        found.append(real.pop(0) if n != 1 and real else ())
    return tuple(found)
