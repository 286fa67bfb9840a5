"""Offloading as torch's partitioner does it: what carries a mark is copied to the host, and back.

Torch adds the copies to both graphs, as `device_put`. Operators of ours take their place (`copy_with_handles`), for the
sake of the order in which Inductor runs them: it takes one that needs little memory, and counts the host's memory for
the device's. A copy back would then take as much as it frees, and could run long before its value is read; a copy to
the host could wait until the end of the pass. So what the forward pass hands over is a *handle*: a tensor without
elements, behind which the whole memory of the copy lies. Its first size is 0, its others are those of the value.

On a CPU the host is another buffer. On a GPU it is pinned memory, and copies are made in the stream of the kernels.

Torch has other copies, in a stream of their own (`torch._functorch.config.activation_offload_separate_stream`), which
are not used: the operator that waits for one frees the value on the device, and does not declare that it writes to it,
so Inductor puts it before operators that read the value (torch 2.13, in the code that it writes for an H100).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.torch_settings import partitioner_settings

_OFFLOADING = "torch._functorch._activation_offloading.activation_offloading"


@contextmanager
def offloading(nodes: Sequence[fx.Node]) -> Generator[None]:
    """Has torch's partitioner offload values of a joint graph, if it saves them and can (`can_offload`)."""
    for node in nodes:
        node.meta["should_offload"] = True
    with partitioner_settings(enable_activation_offloading=True, activation_offload_separate_stream=False):
        yield
    for node in nodes:
        del node.meta["should_offload"]


def copies_of(name: str) -> tuple[str, str]:
    """Names the copies that torch makes of an offloaded value: on the host, and back on the device."""
    torchs = internals(_OFFLOADING)
    return torchs.CPU_OFFLOAD_PREFIX + name, torchs.GPU_RELOAD_PREFIX + name


def copy_with_handles(names: Iterable[str], forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Has both graphs copy offloaded values by the operators of this module, in the places that torch chose."""
    outs, backs = ({node.name: node for node in module.graph.nodes} for module in (forward, backward))
    for on_host, on_device in map(copies_of, names):
        if on_host in outs and on_device in backs:  # else the backward pass does not read it
            out, handle, back = outs[on_host], backs[on_host], backs[on_device]
            source: Any = out.args[0]
            out.target, out.args, out.kwargs = torch.ops.remat.to_host.default, (source,), {}
            back.target, back.kwargs = torch.ops.remat.to_device.default, {}
            for node in (out, handle):
                node.meta["val"] = handle_of(torch.empty_like(source.meta["val"], device="cpu"))
                node.meta.pop("tensor_meta", None)
    for module in (forward, backward):
        module.recompile()


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
    return another_buffer(torch.empty(0, dtype=handle.dtype).set_(handle.untyped_storage(), 0, shape), device)


_library: Any = torch.library
_any_layout: Any = {"mutates_args": (), "tags": (torch.Tag.flexible_layout,)}
_out = _library.custom_op("remat::to_host", _to_host, schema="(Tensor x) -> Tensor", **_any_layout)
_back = _library.custom_op(
    "remat::to_device", _to_device, schema="(Tensor handle, Device device) -> Tensor", **_any_layout
)
_out.register_fake(lambda x: handle_of(x.new_empty(x.shape, device="cpu")))
_back.register_fake(lambda handle, device: handle.new_empty(handle.shape[1:], device=device))
