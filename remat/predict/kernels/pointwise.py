"""Lowers elementwise operators and views to expressions, which are inlined into their readers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.index import (
    Access,
    Dims,
    composed,
    contiguous_strides,
    coordinate,
    identity,
    moves,
    opaque,
    part_of,
    shifted_map,
    strided,
)
from remat.predict.kernels.ir import Box, View
from remat.predict.kernels.loops import step_of
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import Draft
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.view_maps import element, positive, sliced, view_access

# Views whose argument must be row-major, unless its layout is already fixed.
_RESHAPES = {f"aten.{name}" for name in ("view", "_unsafe_view", "reshape", "unsqueeze")}


def pointwise(lowering: Lowering, call: Call) -> View:
    draft = Draft(lowering.stores, {call.position}, heavy=call.op in lowering.stores.backend.heavy)
    if call.op not in rules.CONSTANTS:
        # `aten.copy`, the functional form of `x[i] = y`, does not read the tensor that it replaces.
        for view in lowering.arguments(call)[call.op == "aten.copy" :]:
            draft.take(lowering.stores.broadcast(view, call.shape))
    if call.op in rules.COUNTS:
        draft.indices[identity(call.shape), 0] = None
    return draft.done(call.position, call.shape, call.itemsize)


def random(lowering: Lowering, call: Call) -> View:
    """Lowers random numbers, which depend on the seed and the position, and are always stored."""
    view = pointwise(lowering, call)
    view.box.indices = (*view.box.indices, (identity(call.shape), 0))
    lowering.stores.store(view.box)
    return view


def seed(lowering: Lowering, call: Call) -> View:
    """Lowers the read of one of several seeds in memory."""
    seeds = lowering.stores.store(lowering.first(call).box)
    reads = {(seeds, ((), int(call.args[1]))): 1}
    return View.of_box(Box(call.position, (), call.itemsize, reads, {frozenset(reads): frozenset({call.position})}))


def view_operator(lowering: Lowering, call: Call) -> View:
    of = lowering.first(call)
    if call.shape == of.shape and call.op in ("aten.expand", "aten.view", "aten._unsafe_view", "aten.reshape"):
        return of  # it is no view for the compiler
    if call.op == "aten.expand":
        lowering.stores.store_if_reused(of, prod(call.shape) // max(prod(of.shape), 1))
    access = view_access(call, of.shape, of.access)
    if access is None:  # unknown strides, or an operator of a graph written by hand
        unknown = tuple(opaque(n, call.position, i) for i, n in enumerate(call.shape))
        access = (identity(call.shape) if prod(call.shape) == prod(of.shape) else unknown, of.access[1])
    if call.op in _RESHAPES:
        lowering.stores.settle_rows(of)
    return lowering.stores.take_view(of, call.shape, access)


def gated_linear_unit(lowering: Lowering, call: Call) -> View:
    """Lowers glu: one half of a dimension, times the sigmoid of the other half."""
    of = lowering.first(call)
    dim = positive(call.arg(1, "dim", -1), len(of.shape))
    draft = Draft(lowering.stores, {call.position}, heavy=call.op in lowering.stores.backend.heavy)
    for start in (0, call.shape[dim]):
        dims, first = sliced(of.access[0], dim, of.shape[dim], start, call.shape[dim])
        draft.take(lowering.stores.take_view(of, call.shape, (dims, of.access[1] + first)))
    return draft.done(call.position, call.shape, call.itemsize)


def restrided(lowering: Lowering, call: Call) -> View:
    """Lowers as_strided, which reads the memory of a tensor with any strides."""
    of = lowering.first(call)
    buffer = lowering.stores.store(of.box)
    if buffer.offset or buffer.fix() != contiguous_strides(buffer.shape):
        return view_operator(lowering, call)
    dims = strided(call.shape, tuple(call.args[2]))
    return View(of.box, call.shape, (dims, call.arg(3, "storage_offset") or 0), stored=True)


def split(lowering: Lowering, call: Call) -> None:
    whole = lowering.first(call)

    def piece(lowering: Lowering, one: Call) -> View:
        dims, start = element(one, call, whole.shape, whole.access[0])
        return lowering.stores.take_view(whole, one.shape, (dims, whole.access[1] + start))

    lowering.elements[call.position] = piece


def tuple_element(lowering: Lowering, call: Call) -> View | None:
    make = lowering.elements.get(call.args[0].position)
    return None if make is None else make(lowering, call)


def patched(lowering: Lowering, call: Call) -> View:
    """Lowers the replacement of a part of a value to an expression that selects by coordinate."""
    base, part = lowering.arguments(call)[:2]
    shape = call.shape
    dim = positive(call.arg(2, "dim", 0), len(shape))
    draft, outer = Draft(lowering.stores, {call.position}), identity(part.shape)
    if call.op == "aten.select_scatter":
        lowering.stores.store_if_reused(part, shape[dim])  # the compiler repeats the part over the whole dimension
        outer = (*outer[:dim], ((shape[dim], 0),), *outer[dim:])
    elif part.shape != shape:
        outer = (*outer[:dim], lowering.shifted(shape[dim], outer[dim], "part", call.args[2:]), *outer[dim + 1 :])
    start: int = call.arg(3, "start", 0) or 0
    start, step = max(start + shape[dim], 0) if start < 0 else start, call.arg(5, "step", 1)
    if call.op == "aten.select_scatter":
        lowering.stores.weigh(call.position, 2, {("bound", start)})  # a comparison and a choice
    elif part.shape != shape:
        end = min(start + part.shape[dim] * step, shape[dim])
        bounds = [("bound", n) for n, edge in ((start, 0), (end, shape[dim])) if n != edge]
        count = len(bounds) + (step != 1)  # a step has a remainder, which is compared with 0
        operations = 2 * count + 1 + (step != 1)  # the conditions, all of them together, a masked read, and a choice
        lowering.stores.weigh(call.position, operations, [*bounds, ("int64", "0")] if step != 1 else bounds)

    def read(of: Access) -> Access:
        if call.op == "aten.select_scatter":  # the part has a dimension less
            return composed((outer, 0), of)
        if not moves(of[0][dim]):
            return (*of[0][:dim], ((shape[dim], 0),), *of[0][dim + 1 :]), of[1]
        # If outer dimensions were flattened with this one, Inductor's index has a division, and is no plain shift.
        # Columns at the beginning of longer rows were hardly flattened.
        is_start = start == 0 and dim == len(shape) - 1 and not _joins_rows(of[0], part.shape[dim])
        is_shift = prod(shape[:dim]) == 1 or is_start
        found = shifted_map(of, dim, shape[dim], start) if step == 1 and is_shift else None
        return part_of(outer, of, dim, start) if found is None else found

    draft.take(part, read)
    draft.take(base)
    draft.indices[coordinate(shape, dim), 0] = None
    return draft.done(call.position, shape, call.itemsize)


# Whether a row of this size begins where the row before it ends.
def _joins_rows(dims: Dims, size: int) -> bool:
    steps = [step_of(digits) for digits in dims[:-1] if moves(digits)]
    return bool(steps) and steps[-1] == size * step_of(dims[-1])


def repeated(lowering: Lowering, call: Call) -> View:
    """Lowers repeat to an expression that reads each element several times."""
    of = lowering.first(call)
    lowering.stores.store_if_reused(of, prod(call.shape) // max(prod(of.shape), 1))
    ahead = len(call.shape) - len(of.shape)
    times: list[int] = call.args[1]
    dims = tuple(
        (((k, 0),) if k != 1 else ()) + digits for k, digits in zip(times, ((),) * ahead + of.access[0], strict=True)
    )
    return _rearranged(lowering, call, of, (dims, of.access[1]), ())


def mirrored(lowering: Lowering, call: Call) -> View:
    """Lowers the reversal of some dimensions, which are read backwards."""
    of = lowering.first(call)
    turned = {positive(dim, len(of.shape)) for dim in call.args[1]}
    dims = tuple(opaque(of.shape[i], "rev", d) if i in turned else d for i, d in enumerate(of.access[0]))
    return _rearranged(lowering, call, of, (dims, of.access[1]), sorted(turned))


def padded(lowering: Lowering, call: Call) -> View:
    """Lowers padding to a read under a condition on the coordinates."""
    of = lowering.first(call)
    # Two per dimension, the last dimension first; a shift has a positive and a negative one.
    widths: list[int] = call.args[1]
    changed = [i for i in range(len(call.shape)) if any(widths[2 * (len(call.shape) - 1 - i) :][:2])]

    def placed(access: Access) -> Access:
        return tuple(
            lowering.shifted(call.shape[i], d, "pad", d, call.args[1]) if i in changed else d
            for i, d in enumerate(access[0])
        ), access[1]

    draft = Draft(lowering.stores, {call.position})
    draft.take(of, placed)
    bounds: list[int] = []
    for dim in changed:
        draft.indices[coordinate(call.shape, dim), 0] = None
        before, after = widths[2 * (len(call.shape) - 1 - dim) :][:2]
        bounds += [0] * (before != 0) + [of.shape[dim]] * (after != 0)
    # The conditions, all of them together, and a masked read.
    lowering.stores.weigh(call.position, 2 * len(bounds), {("bound", n) for n in bounds})
    return draft.done(call.position, call.shape, call.itemsize)


def _rearranged(lowering: Lowering, call: Call, of: View, access: Access, by: Sequence[int]) -> View:
    draft = Draft(lowering.stores, {call.position})
    draft.take(View(of.box, call.shape, access, of.stored))
    for dim in by:
        draft.indices[coordinate(call.shape, dim), 0] = None
    return draft.done(call.position, call.shape, call.itemsize)
