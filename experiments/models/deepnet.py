"""Makes the encoder of DeepNet, a transformer of hundreds of layers; nothing to download."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class DeepLayer(nn.Module):
    """Applies a post-norm layer whose residual connections are scaled up (DeepNorm), with attention written out."""

    def __init__(self, width: int, heads: int, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x * self.scale + self.attend(x))
        return self.norm2(x * self.scale + self.down(F.relu(self.up(x))))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        return self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))


class DeepEncoder(nn.Module):
    """Applies an encoder of many layers, and returns the loss of the words that are labelled (Wang et al. 2022)."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(DeepLayer(width, heads, (2 * layers) ** 0.25) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.words(words) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
