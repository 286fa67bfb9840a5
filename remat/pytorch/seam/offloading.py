"""The operators that copy what is offloaded: to the host, and back.

What the forward pass hands over is a *handle*: a tensor without elements, behind which the whole memory of the copy
lies. Its first size is 0, its others are those of the value. This is for the order in which Inductor runs the copies:
it takes one that needs little memory, and counts the host's memory for the device's. By that sum a copy back of the
host's tensor would take as much as it frees, and could run long before its value is read; a copy to the host could wait
until the end of the pass. A handle takes nothing.

On a CPU the host is another buffer. On a GPU it is pinned memory, and copies are made in the stream of the kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def handle_of(copy: Tensor) -> Tensor:
    """Returns a tensor without elements that keeps the memory of another alive, and knows its shape."""
    return copy.unsqueeze(0)[:0]


def another_buffer(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device, or from one to pinned memory of the host; in rows."""
    pinned = tensor.is_cuda and device.type == "cpu"
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned)
    return copy.copy_(tensor, non_blocking=True)


def _to_host(x: Tensor) -> Tensor:
    return handle_of(another_buffer(x, torch.device("cpu")))  # looked up when it runs


def _to_device(handle: Tensor, device: torch.device) -> Tensor:
    shape = handle.shape[1:]
    if handle.untyped_storage().nbytes() < shape.numel() * handle.itemsize:
        raise RuntimeError(
            "an offloaded value is not behind its handle any more: a hook on saved tensors, such as save_on_cpu, gave "
            "back another tensor; take the hook off, or offload nothing"
        )
    in_rows = torch.empty(shape, dtype=handle.dtype, device="meta").stride()
    return another_buffer(handle.as_strided(shape, in_rows), device)


def _fake_to_host(x: Tensor) -> Tensor:
    return handle_of(torch.empty(x.shape, dtype=x.dtype, device="cpu"))


def _fake_to_device(handle: Tensor, device: torch.device) -> Tensor:
    return torch.empty(handle.shape[1:], dtype=handle.dtype, device=device)


_library: Any = torch.library
_any_layout: Any = {"mutates_args": (), "tags": (torch.Tag.flexible_layout,)}
_library.custom_op("remat::to_host", _to_host, schema="(Tensor x) -> Tensor", **_any_layout).register_fake(
    _fake_to_host
)
_library.custom_op(
    "remat::to_device", _to_device, schema="(Tensor handle, Device device) -> Tensor", **_any_layout
).register_fake(_fake_to_device)

TO_HOST: Any = torch.ops.remat.to_host.default
"""Copies a tensor to the host, and returns the handle of the copy."""

TO_DEVICE: Any = torch.ops.remat.to_device.default
"""Copies back to a device what is behind a handle."""
