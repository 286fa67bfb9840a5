"""Measures what a library takes from torch's allocator during one call, by making that call once on this machine.

oneDNN copies images and filters into layouts that depend on the processor: for gradients of filters, with AVX2 it pads
one channel to eight (`init_conf` in its `jit_avx2_conv_kernel_f32.cpp`), and with AVX-512 it pads no image of less than
16 channels (`is_1stconv` in `jit_avx512_common_conv_kernel.cpp`). Fused attention takes blocks for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.step_allocations import cpu_allocations
from remat.pytorch.seam.torch_names import tree_leaves, tree_map

# Their memory does not depend on the contents of tensors, and they draw no random numbers.
_MEASURED = ("aten.convolution", "aten._scaled_dot_product_flash_attention_for_cpu")
_bytes_by_call: dict[tuple[Any, ...], int] = {}


def measured_bytes(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Returns the bytes that a call takes besides its arguments, fake or not, and results; None if not measured."""
    leaves = tree_leaves((args, kwargs))
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    if not str(operator).startswith(_MEASURED) or devices != {"cpu"}:
        return None
    key = str(operator), torch.get_num_threads(), *map(_layout, leaves)
    if key not in _bytes_by_call:
        results: list[Any] = []  # they are counted by whoever asks
        with real_tensors():
            args, kwargs = tree_map(_zeros, (args, kwargs))
            held = [*accumulate(cpu_allocations(lambda: results.append(operator(*args, **kwargs))), initial=0)]
        _bytes_by_call[key] = max(held) - held[-1]
    return _bytes_by_call[key]


def _layout(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.dtype, leaf.untyped_storage().nbytes(), leaf.shape, leaf.stride(), leaf.storage_offset()


def _zeros(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    dtype, size, *place = _layout(leaf)
    return torch.zeros(size // leaf.itemsize, dtype=dtype).as_strided(*place)
