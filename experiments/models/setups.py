"""Sets a model up as people train it: under autocast, with adapters of low rank, or sharded over processes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

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
