"""A small model for recipes: blocks of normalization, two linear layers, and dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block, as in a transformer without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class SmallModel(nn.Module):
    """A few blocks, and the loss of a regression."""

    def __init__(self, blocks: int = 2, width: int = 32) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Block(width) for _ in range(blocks))), nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.head(self.blocks(x)).squeeze(-1), y)


def batches(count: int, rows: int = 4096, width: int = 32) -> list[tuple[Tensor, Tensor]]:
    """Makes random batches, the same ones each time."""
    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(rows, width, generator=random) for _ in range(count)]
    return [(x, x.sin().sum(-1)) for x in inputs]
