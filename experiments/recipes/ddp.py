"""Data parallel training of two processes: `python -m experiments.recipes.ddp`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from experiments.recipes.beside import compare
from experiments.recipes.small_model import SmallModel, batches


def train(**how: Any) -> list[float]:
    """Trains on every second batch, and returns the losses of this rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(SmallModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    torch.manual_seed(dist.get_rank())  # dropout differs from rank to rank
    losses: list[float] = []
    for x, y in batches(8)[dist.get_rank() :: dist.get_world_size()]:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    compare(train, processes=2)
