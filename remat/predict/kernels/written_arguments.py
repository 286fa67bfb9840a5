"""Lowers calls that write into their arguments: Triton kernels of users, and the empty tensors that they fill."""

from __future__ import annotations

from math import prod
from typing import Any

from remat.predict.kernels.index import composed, contiguous_strides, identity, opaque
from remat.predict.kernels.ir import Box, Buffer, Loop, View
from remat.predict.kernels.library import call_library, library
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import memory_access
from remat.predict.kernels.recorded_calls import Call, Ref


def triton_kernel(lowering: Lowering, call: Call) -> View | None:
    """Lowers a user's Triton kernel, which writes over an argument that the pass computes and nothing reads later.

    Any other argument that it writes is copied first, and the kernel writes over the copy (`reinplace_inplaceable_ops`,
    `clone_preserve_strides` of torch 2.13). So does the prediction with an input that is overwritten; Inductor writes
    over that input itself.
    """
    if not call.is_tuple or "kwargs" not in call.kwargs:  # the graph does not record which arguments it writes
        return library(lowering, call)
    named: dict[str, Any] = call.kwargs["kwargs"]
    refs = {name: u.position for name, u in named.items() if isinstance(u, Ref) and u.position in lowering.views}
    writes: list[str] = call.kwargs["tensors_to_clone"]
    arguments: dict[str, View] = {}
    in_place: list[Buffer] = []
    for name, u in refs.items():
        is_free = name in writes and lowering.views[u].box.buffer not in in_place and _is_free(lowering, call, u)
        copies = name in writes and not is_free
        arguments[name] = _memory_copied(lowering, u) if copies else _in_memory(lowering, u)
        buffer = lowering.stores.for_call(arguments[name])
        if is_free:
            in_place.append(buffer)
    if in_place:
        _store_readers(lowering, in_place)
    call_library(lowering, call, list(arguments.values()))
    loop = lowering.stores.loops[-1]
    after: dict[str, Buffer] = {}
    for name in writes:
        before = lowering.stores.for_call(arguments[name])
        after[name] = Buffer(call.position, before.shape, before.itemsize, before.strides)
        loop.over[after[name]] = before
    loop.writes.extend(after.values())

    def element(_: Lowering, one: Call) -> View:
        name: str = one.args[1]
        after[name].value = one.position
        loop.values |= {one.position}
        return View(View.of_buffer(after[name]).box, one.shape, arguments[name].access, stored=True)

    lowering.elements[call.position] = element
    return None


# Whether this pass computes the memory of the value, and no later operator reads it, directly or through a view.
def _is_free(lowering: Lowering, call: Call, value: int) -> bool:
    box = lowering.views[value].box
    aliases = {v for v, view in lowering.views.items() if view.box is box}
    readers = {reader for v in aliases for reader in lowering.uses.network.of(v)}
    if readers - lowering.views.keys() - lowering.elements.keys() - {call.position}:
        return False
    if any(lowering.uses.returned[v] for v in aliases):
        return False
    return box.buffer is None or any(box.buffer in loop.writes for loop in lowering.stores.loops)


# As `require_exact_strides`: an expression is copied, and other readers still compute it themselves.
def _in_memory(lowering: Lowering, value: int) -> View:
    view, strides = lowering.views[value], lowering.stores.strides[value]
    store = lowering.stores.copy if view.box.buffer is None else lowering.stores.exactly
    return store(view, strides)


# As `mark_buffer_mutated`: what was to be computed from the memory is stored before the kernel writes over it.
def _store_readers(lowering: Lowering, buffers: list[Buffer]) -> None:
    for view in lowering.views.values():
        if view.box.buffer is None and any(buffer in buffers for buffer, _ in view.box.reads):
            lowering.stores.store(view.box)


# The copy begins where the memory of the argument begins, and ends with the last element of the view. Of an expression,
# the part that the view shows is stored alone, but eager's layout of the whole says how long the copy is.
def _memory_copied(lowering: Lowering, value: int) -> View:
    stores, view = lowering.stores, lowering.views[value]
    is_part = view.box.buffer is None and not view.is_whole
    exact = stores.exactly(view, stores.strides[value])
    buffer = exact.box.buffer
    assert buffer is not None
    dims, start = composed(view.access, (identity(view.box.shape), 0)) if is_part else memory_access(exact)
    strides = [(n, stride) for digits in dims for n, stride in digits]
    if start < 0 or any(stride < 0 for _, stride in strides):
        return stores.copy(exact)  # where the view is, or its steps, are unknown
    elements = start + 1 + sum((n - 1) * stride for n, stride in strides) if prod(view.shape) else 0
    in_rows = buffer.fix() == contiguous_strides(buffer.shape) and not buffer.offset
    positions = identity((elements,)) if in_rows else (opaque(elements, "memory", buffer.value),)
    copy = stores.copy(View(exact.box, (elements,), (positions, 0), stored=True))
    return View(copy.box, view.shape, (dims, start), stored=True)


def uninitialized(lowering: Lowering, call: Call) -> View:
    """Lowers `aten.empty` to memory that no kernel writes.

    For expressions it is a constant, so only calls and views read the memory (`lowering.empty_strided` of torch 2.13).
    """
    at = frozenset({call.position})
    buffer = Buffer(call.position, call.shape, call.itemsize, lowering.stores.strides[call.position])
    lowering.stores.loops.append(Loop(at, {}, [buffer], generated=False, launched=False))
    return View.of_box(Box(call.position, call.shape, call.itemsize, steps={frozenset(): at}, buffer=buffer))
