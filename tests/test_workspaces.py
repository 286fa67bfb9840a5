"""What a convolution takes on a CPU beside its tensors is stated as torch's allocator hands it out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from remat.predict.buffers.workspaces import call_bytes
from remat.predict.kernels.ir import Buffer
from remat.pytorch.inductor.rehearsed import measured_bytes

ATEN: Any = torch.ops.aten
IMAGE, FILTERS, BOTH = [True, False, False], [False, True, False], [True, True, False]


@dataclass(frozen=True)
class Convolution:
    """Convolves images, or makes the gradients that are named; images of two dimensions have their channels last."""

    image: tuple[int, ...]
    filters: tuple[int, ...]
    gradients: list[bool] | None = None
    stride: int = 1
    groups: int = 1
    transposed: bool = False
    part: bool = False  # the gradient is a part of a tensor

    def call(self) -> tuple[Any, tuple[Any, ...], list[Tensor]]:
        """The operator, its arguments, and its results."""
        dims = len(self.image) - 2
        layout = torch.channels_last if dims == 2 else torch.contiguous_format
        image, filters = (torch.zeros(s).to(memory_format=layout) for s in (self.image, self.filters))
        pad = 0 if self.stride > 1 else self.filters[2] // 2
        how = [self.stride] * dims, [pad] * dims, [1] * dims, self.transposed, [0] * dims, self.groups
        result = ATEN.convolution.default(image, filters, None, *how)
        if self.gradients is None:
            return ATEN.convolution.default, (image, filters, None, *how), [result]
        gradient = torch.cat([result, result], 2)[:, :, : result.shape[2]] if self.part else torch.zeros_like(result)
        args = gradient, image, filters, None, *how, self.gradients
        made = ATEN.convolution_backward.default(*args)
        return ATEN.convolution_backward.default, args, [one for one in made if one is not None]


# Bytes that torch 2.13 took with two threads on a CPU with AVX-512.
TRACED = {
    "few channels": (Convolution((4, 3, 32, 32), (64, 3, 8, 8), stride=8), 61_488),
    "few channels, of filters": (Convolution((4, 3, 32, 32), (64, 3, 8, 8), FILTERS, stride=8), 98_304),
    "few channels, of a part": (Convolution((4, 3, 32, 32), (64, 3, 8, 8), FILTERS, stride=8, part=True), 114_688),
    "three results": (Convolution((2, 64, 16, 16), (3, 64, 3, 3)), 49_200),
    "three results, of images": (Convolution((2, 64, 16, 16), (3, 64, 3, 3), IMAGE), 19_376),
    "no whole blocks": (Convolution((4, 24, 16, 16), (40, 24, 3, 3)), 53_808),
    "no whole blocks, of images": (Convolution((4, 24, 16, 16), (40, 24, 3, 3), IMAGE), 58_544),
    "no whole blocks, of both": (Convolution((4, 24, 16, 16), (40, 24, 3, 3), BOTH), 89_856),
    "wide filters": (Convolution((2, 3, 64, 64), (40, 3, 16, 16), FILTERS, stride=16), 1_180_032),
    "wide filters, one image": (Convolution((1, 3, 224, 224), (192, 3, 16, 16), FILTERS, stride=16), 3_563_904),
    "groups": (Convolution((2, 96, 16, 16), (96, 24, 3, 3), groups=4), 122_928),
    "small groups": (Convolution((2, 32, 16, 16), (32, 8, 3, 3), groups=4), 9_216),
    "groups of one": (Convolution((2, 32, 16, 16), (32, 1, 3, 3), groups=32), 1_152),
    "groups of one, of images": (Convolution((2, 32, 16, 16), (32, 1, 3, 3), IMAGE, groups=32), 1_152),
    "transposed": (Convolution((2, 32, 16, 16), (32, 16, 3, 3), transposed=True), 30_896),
    "signals": (Convolution((2, 64, 1599), (64, 64, 3), stride=2), 867_840),
    "signals, of images": (Convolution((4, 24, 300), (40, 24, 5), IMAGE), 299_520),
    "signals, no whole blocks": (Convolution((4, 24, 300), (40, 24, 5)), 230_400),
    "signals of one channel": (Convolution((2, 1, 500), (16, 1, 7)), 64_000),
    "volumes": (Convolution((2, 32, 8, 8, 8), (24, 32, 3, 3, 3)), 274_432),
    "volumes, of both": (Convolution((2, 32, 12, 12, 12), (48, 32, 3, 3, 3), BOTH), 1_105_920),
    "transposed, of images": (Convolution((2, 32, 16, 16), (32, 16, 2, 2), IMAGE, 2, transposed=True), 20_656),
}


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with threads_of_torch(2):
        yield


def buffer(tensor: Tensor) -> Buffer:
    return Buffer(tensor.untyped_storage().data_ptr(), tuple(tensor.shape), tensor.itemsize, tensor.stride())


def stated(operator: Any, args: Sequence[Any], results: Sequence[Tensor], threads: int) -> int:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    stored = {(storage := one.untyped_storage()).data_ptr(): storage.nbytes() for one in tensors}
    return call_bytes(str(operator), [*map(buffer, tensors)], [*map(buffer, results)], stored, threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", TRACED)
def test_a_convolution_takes_what_is_stated(name: str) -> None:
    convolution, traced = TRACED[name]
    operator, args, results = convolution.call()
    assert stated(operator, args, results, 2) == pytest.approx(traced, rel=0.01)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":  # elsewhere blocks are smaller, and others are copied
        assert measured_bytes(operator, args, {}) == pytest.approx(traced, rel=0.01)


@pytest.mark.parametrize("gradients", [None, [True, True, True]])
@pytest.mark.parametrize("groups", [1, 4])
def test_one_thread_convolves_by_positions_without_onednn(groups: int, gradients: list[bool] | None) -> None:
    """For torch's own convolution, only the results of several groups take more: they are copied into one tensor."""
    convolution = Convolution((8, 32, 16, 16), (32, 32 // groups, 1, 1), gradients, groups=groups)
    with threads_of_torch(1):
        operator, args, results = convolution.call()
        assert stated(operator, args, results, 1) == measured_bytes(operator, args, {})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("of_result", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 64, 8), (2, 4, 256, 64), (1, 2, 300, 32)])
def test_attention_takes_blocks_and_copies_a_gradient(
    shape: tuple[int, ...], inside: bool, of_result: bool, threads: int
) -> None:
    """The gradient is copied unless the heads of each row lie side by side."""
    batch, heads, rows, width = shape
    queries, keys, values = (
        torch.randn(batch, rows, heads, width).transpose(1, 2) if inside else torch.randn(shape) for _ in range(3)
    )
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result, sums = attention.default(queries, keys, values)
    gradient = torch.randn_like(result) if of_result else torch.randn(shape)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    args = gradient, queries, keys, values, result, sums, 0.0, False
    results = backward(*args)
    with threads_of_torch(threads):
        measured = measured_bytes(backward, args, {})
    assert call_bytes(str(backward), [*map(buffer, args[:6])], [*map(buffer, results)], {}, threads) == measured
