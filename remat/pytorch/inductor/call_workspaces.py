"""Measures what a library takes from torch's allocator during one call, by making that call once on this machine.

oneDNN alone decides into which layouts a convolution's image and filters are copied, and its choice depends on the
processor and the number of threads. Gradients of filters are an example: with AVX2, `init_conf` in oneDNN 3.12's
`jit_avx2_conv_kernel_f32.cpp` pads an image of one channel to eight (three channels stay as they are); with AVX-512,
`jit_avx512_common_conv_kernel.cpp` reads it as it lies. An image of 8 KiB takes 64 KiB in the first case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.step_allocations import cpu_allocations
from remat.pytorch.seam.torch_names import tree_flatten, tree_unflatten

# Their memory does not depend on the contents of tensors, and they draw no random numbers.
_MEASURED = ("aten.convolution", "aten._scaled_dot_product_flash_attention_for_cpu")
_found: dict[tuple[Any, ...], int] = {}


def measured_bytes(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Returns the bytes that a call takes besides its arguments and results; None for a call that is not measured.

    Args:
        operator: an operator of `torch.ops`.
        args, kwargs: what it is called with; fake tensors will do, whose contents nobody reads.
    """
    leaves, structure = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not str(operator).startswith(_MEASURED) or any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    layouts = [_layout(leaf) if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
    key = str(operator), torch.get_num_threads(), *layouts
    if key not in _found:
        kept: list[Any] = []  # results are counted by whoever asks
        with real_tensors():
            made = [_zeros(*of) if isinstance(leaf, Tensor) else leaf for leaf, of in zip(leaves, layouts, strict=True)]
            args, kwargs = tree_unflatten(made, structure)
            held = [*accumulate(cpu_allocations(lambda: kept.append(operator(*args, **kwargs))), initial=0)]
        _found[key] = max(held) - held[-1]
    return _found[key]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.dtype, elements, tensor.shape, tensor.stride(), tensor.storage_offset()


def _zeros(dtype: torch.dtype, elements: int, *place: Any) -> Tensor:
    return torch.zeros(elements, dtype=dtype).as_strided(*place)
