"""Data parallel training in two processes, compiled and not, on different batches: run by `test_distributed.py`.

Prints, from rank 0, for each rank and each way to wrap a model: how many values each joint graph would save
by the rank's own plan and does save by the common one; and the largest relative difference of losses and
gradients from the run that is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from every_rank import print_what_every_rank_saw
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import remat
from costmodels import ByteTraffic
from remat import Graph, Plan
from remat.pytorch.run import ranks

Compile = Callable[[Any], Any]
WIDTH = 544
"""A layer is then 1.1 MiB: in buckets of one MiB each layer has its own, and DDP splits the graph between them."""


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).sigmoid().tanh().exp().sin()


class Net(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def replicated(model: nn.Module, compile: Compile, **options: Any) -> Any:
    return compile(DistributedDataParallel(model, **options))


def sharded(model: Net, compile: Compile) -> nn.Module:
    """Block by block, as FSDP2 asks for: its hooks are no part of any graph."""
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(compile(block))
    return fully_shard(model)


def train(blocks: int, width: int, wrap: Callable[..., Any], compile: Compile, **options: Any) -> list[Tensor]:
    """Losses and gradients of three steps."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Net(blocks, width)
    step = wrap(model, compile, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    seen: list[Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(torch.randn(4, width)).square().mean()
        loss.backward()
        gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
        seen += [loss.detach(), *(g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in gradients)]
        optimizer.step()
    return seen


def compared(
    blocks: int, width: int, wrap: Callable[..., Any], codegen: bool = False, **options: Any
) -> dict[str, Any]:
    """Trains with and without a compiler; the ranks would choose differently."""
    mode: Any = "aggressive" if dist.get_rank() == 0 else "conservative"
    plans: list[tuple[int, int]] = []
    agreed = ranks.agreed

    def watched(mine: Plan | Exception, graph: Graph | None) -> Plan | Exception:
        plan = agreed(mine, graph)
        assert isinstance(mine, Plan)
        assert isinstance(plan, Plan)
        plans.append((len(mine.saved), len(plan.saved)))
        return plan

    def compile(model: Any) -> Any:
        return remat.compile(model, cost_model=ByteTraffic(mode=mode), codegen=codegen)

    with patch.object(ranks, "agreed", watched):
        ours = train(blocks, width, wrap, compile, **options)
    theirs = train(blocks, width, wrap, lambda model: model, **options)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))
    return {"plans": plans, "error": error}


UNCOMPILED: dict[str, Callable[[], dict[str, Any]]] = {
    "DDP in buckets": lambda: compared(3, WIDTH, replicated, bucket_cap_mb=1),
    "FSDP2": lambda: compared(2, 16, sharded),
}
"""Scenarios without code generation, which `two_ranks.py` plays as well."""

COMPILED: dict[str, Callable[[], dict[str, Any]]] = {
    "DDP": lambda: compared(1, 16, replicated, codegen=True),
}


if __name__ == "__main__":
    print_what_every_rank_saw(COMPILED)
