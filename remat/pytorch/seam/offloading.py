"""Offloading as torch's partitioner does it: what carries a mark is copied to the host, and back.

The copies are `device_put` in both graphs, in the stream of the kernels. Where the device is the CPU, `device_put`
copies nothing, and Inductor drops it: an operator of ours takes its place there, which does.

Torch has other copies, in a stream of their own (`torch._functorch.config.activation_offload_separate_stream`), which
are not used: the operator that waits for one frees the value on the device, and does not declare that it writes to it,
so Inductor puts it before operators that read the value (torch 2.13, in the code that it writes for an H100).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.torch_settings import partitioner_settings

_OFFLOADING = "torch._functorch._activation_offloading.activation_offloading"


def offloading(nodes: Sequence[fx.Node]) -> AbstractContextManager[None]:
    """Has torch's partitioner offload values of a joint graph, if it saves them and can (`can_offload`)."""
    for node in nodes:
        node.meta["should_offload"] = True
    return partitioner_settings(enable_activation_offloading=True, activation_offload_separate_stream=False)


def copies_of(name: str) -> tuple[str, str]:
    """Names the copies that torch makes of an offloaded value: on the host, and back on the device."""
    torchs = internals(_OFFLOADING)
    return torchs.CPU_OFFLOAD_PREFIX + name, torchs.GPU_RELOAD_PREFIX + name


def copy_on_cpu(*modules: fx.GraphModule) -> None:
    """Has what torch offloads from the CPU to the CPU copied to another buffer, in both graphs."""
    for module in modules:
        for node in _to_where_it_is(module.graph):
            value = node.args[0].meta["val"]
            node.target, node.args, node.kwargs = torch.ops.remat.copy.default, (node.args[0],), {}
            node.meta["val"] = torch.empty_like(value)
        module.recompile()


def _to_where_it_is(graph: fx.Graph) -> Iterable[Any]:
    prefixes = copies_of("")
    for node in graph.find_nodes(op="call_function", target=torch.ops.prims.device_put.default):
        source: Any = node.args[0]
        if node.name.startswith(prefixes) and source.meta["val"].device == node.args[1]:
            yield node


def another_buffer(tensor: Tensor) -> Tensor:
    """Copies a tensor."""
    return tensor.clone()


def _copied(x: Tensor) -> Tensor:
    return another_buffer(x)  # looked up when it runs


_library: Any = torch.library
_copy = _library.custom_op("remat::copy", _copied, mutates_args=(), schema="(Tensor x) -> Tensor")
_copy.register_fake(torch.empty_like)
