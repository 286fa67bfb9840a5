"""Measures what a library takes from torch's allocator during one call, by making that call once on this machine.

oneDNN copies images and filters into layouts that depend on the processor: for gradients of filters, with AVX2 it pads
one channel to eight (`init_conf` in its `jit_avx2_conv_kernel_f32.cpp`), and with AVX-512 it pads no image of less than
16 channels (`is_1stconv` in `jit_avx512_common_conv_kernel.cpp`). Fused attention takes blocks for each thread.

On a GPU, cuDNN takes what its own heuristics ask for, which depend on its version and on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.step_allocations import cpu_allocations, gpu_allocations
from remat.pytorch.seam.swap import torchs_own
from remat.pytorch.seam.torch_names import tree_leaves, tree_map

# Their memory does not depend on the contents of tensors. What fused attention draws, torch takes from a copy of the
# generator's state.
_MEASURED = {
    "cpu": ("aten.convolution", "aten._scaled_dot_product_flash_attention_for_cpu"),
    "cuda": ("aten.convolution", "aten._scaled_dot_product_"),
}
_bytes_by_call: dict[tuple[Any, ...], int] = {}


def measured_bytes(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Returns the bytes that a call takes besides its arguments, fake or not, and results; None if not measured."""
    leaves = tree_leaves((args, kwargs))
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    kind = "cuda" if "cuda" in devices else "cpu"
    if not str(operator).startswith(_MEASURED[kind]) or not devices <= {"cpu", kind}:
        return None
    if kind == "cuda" and not torchs_own(torch.cuda, "is_available")():  # kernels for a GPU, without one
        return None
    key = str(operator), torch.get_num_threads(), *map(_layout, leaves)
    if key not in _bytes_by_call:
        results: list[Any] = []  # they are counted by whoever asks
        try:
            with real_tensors():
                args, kwargs = tree_map(_zeros, (args, kwargs))
                allocations = (gpu_allocations if kind == "cuda" else cpu_allocations)(
                    lambda: results.append(operator(*args, **kwargs))
                )
        except torch.OutOfMemoryError:
            return None
        held = [*accumulate(allocations, initial=0)]
        _bytes_by_call[key] = max(held) - held[-1]
    return _bytes_by_call[key]


def _layout(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    place = leaf.shape, leaf.stride(), leaf.storage_offset()
    return leaf.dtype, leaf.device, leaf.untyped_storage().nbytes(), *place


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    dtype, device, size, *place = _layout(leaf)
    return torch.zeros(size // leaf.itemsize, dtype=dtype, device=device).as_strided(*place)
