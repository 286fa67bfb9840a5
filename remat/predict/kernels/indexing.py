"""Lowers operators that read or write at positions that only the running program knows."""

from __future__ import annotations

from typing import Any

from remat.predict.kernels.index import (
    Access,
    Dims,
    Shape,
    broadcasts,
    contiguous_strides,
    identity,
    opaque,
    runtime_position,
    strided,
)
from remat.predict.kernels.ir import Buffer, Loop, Reads, View
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import Draft
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.view_maps import expanded, positive


def lookup(lowering: Lowering, call: Call) -> View:
    """Lowers a read at computed indices, which may read any part of the table."""
    table, where, axes = _places(lowering, call)
    draft = Draft(lowering.stores, {call.position})
    count = _count(lowering, where[0]) if call.op == "aten.embedding" else None
    if count is not None and table.access[0][0]:
        # The rows at indices 0, 1, 2, ... are read in order, without a lookup.
        step = table.access[0][0][-1][1]
        rows = tuple(tuple((n, s * step) for n, s in digits) for digits in count[0])
        table = View(table.box, call.shape, (rows + table.access[0][1:], table.access[1]), table.stored)
        where, axes = [], []
    for view in where:
        draft.take(View(view.box, call.shape, (_leading(view, call.shape), view.access[1]), view.stored))
    for (buffer, (dims, start)), times in lowering.stores.loads(table).items():
        moves = any(s for axis in axes for _, s in dims[axis])
        read = (buffer, (_replaced(dims, axes, call.shape), runtime_position(start) if moves else start))
        draft.reads[read] = draft.reads.get(read, 0) + times
    if table.inlined:
        draft.steps[frozenset(draft.reads)] = table.box.ops
        draft.heavy |= table.box.heavy
    return draft.done(call.position, call.shape, call.itemsize)


def _places(lowering: Lowering, call: Call) -> tuple[View, list[View], list[int]]:
    table, *where = lowering.arguments(call)
    rank = len(table.shape)
    if call.op == "aten.embedding":
        return table, where[:1], [0]
    if call.op == "aten.gather":
        return table, where[:1], [positive(call.args[1], rank)] if rank else []
    return table, where, list(range(rank))


def _count(lowering: Lowering, view: View) -> Access | None:
    call = lowering.stores.calls[view.box.value]
    plain = call.op == "prims.iota" and call.kwargs.get("start") == 0 and call.kwargs.get("step") == 1
    return view.access if plain and view.inlined else None


def put(lowering: Lowering, call: Call) -> View:
    """Lowers index_put to a loop over the new values that writes into a copy of the first argument."""
    value = call.args[3] if call.op == "aten._unsafe_masked_index_put_accumulate" else call.args[2]
    others = lowering.arguments(call)[1:]
    shape = lowering.stores.calls[value.position].shape if isinstance(value, Ref) else others[0].shape
    target = lowering.stores.store(lowering.stores.copy(lowering.first(call)).box)
    draft = Draft(lowering.stores, {call.position})
    for view in others:
        draft.take(View(view.box, shape, (_leading(view, shape), view.access[1]), view.stored))
    which: list[Any] = [*call.args[2 if call.op == "aten._unsafe_masked_index_put_accumulate" else 1]]
    kept = call.shape[len(which) :]
    lead = len(shape) - len(kept)
    places = _spread(shape)
    if None not in which and shape[lead:] == kept:
        places = _spread(shape[:lead]) + identity(call.shape)[len(which) :]
    return _written_into(lowering, call, target, draft, shape, (places, runtime_position("put")))


def placed(lowering: Lowering, call: Call) -> View:
    """Lowers scatter to a loop over the indices that writes into a copy of the first argument."""
    target = lowering.stores.store(lowering.stores.copy(lowering.first(call)).box)
    where, *values = lowering.arguments(call)[1:]
    draft = Draft(lowering.stores, {call.position})
    for view in (where, *values):
        dims = tuple(d if n != 1 else () for n, d in zip(where.shape, view.access[0], strict=True))
        draft.take(View(view.box, where.shape, (dims, view.access[1]), view.stored))
    dim = positive(call.args[1], len(call.shape)) if call.shape else 0
    places = _replaced(strided(where.shape, contiguous_strides(call.shape)), [dim] if call.shape else [], where.shape)
    return _written_into(lowering, call, target, draft, where.shape, (places, runtime_position("placed")))


def diagonal(lowering: Lowering, call: Call) -> View:
    """Lowers diagonal_scatter to a loop over the diagonal that writes into a copy of the first argument."""
    target = lowering.stores.store(lowering.stores.copy(lowering.first(call)).box)
    source = lowering.arguments(call)[1]
    offset = call.arg(2, "offset", 0)
    one, two = (positive(dim, len(call.shape)) for dim in (call.arg(3, "dim1", 0), call.arg(4, "dim2", 1)))
    strides = contiguous_strides(call.shape)
    steps = (*(s for i, s in enumerate(strides) if i not in (one, two)), strides[one] + strides[two])
    start = offset * strides[two] if offset >= 0 else -offset * strides[one]
    draft = Draft(lowering.stores, {call.position})
    draft.take(source)
    return _written_into(lowering, call, target, draft, source.shape, (strided(source.shape, steps), start))


def _written_into(lowering: Lowering, call: Call, target: Buffer, draft: Draft, shape: Shape, written: Access) -> View:
    after = Buffer(call.position, call.shape, call.itemsize, target.fix())
    done = draft.done(call.position, shape, call.itemsize).box
    lowering.stores.loops.append(Loop(done.ops, done.reads, [after], shape, (), done.indices, written, mutates=target))
    return View.of_buffer(after)


def scatter(lowering: Lowering, call: Call) -> View:
    """Lowers scatter_add to a copy and a call for int64, bool or several CPU threads, else to a loop."""
    if lowering.stores.backend.adds_in_place and call.dtype not in ("int64", "bool"):
        return placed(lowering, call)
    target = lowering.stores.store(lowering.stores.copy(lowering.first(call)).box)
    reads: Reads = {(target, ((), 0)): 1}
    for view in lowering.arguments(call)[1:]:
        reads[lowering.stores.for_call(view), ((), 0)] = 1
    after = Buffer(call.position, call.shape, call.itemsize, target.fix())
    lowering.stores.loops.append(Loop(frozenset({call.position}), reads, [after], generated=False, mutates=target))
    return View.of_buffer(after)


def overwrite(lowering: Lowering, call: Call) -> View:
    """Lowers copy_, which overwrites an input of the pass."""
    target, source = lowering.arguments(call)[:2]
    lowering.stores.store(source.box)
    buffer = lowering.stores.store(target.box)
    after = Buffer(target.box.value, call.shape, call.itemsize, buffer.fix(), output=True)
    reads, written = lowering.stores.loads(source), (identity(call.shape), 0)
    loop = Loop(frozenset({call.position}), reads, [after], call.shape, written=written, mutates=buffer)
    lowering.stores.loops.append(loop)
    return View.of_buffer(after)


# The new values may have more dimensions than the index; these come after the index's.
def _leading(view: View, shape: Shape) -> Dims:
    ahead = view.shape == shape[: len(view.shape)]
    if broadcasts(view.shape, shape) and (len(view.shape) == len(shape) or not ahead):
        return expanded(view.access[0], view.shape, shape)
    if ahead:
        return view.access[0] + _spread(shape[len(view.shape) :])
    return tuple(opaque(n, "index", view.shape, i) for i, n in enumerate(shape))


def _spread(shape: Shape) -> Dims:
    return strided(shape, (0,) * len(shape))


# The looked-up axes do not move with the loops of the result.
def _replaced(dims: Dims, axes: list[int], shape: Shape) -> Dims:
    if not axes:
        return dims
    if len(dims) == len(shape) and len(axes) == 1:
        return tuple(_spread(shape[i : i + 1])[0] if i in axes else digits for i, digits in enumerate(dims))
    kept = dims[len(axes) :]
    return _spread(shape[: len(shape) - len(kept)]) + kept
