"""Makes small models of our own: nothing to download, sizes to choose."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Applies a pre-norm transformer block with attention and the tanh GeLU written out, as in GPT-2.

    With `fused`, attention is one operator instead.
    """

    def __init__(self, width: int, heads: int, dropout: float, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout, self.training)
        return x + F.dropout(self.down(gelu(self.up(self.norm2(x)))), self.dropout, self.training)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if self.fused:
            drop = self.dropout if self.training else 0.0
            heads = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)
            return self.project(heads.transpose(1, 2).reshape(batch, length, width))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = F.dropout(scores.masked_fill(future, float("-inf")).softmax(-1), self.dropout, self.training)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))


class GPT2(nn.Module):
    """Applies a GPT-2-style language model; `forward(tokens)` returns the next-token loss."""

    def __init__(
        self,
        *,
        layers: int = 2,
        width: int = 128,
        heads: int = 4,
        vocabulary: int = 512,
        context: int = 64,
        dropout: float = 0.0,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, fused) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gelu(x: Tensor) -> Tensor:
    """Computes the tanh approximation of GeLU, written out as in GPT-2's own code."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gpt2(*, batch: int = 4, device: str = "cpu", seed: int = 0, **sizes: int | float) -> tuple[GPT2, tuple[Tensor]]:
    """Makes a GPT-2-style model with random weights, and a batch of random tokens."""
    torch.manual_seed(seed)
    model = GPT2(**sizes).to(device)  # type: ignore[arg-type]
    context, vocabulary = model.positions.num_embeddings, model.tokens.num_embeddings
    return model, (torch.randint(vocabulary, (batch, context), device=device),)
