"""Defines the operators that copy what is offloaded to the host, and back.

What the forward pass hands over is a *handle*: a tensor without elements, behind which the whole memory of the copy
lies. Its first size is 0, its others are those of the value. This is for the order in which Inductor runs the copies:
it takes one that needs little memory, and counts the host's memory for the device's. By that sum a copy back of the
host's tensor would take as much as it frees, and could run long before its value is read; a copy to the host could wait
until the end of the pass. A handle takes nothing.

On a CPU the host is another buffer. On a GPU it is pinned memory.

A copy is made between the kernels (`TO_HOST`, `TO_DEVICE`), or beside them, in a stream of copies: `SEND` and `FETCH`
begin it, once the kernels before them have run, and the kernels behind `SENT` and `FETCHED` wait for its end. Of a copy
to the host, `SENT` takes the value, too, so that nobody writes over it before. Of a copy back, `FETCH` returns a handle
on the device, with its memory, so that nobody reads it before. All of them take what they must run behind as arguments:
to the compiler they are calls without effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

HOST = torch.device("cpu")


def handle_of(copy: Tensor) -> Tensor:
    """Returns a tensor without elements that keeps the memory of another alive, and knows its shape."""
    return copy.unsqueeze(0)[:0]


def tensor_of(handle: Tensor) -> Tensor:
    """Returns the tensor whose memory a handle keeps."""
    shape = handle.shape[1:]
    if handle.untyped_storage().nbytes() < shape.numel() * handle.itemsize:
        raise RuntimeError(
            "an offloaded value is lost: a hook on saved tensors, such as save_on_cpu, gave back another tensor; "
            "remove the hook, or offload nothing"
        )
    in_rows = torch.empty(shape, dtype=handle.dtype, device="meta").stride()
    return handle.as_strided(shape, in_rows)


def place_for(tensor: Tensor, device: torch.device) -> Tensor:
    """Allocates the memory for a copy of a tensor, in rows: on a device, or in pinned memory of its host."""
    pinned = tensor.is_cuda and device.type == "cpu"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned)


_streams: dict[torch.device, torch.cuda.Stream] = {}
# By the address of a copy that was begun: the event of its end; itself and its source, so that nobody takes their
# memory before, not even where a pass is broken off.
_under_way: dict[int, tuple[Any, Tensor, Tensor]] = {}


def begin(copy: Tensor, source: Tensor) -> None:
    """Begins to copy beside the kernels, once those have run that were launched before; on a CPU it copies at once."""
    if not (copy.is_cuda or source.is_cuda):
        copy.copy_(source)
        return
    for address in [address for address, (event, *_) in list(_under_way.items()) if event.query()]:
        _under_way.pop(address, None)
    device = copy.device if copy.is_cuda else source.device
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    stream = _streams[device]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        copy.copy_(source, non_blocking=True)
        _under_way[copy.untyped_storage().data_ptr()] = stream.record_event(), copy, source


def end(copy: Tensor, device: torch.device) -> None:
    """Makes later kernels of a device wait for a copy that was begun."""
    if found := _under_way.pop(copy.untyped_storage().data_ptr(), None):
        torch.cuda.current_stream(device).wait_event(found[0])


def _to_host(x: Tensor) -> Tensor:
    return handle_of(place_for(x, HOST).copy_(x, non_blocking=True))


def _to_device(handle: Tensor, device: torch.device) -> Tensor:
    copy = tensor_of(handle)
    return place_for(copy, device).copy_(copy, non_blocking=True)


def _send(x: Tensor) -> Tensor:
    copy = place_for(x, HOST)
    begin(copy, x)
    return handle_of(copy)


def _sent(handle: Tensor, x: Tensor, after: Sequence[Tensor]) -> Tensor:
    del after
    end(tensor_of(handle), x.device)
    return handle[:]


def _fetch(handle: Tensor, device: torch.device, after: Sequence[Tensor]) -> Tensor:
    del after
    source = tensor_of(handle)
    copy = place_for(source, device)
    begin(copy, source)
    return handle_of(copy)


def _fetched(handle: Tensor) -> Tensor:
    copy = tensor_of(handle)
    end(copy, copy.device)
    return copy


def _fake_handle(x: Tensor, *_: object) -> Tensor:
    return handle_of(torch.empty(x.shape, dtype=x.dtype, device=HOST))


def _fake_sent(handle: Tensor, *_: object) -> Tensor:
    return torch.empty_like(handle)


def _fake_value(handle: Tensor, device: torch.device | None = None) -> Tensor:
    return torch.empty(handle.shape[1:], dtype=handle.dtype, device=handle.device if device is None else device)


def _fake_on_its_way(handle: Tensor, device: torch.device, after: Sequence[Tensor]) -> Tensor:
    del after
    return handle_of(torch.empty(handle.shape[1:], dtype=handle.dtype, device=device))


_library: Any = torch.library.Library("remat", "FRAGMENT")


# It takes any layout, and is no part of a CUDA graph, which would not run it again. Torch asks operators that return
# memory of an argument to say so; compiled autograd refuses these.
def _operator(schema: str, runs: Callable[..., Tensor], fake: Callable[..., Tensor]) -> Any:
    name = schema.partition("(")[0]
    library: Any = torch.library
    _library.define(schema, tags=(torch.Tag.flexible_layout, torch.Tag.cudagraph_unsafe))
    _library.impl(name, runs, "CompositeExplicitAutograd")
    library.register_fake(f"remat::{name}", fake, lib=_library)
    return getattr(torch.ops.remat, name).default


TO_HOST = _operator("to_host(Tensor x) -> Tensor", _to_host, _fake_handle)
"""Copies a tensor to the host, and returns the handle of the copy."""

TO_DEVICE = _operator("to_device(Tensor handle, Device device) -> Tensor", _to_device, _fake_value)
"""Copies back to a device what is behind a handle."""

SEND = _operator("send(Tensor x) -> Tensor", _send, _fake_handle)
"""Begins to copy a tensor to the host."""

SENT = _operator(
    "sent(Tensor(a) handle, Tensor x, Tensor[] after) -> Tensor(a)",
    _sent,
    _fake_sent,
)
"""Ends it, behind other calls; returns the handle of the copy."""

FETCH = _operator("fetch(Tensor handle, Device device, Tensor[] after) -> Tensor", _fetch, _fake_on_its_way)
"""Begins to copy back what is behind a handle, behind other calls; returns a handle on the device."""

FETCHED = _operator("fetched(Tensor(a) handle) -> Tensor(a)", _fetched, _fake_value)
"""Ends it, and returns the tensor."""
