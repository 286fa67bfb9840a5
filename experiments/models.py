"""Models of the kinds that people train, at sizes to choose: a vision transformer, a ResNet, a mixer, an LSTM."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.zoo import GPT2, gpt2

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Encoder(nn.Module):
    """A pre-norm transformer layer with fused attention, as in a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v)
        x = x + self.project(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, encoder layers, the mean over patches, a loss."""

    def __init__(self, layers: int, width: int, heads: int, image: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros((image // patch) ** 2, width))
        self.layers = nn.ModuleList(Encoder(width, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x.mean(1)), label)


class Residual(nn.Module):
    """A basic block of a ResNet: two 3x3 convolutions with batch normalization, around a shortcut."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        same = stride == 1 and narrow == wide
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    """A ResNet of basic blocks, with the stem of ImageNet."""

    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        narrow = width
        for stage, depth in enumerate(blocks):
            wide = width * 2**stage
            for i in range(depth):
                stages.append(Residual(narrow, wide, stride=2 if stage and not i else 1))
                narrow = wide
        self.blocks, self.head = nn.Sequential(*stages), nn.Linear(narrow, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(image)).mean((2, 3))), label)


class Mix(nn.Module):
    """A layer of an MLP-Mixer: one perceptron over the patches, one over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """An MLP-Mixer on patches that are given."""

    def __init__(self, layers: int, patches: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Mix(patches, width) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, patches: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(patches).mean(1)), label)


class Recurrent(nn.Module):
    """Two LSTM cells over a sequence, step by step, with a skip from the first step: nothing repeats exactly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.low, self.high = nn.LSTMCell(width, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(width, width)

    def forward(self, sequence: Tensor) -> Tensor:
        batch, length, width = sequence.shape
        state = zero = (sequence.new_zeros(batch, width), sequence.new_zeros(batch, width))
        loss = sequence.new_zeros(())
        for step in range(length - 1):
            zero = self.low(sequence[:, step], zero)
            state = self.high(zero[0] + sequence[:, 0], state)
            loss = loss + F.mse_loss(self.head(torch.tanh(state[0])), sequence[:, step + 1])
        return loss


def transformer(layers: int = 6, dropout: float = 0.0) -> Sample:
    """A GPT-2-style language model."""
    model, args = gpt2(layers=layers, width=128, heads=4, vocabulary=512, context=64, batch=4, dropout=dropout)
    assert isinstance(model, GPT2)
    return model, args


def vit(layers: int = 6) -> Sample:
    """A vision transformer on images of 64 x 64."""
    return ViT(layers, 128, 4, 64, 8, 10), (torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


def resnet(blocks: tuple[int, ...] = (2, 2, 2, 2)) -> Sample:
    """A ResNet-18 of a quarter of the width, on images of 64 x 64."""
    return ResNet(blocks, 16, 10), (torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


def mixer(layers: int = 6) -> Sample:
    """An MLP-Mixer on 64 patches."""
    return Mixer(layers, 64, 128), (torch.randn(8, 64, 128), torch.randint(10, (8,)))


def recurrent(steps: int = 12) -> Sample:
    """Two LSTM cells over a sequence."""
    return Recurrent(64), (torch.randn(16, steps, 64),)
