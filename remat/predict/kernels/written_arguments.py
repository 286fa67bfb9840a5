"""Lowers calls that write into their arguments: Triton kernels of users, and the empty tensors that they fill."""

from __future__ import annotations

from math import prod
from typing import Any

from remat.predict.kernels.index import contiguous_strides, identity, opaque
from remat.predict.kernels.ir import Box, Buffer, Loop, View
from remat.predict.kernels.library import call_library, library
from remat.predict.kernels.lowering import Lowering
from remat.predict.kernels.realize import memory_access
from remat.predict.kernels.recorded_calls import Call, Ref


def triton_kernel(lowering: Lowering, call: Call) -> View | None:
    """Lowers a user's Triton kernel, which writes over an argument that the pass computes and nothing else reads.

    Any other argument that it writes is copied first, and the kernel writes over the copy (`reinplace_inplaceable_ops`,
    `clone_preserve_strides` of torch 2.13).
    """
    if not call.is_tuple or "kwargs" not in call.kwargs:  # the graph does not record which arguments it writes
        return library(lowering, call)
    named: dict[str, Any] = call.kwargs["kwargs"]
    refs = {name: u.position for name, u in named.items() if isinstance(u, Ref)}
    views = {name: lowering.views[u] for name, u in refs.items() if u in lowering.views}  # sizes have no view
    written: dict[str, View] = {}
    for name in call.kwargs["tensors_to_clone"]:
        u, taken = refs[name], [view.box for view in written.values()]
        is_free = views[name].box not in taken and _is_free(lowering, call, u)
        written[name] = views[name] if is_free else _memory_copied(lowering, u)
    call_library(lowering, call, list((views | written).values()))
    loop = lowering.stores.loops[-1]
    after: dict[str, Buffer] = {}
    for name, view in written.items():
        before = view.box.buffer
        assert before is not None
        after[name] = Buffer(call.position, before.shape, before.itemsize, before.strides)
        loop.over[after[name]] = before
    loop.writes.extend(after.values())

    def element(_: Lowering, one: Call) -> View:
        name: str = one.args[1]
        after[name].value = one.position
        loop.values |= {one.position}
        return View(View.of_buffer(after[name]).box, one.shape, written[name].access, stored=True)

    lowering.elements[call.position] = element
    return None


# Whether this pass computes the memory of the value, and nothing else reads it, directly or through a view. Inductor
# asks whether something reads it later, but first it moves an earlier operator to its reader (`reorder_for_locality`):
# only earlier calls with several results stay where they are.
def _is_free(lowering: Lowering, call: Call, value: int) -> bool:
    box = lowering.views[value].box
    aliases = {v for v, view in lowering.views.items() if view.box is box}
    readers = {reader for v in aliases for reader in lowering.uses.network.of(v)}
    if readers - aliases - lowering.elements.keys() - {call.position}:
        return False
    if any(lowering.uses.returned[v] for v in aliases):
        return False
    buffer = lowering.stores.store(box)
    return any(buffer in loop.writes for loop in lowering.stores.loops)


# The copy begins where the memory of the argument begins, and ends with the last element of the view.
def _memory_copied(lowering: Lowering, value: int) -> View:
    stores, view = lowering.stores, lowering.views[value]
    dims, start = memory_access(view)
    strides = [(n, stride) for digits in dims for n, stride in digits]
    exact = stores.exactly(view, stores.strides[value])
    buffer = exact.box.buffer
    assert buffer is not None
    if start < 0 or any(stride < 0 for _, stride in strides):
        return stores.copy(exact)  # only the running program knows where the view is
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
    return View.of_box(Box(call.position, call.shape, call.itemsize, ops=at, buffer=buffer))
