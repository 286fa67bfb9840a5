"""Makes models of the kinds that people train, at sizes to choose.

`KERNEL_ZOO` has them at sizes that Inductor compiles in seconds, yet large enough for bytes to mean something:
what passes between two kernels is mostly a quarter of a megabyte or more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models.zoo import gpt2

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Encoder(nn.Module):
    """Applies a pre-norm transformer layer with fused attention, as in a vision transformer."""

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


class Residual(nn.Module):
    """Applies a basic block of a ResNet: two 3x3 convolutions with batch normalization, around a shortcut."""

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
    """Classifies images by a ResNet of basic blocks, with the stem of ImageNet."""

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
    """Applies a layer of an MLP-Mixer: one perceptron over the patches, one over the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Applies an MLP-Mixer to patches that are given."""

    def __init__(self, layers: int, patches: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Mix(patches, width) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, patches: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(patches).mean(1)), label)


class Recurrent(nn.Module):
    """Runs two LSTM cells over a sequence, step by step, with a skip from the first step: nothing repeats exactly."""

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


class Post(nn.Module):
    """Applies a post-norm transformer layer that sees no padding, as in BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = self.norm1(x + self.project(self.attend(x, padding)))
        return self.norm2(x + self.mlp(x))

    def attend(self, x: Tensor, padding: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + padding
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)


class Bert(nn.Module):
    """Applies post-norm layers and the head of a masked language model; returns the loss of masked words."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Post(width, heads) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, real: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.positions.weight)
        padding = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, float("-inf"))[:, None, None]
        for layer in self.layers:
            x = layer(x, padding)
        return F.cross_entropy(F.linear(self.head(x), self.words.weight, self.bias).flatten(0, 1), labels.flatten())


class EvoNorm(nn.Module):
    """Divides a swish by the deviation of its group of channels: EvoNorm S0 (Liu et al. 2020)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.v, self.gamma, self.beta = (nn.Parameter(torch.full((1, width, 1, 1), value)) for value in (1.0, 1.0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        batch, width, *image = x.shape
        grouped = x.view(batch, self.groups, width // self.groups, *image)
        deviation = (grouped.var((2, 3, 4), keepdim=True) + 1e-5).sqrt().expand_as(grouped).reshape(x.shape)
        return x * torch.sigmoid(self.v * x) / deviation * self.gamma + self.beta


class ConvNet(nn.Module):
    """Classifies images by convolutions, each with EvoNorm, and the mean; returns the loss."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [3] + [width] * layers
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), EvoNorm(wide, 8))
                for narrow, wide in itertools.pairwise(widths)
            )
        )
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(image).mean((2, 3))), label)


def gpt_small(layers: int = 2, fused: bool = False) -> Sample:
    """Makes a GPT-2-style language model with attention written out, or as one operator."""
    model, args = gpt2(layers=layers, width=128, heads=4, vocabulary=512, context=64, batch=8, fused=fused)
    return model, args


def bert(layers: int = 1) -> Sample:
    """Makes a BERT-style model; a quarter of each sentence is padding, a sixth of the words is masked."""
    tokens = torch.randint(512, (8, 64))
    masked = torch.rand(8, 64) < 1 / 6
    return Bert(layers, 128, 4, 512, 64), (tokens, torch.arange(64).expand(8, 64) < 48, tokens.where(masked, -100))


def resnet(blocks: tuple[int, ...] = (2, 2, 2, 2), width: int = 16, batch: int = 8) -> Sample:
    """Makes a ResNet-18 of a quarter of the width, on images of 64 x 64."""
    return ResNet(blocks, width, 10), (torch.randn(batch, 3, 64, 64), torch.randint(10, (batch,)))


def mixer(layers: int = 6) -> Sample:
    """Makes an MLP-Mixer on 64 patches."""
    return Mixer(layers, 64, 128), (torch.randn(8, 64, 128), torch.randint(10, (8,)))


def recurrent(steps: int = 12, width: int = 64, batch: int = 16) -> Sample:
    """Makes two LSTM cells over a sequence."""
    return Recurrent(width), (torch.randn(batch, steps, width),)


def convnet(layers: int = 3) -> Sample:
    """Makes convolutions with EvoNorm, on images of 32 x 32."""
    return ConvNet(layers, 32, 10), (torch.randn(8, 3, 32, 32), torch.randint(10, (8,)))


def perceptron(layers: int = 3, dropout: float | None = None) -> Sample:
    """Makes linear layers, each with GeLU and layer normalization, or with ReLU and `dropout` where that is given."""
    width, rows = 256, 512
    made = [
        nn.Sequential(
            nn.Linear(width, width),
            *((nn.GELU(), nn.LayerNorm(width)) if dropout is None else (nn.ReLU(), nn.Dropout(dropout))),
        )
        for _ in range(layers)
    ]
    return nn.Sequential(*made, nn.Linear(width, width)), (torch.randn(rows, width),)


def encoder(layers: int = 2) -> Sample:
    """Makes PyTorch's own transformer encoder, with dropout."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers), (torch.randn(8, 64, 128),)


KERNEL_ZOO: dict[str, Callable[[], Sample]] = {
    "GPT, attention written out": gpt_small,
    "GPT, fused attention": lambda: gpt_small(fused=True),
    "BERT": bert,
    "ResNet": lambda: resnet(blocks=(1, 1), width=32, batch=16),
    "MLP-Mixer": lambda: mixer(layers=2),
    "EvoNorm": convnet,
    "LayerNorm-GeLU MLP": perceptron,
    "dropout MLP": lambda: perceptron(dropout=0.1),
    "nn.TransformerEncoder": encoder,
    "LSTM cells": lambda: recurrent(steps=4, width=128, batch=512),
}
"""Makers of models and their inputs, by name; set a seed before the call."""
