"""A plain loop in mixed precision that accumulates gradients: `python -m experiments.recipes.amp_accumulation`."""

from __future__ import annotations

from typing import Any

import torch

from experiments.recipes.beside import compare
from experiments.recipes.small_model import SmallModel, batches

ACCUMULATED = 2


def train(**how: Any) -> list[float]:
    """Trains in bfloat16, two batches a step, and returns the loss of each batch."""
    torch.manual_seed(0)
    model = SmallModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")  # as for float16; bfloat16 needs none

    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    losses: list[float] = []
    for i, (x, y) in enumerate(batches(8), 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        scaler.scale(loss / ACCUMULATED).backward()
        if i % ACCUMULATED == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    compare(train)
