"""Measures the workspace that a library allocates during a call, by making the call on this machine.

oneDNN copies images and filters into layouts that depend on the processor. For gradients of filters, it pads one
channel to eight with AVX2 (`init_conf` in its `jit_avx2_conv_kernel_f32.cpp`), and with AVX-512 it does not pad images
with fewer than 16 channels (`is_1stconv` in `jit_avx512_common_conv_kernel.cpp`). Fused attention takes memory per
thread. On a GPU, the workspace follows from cuDNN's heuristics, which depend on its version and on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.step_allocations import allocations
from remat.pytorch.seam.thread_patch import in_place, torchs_own
from remat.pytorch.seam.torch_names import fork_rng, storage_of, tree_leaves, tree_map

# Calls whose memory does not depend on the contents of tensors.
_MEASURED = {
    "cpu": ("aten.convolution", "aten._scaled_dot_product_flash_attention_for_cpu"),
    "cuda": ("aten.convolution", "aten._scaled_dot_product_"),
}
_bytes_by_call: dict[tuple[Any, ...], int] = {}


def measured_bytes(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Returns the bytes that a call takes in addition to arguments (fake or not) and results; None if not measured.

    Raises:
        torch.OutOfMemoryError: the arguments do not fit into the free memory of the GPU.
    """
    leaves = tree_leaves((args, kwargs))
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    kind = "cuda" if "cuda" in devices else "cpu"
    if not str(operator).startswith(_MEASURED[kind]) or not devices <= {"cpu", kind}:
        return None
    if kind == "cuda" and not _is_here():
        return None
    key = str(operator), torch.get_num_threads(), _cudnn_settings(), *map(_layout, leaves)
    if key not in _bytes_by_call:
        with real_tensors():
            _bytes_by_call[key] = _measured(operator, *_zeros((args, kwargs)))
    return _bytes_by_call[key]


def _measured(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    results: list[Any] = []  # the caller counts these
    gpus = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_cuda}
    with fork_rng([*gpus]):  # attention with dropout draws random numbers
        if gpus:
            operator(*args, **kwargs)  # the first call may benchmark cuDNN's algorithms
        sizes = allocations(lambda: results.append(operator(*args, **kwargs)), gpu=bool(gpus))
    held = [*accumulate(sizes, initial=0)]
    return max(held) - held[-1]


# False without a GPU, and inside `remat.pytorch.seam.virtual_gpu`.
def _is_here() -> bool:
    is_available = torchs_own(torch.cuda, "is_available")
    return is_available() and in_place(torch.cuda, "is_available") is is_available


def _cudnn_settings() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


def _layout(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    place = leaf.shape, leaf.stride(), leaf.storage_offset()
    return leaf.dtype, leaf.device, leaf.untyped_storage().nbytes(), *place


def _zeros(values: Any) -> Any:
    made: dict[int, Tensor] = {}  # queries, keys and values may share a storage

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dtype, device, size, *place = _layout(leaf)
        storage = storage_of(leaf)
        if storage not in made:
            made[storage] = torch.zeros(size, dtype=torch.uint8, device=device)
        return made[storage][: size // leaf.itemsize * leaf.itemsize].view(dtype).as_strided(*place)

    return tree_map(zeros, values)
