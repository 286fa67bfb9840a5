"""Chooses the attention kernel that libtorch with CUDA would choose, for a libtorch without CUDA.

`F.scaled_dot_product_attention` is a single operator until its device is known. The rules are those of torch 2.13 in
`aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` (`select_sdp_backend` and its checks) and `attention.cpp`, for
GPUs of compute capability 8.0 and 9.0; comments name the checks. On 9.0, torch prefers cuDNN from 9.15.1 on
(`check_prefer_cudnn_attention`), which its wheels contain since 2.10.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import pad

from remat.errors import CaptureError
from remat.pytorch.seam.gpu_sheets import GpuSheet
from remat.pytorch.seam.torch_names import scoped_library

_HALVES = (torch.float16, torch.bfloat16)
# Flash attention pads heads to a multiple of so many elements (`pad_last_dim<8>`), the efficient one pads masks.
_ALIGNED = 8


@contextmanager
def attention_of(sheet: GpuSheet) -> Generator[None]:
    """Replaces `scaled_dot_product_attention` of CUDA tensors by the operator that torch would choose on a GPU."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        chosen = choice(sheet, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa=enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = _as_numbers(attn_mask, query)
        if chosen == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if chosen == "math":
            math = torch.ops.aten._scaled_dot_product_attention_math
            return math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
        # If so, the operator also returns the logarithm of each row's sum (`should_compute_logsumexp`).
        backward_follows = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
        if chosen == "cudnn":
            cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
            return cudnn(query, key, value, attn_mask, backward_follows, dropout_p, is_causal, False, scale=scale)[0]
        if attn_mask is not None:
            attn_mask = _padded(attn_mask).expand(*query.shape[:3], key.shape[2])
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(query, key, value, attn_mask, backward_follows, dropout_p, is_causal, scale=scale)[0]

    with scoped_library("aten", "IMPL") as library:
        library.impl("scaled_dot_product_attention", attend, "AutogradCUDA")
        yield


def choice(
    sheet: GpuSheet,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    enable_gqa: bool,
) -> str:
    """Returns "cudnn", "flash", "efficient" or "math", like `select_sdp_backend`.

    Args:
        query, key, value: (batch, heads, length, size of a head).
    """
    tensors = (query, key, value)
    size, half = query.shape[-1], query.dtype in _HALVES
    if not (
        all(tensor.dim() == 4 and tensor.dtype == query.dtype for tensor in tensors)  # check_tensor_shapes, _dtype
        and _alike(query, key, value, enable_gqa)  # check_batch_size_and_num_heads_dense
        and query.shape[-2] * key.shape[-2]  # check_nonzero_sequence_lengths_dense
    ):
        return "math"
    ones = all(tensor.stride(-1) == 1 for tensor in tensors)  # check_last_dim_stride_equals_1_dense
    same = size == key.shape[-1] == value.shape[-1]
    half_and_rows = half and (ones or size == 1)
    enabled = torch.backends.cuda
    if half_and_rows and enabled.cudnn_sdp_enabled() and _prefers_cudnn(sheet):
        fits = _cudnn_takes(query, key, value, attn_mask, dropout_p)
        if fits and max(size, value.shape[-1]) > 128:  # the limit of check_cudnn_tensor_shapes
            raise CaptureError(
                f"whether torch takes cuDNN or flash attention on {sheet.name} for heads of {size} depends on the "
                f"versions of both: decide it, for example with torch.backends.cuda.enable_cudnn_sdp(False)"
            )
        if fits:
            return "cudnn"
    square = not is_causal or query.shape[-2] == key.shape[-2]  # check_flash_causal_non_square_seqlens
    if half_and_rows and enabled.flash_sdp_enabled() and attn_mask is None and same and size <= 256 and square:
        return "flash"
    sizes = {size, value.shape[-1]}
    # check_head_dim_size_mem_efficient
    aligned = size == key.shape[-1] and all(n > 0 and n % (8 if half else 4) == 0 for n in sizes)
    if not (enabled.mem_efficient_sdp_enabled() and (half or query.dtype == torch.float32) and ones and aligned):
        return "math"
    if enable_gqa and query.shape[1] != key.shape[1]:
        raise CaptureError(
            f"whether memory-efficient attention takes grouped queries ({query.shape[1]} heads for {key.shape[1]}) "
            f"depends on the release of torch: repeat keys and values, or capture in a half precision"
        )
    return "efficient"


def _alike(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    batches, heads = ({tensor.shape[i] for tensor in (query, key, value)} for i in (0, 1))
    if enable_gqa:
        return len(batches) == 1 and key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    return len(batches) == 1 and len(heads) == 1


def _prefers_cudnn(sheet: GpuSheet) -> bool:
    return sheet.major in (9, 10) and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") not in ("1", "true", "TRUE")


def _cudnn_takes(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float) -> bool:
    length, of_keys = query.shape[-2], key.shape[-2]
    return (
        (attn_mask is None or _mask_fits(attn_mask, query, key))
        and (dropout_p * 16).is_integer()  # check_cudnn_dropout
        and not torch.are_deterministic_algorithms_enabled()
        and query.shape[-1] % 8 == value.shape[-1] % 8 == 0
        and of_keys != 1
        and (not dropout_p or length != 1)
        and max(query.shape[:2]) <= 65535
    )


# As `check_attn_mask_shape`.
def _mask_fits(attn_mask: Tensor, query: Tensor, key: Tensor) -> bool:
    whole = (*query.shape[:3], key.shape[2])[4 - attn_mask.dim() :] if attn_mask.dim() in (2, 4) else ()
    fits = all(n in (1, m) for n, m in zip(attn_mask.shape, whole, strict=False))
    return bool(whole) and fits and not attn_mask.requires_grad


def _flash(q: Tensor, k: Tensor, v: Tensor, drop: float, causal: bool, scale: float | None) -> Tensor:
    size = q.shape[-1]
    padding = (0, -size % _ALIGNED)
    q, k, v = (pad(tensor, padding) if padding[1] else tensor for tensor in (q, k, v))
    scale = size**-0.5 if scale is None else scale
    result = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, drop, causal, False, scale=scale)[0]
    return result[..., :size] if padding[1] else result


# As `convert_boolean_attn_mask`.
def _as_numbers(mask: Tensor, query: Tensor) -> Tensor:
    return torch.where(mask, torch.zeros((), dtype=query.dtype, device=mask.device), float("-inf")).to(query.dtype)


# As `preprocess_mask`: rows must begin at multiples of 8 elements.
def _padded(mask: Tensor) -> Tensor:
    if mask.stride(-1) == 1 and all(step % _ALIGNED == 0 for step in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return pad(mask, (0, _ALIGNED - length % _ALIGNED))[..., :length]
