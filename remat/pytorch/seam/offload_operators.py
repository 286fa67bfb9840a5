"""Defines the operators that copy offloaded values to the host and back.

The forward pass passes a *handle* to the backward pass: a tensor without elements that keeps the memory of the copy
alive. Its first size is 0, the others are those of the value. The reason is the order in which Inductor runs the
copies: it prefers operators with little memory, and counts host memory as device memory. With the host's tensor itself,
a copy back would take as much as it frees, so it could run long before its value is read; and a copy to the host could
wait until the end of the pass. A handle takes no memory.

On a CPU, the host is another buffer. On a GPU, it is pinned memory.

A copy runs either between the kernels (`TO_HOST`, `TO_DEVICE`) or in a CUDA stream of its own. In that case, `SEND` and
`FETCH` begin it after the kernels before them, and the kernels after `SENT` and `FETCHED` wait for its end. `SENT` also
takes the copied value, so that it is not overwritten earlier. `FETCH` returns a handle on the device with the memory of
the copy, so that no kernel reads it earlier. For the compiler, all of them are calls without effects, so each takes
what must run before it as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

HOST = torch.device("cpu")

# The stream of each device for its copies.
_streams: dict[torch.device, torch.cuda.Stream] = {}
# Address of a begun copy -> the event of its end, the copy, and its source. The references keep both tensors alive
# until then, even if the pass is aborted.
_under_way: dict[int, tuple[Any, Tensor, Tensor]] = {}


def handle_of(copy: Tensor) -> Tensor:
    """Returns a tensor without elements that keeps the memory of another tensor alive, and has its shape."""
    return copy.unsqueeze(0)[:0]


def tensor_of(handle: Tensor) -> Tensor:
    shape = handle.shape[1:]
    if handle.untyped_storage().nbytes() < shape.numel() * handle.itemsize:
        raise RuntimeError(
            "an offloaded value is lost: a hook on saved tensors, such as save_on_cpu, gave back another tensor; "
            "remove the hook, or offload nothing"
        )
    in_rows = torch.empty(shape, dtype=handle.dtype, device="meta").stride()
    return handle.as_strided(shape, in_rows)


def place_for(tensor: Tensor, device: torch.device) -> Tensor:
    """Allocates row-major memory for a copy of a tensor: on a device, or pinned on its host."""
    pinned = tensor.is_cuda and device.type == "cpu"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned)


def begin(copy: Tensor, source: Tensor) -> None:
    """Begins a copy in its own stream, after the kernels launched so far; on a CPU it copies at once."""
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
    """Makes later kernels of a device wait for a begun copy."""
    if begun := _under_way.pop(copy.untyped_storage().data_ptr(), None):
        torch.cuda.current_stream(device).wait_event(begun[0])


def _to_host(x: Tensor) -> Tensor:
    return handle_of(place_for(x, HOST).copy_(x, non_blocking=True))


def _to_device(handle: Tensor, device: torch.device) -> Tensor:
    copy = tensor_of(handle)
    return place_for(copy, device).copy_(copy, non_blocking=True)


def _send(x: Tensor) -> Tensor:
    copy = place_for(x, HOST)
    begin(copy, x)
    return handle_of(copy)


def _sent(handle: Tensor, x: Tensor, _after: Sequence[Tensor]) -> Tensor:
    end(tensor_of(handle), x.device)
    return handle[:]


def _fetch(handle: Tensor, device: torch.device, _after: Sequence[Tensor]) -> Tensor:
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


def _fake_on_its_way(handle: Tensor, device: torch.device, *_: object) -> Tensor:
    return handle_of(torch.empty(handle.shape[1:], dtype=handle.dtype, device=device))


_library: Any = torch.library.Library("remat", "FRAGMENT")


# The operator accepts any layout, and is not part of a CUDA graph, which would not run it again. Torch requires
# operators that return memory of an argument to declare it; compiled autograd refuses such operators.
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
"""Copies the tensor of a handle back to a device."""

SEND = _operator("send(Tensor x) -> Tensor", _send, _fake_handle)
"""Begins to copy a tensor to the host."""

SENT = _operator("sent(Tensor(a) handle, Tensor x, Tensor[] after) -> Tensor(a)", _sent, _fake_sent)
"""Ends the copy of `SEND`, after other calls; returns the handle of the copy."""

FETCH = _operator("fetch(Tensor handle, Device device, Tensor[] after) -> Tensor", _fetch, _fake_on_its_way)
"""Begins to copy the tensor of a handle back, after other calls; returns a handle on the device."""

FETCHED = _operator("fetched(Tensor(a) handle) -> Tensor(a)", _fetched, _fake_value)
"""Ends the copy of `FETCH`, and returns the tensor."""
