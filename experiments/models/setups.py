"""Sets a model up as people train it: under autocast, with adapters of low rank, in float8, or sharded."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.nn.utils import parametrize
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 8


class Autocast(nn.Module):
    """Runs a model in bfloat16, its parameters in single precision: the casts are part of the step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast(args[0].device.type, torch.bfloat16):
            return self.model(*args)


class Adapted(nn.Module):
    """Adds a trained product of low rank to a frozen linear layer (LoRA, Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.layer, self.scale, self.dropout = layer, alpha / rank, nn.Dropout(dropout)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.scale * self.up(self.down(self.dropout(x)))


def with_adapters(
    model: nn.Module, layers: tuple[str, ...], rank: int, alpha: float, dropout: float = 0.0
) -> nn.Module:
    """Freezes a model, and adapts its linear layers of these names, in place."""
    model.requires_grad_(False)
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if name in layers and isinstance(layer, nn.Linear):
                setattr(owner, name, Adapted(layer, rank, alpha, dropout))
    return model


class Float8Product(torch.autograd.Function):
    """Multiplies by the transpose of a weight in float8, in both passes; gradients have the format of longer range.

    Each tensor has one scale, by its largest value (Micikevicius et al. 2022, FP8 formats for deep learning).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_scale = _in_float8(x, torch.float8_e4m3fn)
        weight8, weight_scale = _in_float8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        return torch._scaled_mm(x8, weight8.t(), x_scale, weight_scale, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        (gradient,) = gradients
        gradient8, scale = _in_float8(gradient, torch.float8_e5m2)
        # The second factor must lie in memory column by column.
        right, left, inputs = weight8.t().contiguous().t(), gradient8.t().contiguous(), x8.t().contiguous().t()
        return (
            torch._scaled_mm(gradient8, right, scale, weight_scale, out_dtype=gradient.dtype),
            torch._scaled_mm(left, inputs, scale, x_scale, out_dtype=gradient.dtype),
        )


def _in_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns a copy of one byte for each element, and the number by which it is to be multiplied."""
    largest = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


class Float8Linear(nn.Module):
    """Applies the weight of a linear layer without bias in float8."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return Float8Product.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])  # pyright: ignore


def in_float8(model: nn.Module, layers: tuple[str, ...]) -> nn.Module:
    """Exchanges the linear layers of these names, in place."""
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if name in layers and isinstance(layer, nn.Linear):
                setattr(owner, name, Float8Linear(layer))
    return model


def gathered(shard: Tensor) -> Tensor:
    """Gathers the shares of all ranks."""
    known = ("all_gather_single_autograd", "all_gather_tensor_autograd")  # the latter up to torch 2.12
    gather = next(getattr(collectives, name) for name in known if hasattr(collectives, name))
    return gather(shard, 0, dist.group.WORLD)


class Gathered(nn.Module):
    """Makes a parameter whole of what each rank holds of it; its gradient is summed and scattered."""

    def forward(self, shard: Tensor) -> Tensor:
        return gathered(shard)

    def right_inverse(self, whole: Tensor) -> Tensor:
        """Gives the first rank's share, without its contents."""
        return whole.new_empty(whole.shape[0] // RANKS, *whole.shape[1:])


def sharded(model: nn.Module) -> nn.Module:
    """Shards all parameters by rows, in place: each is gathered where it is used (SimpleFSDP, Zhang et al. 2024)."""
    for module in list(model.modules()):
        for name, _ in list(module.named_parameters(recurse=False)):
            parametrize.register_parametrization(module, name, Gathered(), unsafe=True)
    return model


@contextmanager
def ranks() -> Generator[None]:
    """Says that this process is the first of a group, of which there are no others: collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()
