"""Elementwise operators and views: expressions that are inlined where they are read."""

from __future__ import annotations

from itertools import product
from math import prod

from remat.fusion import rules
from remat.fusion.calls import Call
from remat.fusion.index import Dims, contiguous_strides, identity, opaque
from remat.fusion.ir import Box, Seen, merged
from remat.fusion.lowering import Lowering
from remat.fusion.stores import Draft
from remat.fusion.views import element, positive, view_access


def pointwise(low: Lowering, call: Call) -> Seen:
    """An expression over the shape of the result."""
    draft = Draft(low.stores, {call.position}, heavy=call.op in rules.HEAVY)
    if call.op not in rules.CONSTANTS:
        for seen in low.arguments(call):
            draft.take(low.stores.broadcast(seen, call.shape))
    if call.op in rules.COUNTS:
        draft.indices[identity(call.shape), 0] = None
    return draft.done(call.position, call.shape, call.itemsize)


def random(low: Lowering, call: Call) -> Seen:
    """Random numbers are stored as they are drawn: a function of the seed and the position."""
    draft = Draft(low.stores, {call.position})
    for seed in low.arguments(call):
        draft.take(low.stores.broadcast(seed, call.shape))
    draft.indices[identity(call.shape), 0] = None
    seen = draft.done(call.position, call.shape, call.itemsize)
    low.stores.store(seen.box)
    return seen


def seed(low: Lowering, call: Call) -> Seen:
    """One of several seeds in memory."""
    seeds = low.stores.store(low.first(call).box)
    reads = {(seeds, ((), call.args[1])): 1}
    return Seen.whole(Box(call.position, (), call.itemsize, reads, frozenset({call.position})))


def view(low: Lowering, call: Call) -> Seen:
    """Index arithmetic."""
    of = low.first(call)
    if call.op == "aten.expand":
        low.stores.reused(of, prod(call.shape) // max(prod(of.shape), 1), by_graph=False)
    access = view_access(call, of.shape, of.access)
    if access is None:  # strides that are anything, or an operator of a graph made by hand
        unknown = tuple(opaque(n, call.position, i) for i, n in enumerate(call.shape))
        access = (identity(call.shape) if prod(call.shape) == prod(of.shape) else unknown, of.access[1])
    return low.stores.shown(of, call.shape, access)


def split(low: Lowering, call: Call) -> None:
    """Pieces, each a view."""
    whole = low.first(call)

    def piece(low: Lowering, one: Call) -> Seen:
        dims, start = element(one, call, whole.shape, whole.access[0])
        return low.stores.shown(whole, one.shape, (dims, whole.access[1] + start))

    low.elements[call.position] = piece


def tuple_element(low: Lowering, call: Call) -> Seen | None:
    """An element of what an operator with several results made."""
    make = low.elements.get(call.args[0].position)
    return None if make is None else make(low, call)


def patched(low: Lowering, call: Call) -> Seen:
    """A value with a part of it replaced: reads both, under a condition on the coordinates."""
    base, part = low.arguments(call)[:2]
    shape = call.shape
    dim = positive(call.arg(2, "dim", 0), len(shape))
    dims, start = part.access
    if call.op == "aten.select_scatter":
        dims = (*dims[:dim], ((shape[dim], 0),), *dims[dim:])
    elif part.shape != shape:
        dims = (*dims[:dim], opaque(shape[dim], "part", call.args[2:]), *dims[dim + 1 :])
    draft = Draft(low.stores, {call.position})
    draft.take(Seen(part.box, shape, (dims, start), part.stored))
    draft.take(base)
    coordinate: Dims = tuple(((n, int(i == dim)),) if n > 1 else () for i, n in enumerate(shape))
    draft.indices[coordinate, 0] = None
    return draft.done(call.position, shape, call.itemsize)


def pool_indices(low: Lowering, call: Call) -> Seen:
    """Places in an image, out of places in windows: arithmetic with the coordinates of the window."""
    seen = pointwise(low, call)
    _, kernel, sizes, stride, *_ = call.args
    rank = len(kernel)
    steps = [s * row for s, row in zip(stride, contiguous_strides(tuple(sizes)), strict=True)]
    moved = tuple(((n, s),) if n != 1 else () for n, s in zip(call.shape[-rank:], steps, strict=True))
    still = tuple(((n, 0),) if n != 1 else () for n in call.shape[:-rank])
    seen.box.indices = (*seen.box.indices, ((*still, *moved), 0))
    return seen


def max_pool(low: Lowering, call: Call) -> None:
    """Maximum and its place over windows: two expressions with a read for each place of a window."""
    image = low.first(call)
    low.stores.hint(image)
    _, kernel, stride, padding, dilation, *_ = call.args
    dims, start = image.access
    rank = len(kernel)
    steps = [digits[-1][1] if digits else 0 for digits in dims[-rank:]]

    def result(low: Lowering, one: Call) -> Seen:
        sizes = zip(one.shape[-rank:], stride, steps, strict=True)
        moved = (*dims[:-rank], *(((n, k * s),) if n != 1 else () for n, k, s in sizes))
        draft = Draft(low.stores, {one.position, call.position})
        for place in product(*(range(k) for k in kernel)):
            shift = sum((i * d - p) * s for i, d, p, s in zip(place, dilation, padding, steps, strict=True))
            merged(draft.reads, low.stores.loads(Seen(image.box, one.shape, (moved, start + shift), image.stored)))
        draft.note(image)
        draft.indices.clear()
        seen = draft.done(one.position, one.shape, one.itemsize)
        # Each read comes with a comparison, and at the border with conditions on the coordinates.
        if len(draft.reads) * (8 if any(padding) else 2) > rules.MAX_OPS:
            low.stores.store(seen.box)
        return seen

    low.elements[call.position] = result
