"""A loop with accelerate, two batches a step: `python -m experiments.recipes.accelerate_loop`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from experiments.recipes.beside import compare
from experiments.recipes.small_model import SmallModel, batches


def train(**how: Any) -> list[float]:
    """Trains and returns the loss of each batch."""
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(0)
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    # Not Accelerator(dynamo_backend="remat"): it knows no backend but PyTorch's own.
    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    data = DataLoader(batches(8), batch_size=None)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses: list[float] = []
    for x, y in data:
        with accelerator.accumulate(model):
            loss = model(x, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    compare(train)
