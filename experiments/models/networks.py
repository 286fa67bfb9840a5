"""Makes ResNeSt, VoVNet and ALBERT in plain PyTorch, at sizes to choose. Each returns its loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models.published import Classifier, ResidualSum, conv
from experiments.models.workloads import Bert
from experiments.models.zoo import gelu


class SplitAttention(nn.Module):
    """Convolves to two groups of channels, and sums these, weighed by a perceptron over their means."""

    def __init__(self, width: int, radix: int = 2) -> None:
        super().__init__()
        self.radix, narrow = radix, max(width * radix // 4, 32)
        self.split = conv(width, width * radix, 3, groups=radix)
        self.down = nn.Sequential(nn.Conv2d(width, narrow, 1), nn.BatchNorm2d(narrow), nn.ReLU())
        self.up = nn.Conv2d(narrow, width * radix, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, *image = x.shape
        parts = self.split(x).view(batch, self.radix, width, *image)
        weights = self.up(self.down(parts.sum(1).mean((2, 3), keepdim=True)))
        return (parts * weights.view(batch, self.radix, width, 1, 1).softmax(1)).sum(1)


def resnest(blocks: Sequence[int] = (1, 1, 1, 1), width: int = 64) -> Classifier:
    """Makes a ResNeSt-14d: bottlenecks around split attention, means in the place of strides (Zhang et al. 2020)."""
    half = width // 2
    stem = [conv(3, half, 3, 2), conv(half, half), conv(half, width), nn.MaxPool2d(3, 2, 1)]
    layers: list[nn.Module] = [nn.Sequential(*stem)]
    narrow = width
    for stage, depth in enumerate(blocks):
        middle = width * 2**stage
        for i in range(depth):
            shrinks = bool(stage) and not i
            branch = nn.Sequential(
                conv(narrow, middle, 1),
                SplitAttention(middle),
                nn.AvgPool2d(3, 2, 1) if shrinks else nn.Identity(),
                conv(middle, 4 * middle, 1, act=None),
            )
            mean = nn.AvgPool2d(2) if shrinks else nn.Identity()
            short = nn.Identity() if i else nn.Sequential(mean, conv(narrow, 4 * middle, 1, act=None))
            layers.append(ResidualSum(branch, short, nn.ReLU()))
            narrow = 4 * middle
    return Classifier(nn.Sequential(*layers), narrow)


class OneShot(nn.Module):
    """Applies convolutions in a chain, concatenates all their results once, and mixes them by a 1x1 convolution."""

    def __init__(self, narrow: int, middle: int, wide: int, depth: int) -> None:
        super().__init__()
        self.chain = nn.ModuleList(conv(middle if i else narrow, middle) for i in range(depth))
        self.mix = conv(narrow + depth * middle, wide, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.chain:
            found.append(layer(found[-1]))
        return self.mix(torch.cat(found, 1))


def vovnet(
    blocks: Sequence[int] = (1, 1, 2, 2),
    middles: Sequence[int] = (128, 160, 192, 224),
    wides: Sequence[int] = (256, 512, 768, 1024),
    stem: int = 64,
    depth: int = 5,
) -> Classifier:
    """Makes a VoVNet-39 (Lee and Park 2020), without the attention of its second version."""
    layers: list[nn.Module] = [nn.Sequential(conv(3, stem, 3, 2), conv(stem, stem), conv(stem, 2 * stem, 3, 2))]
    narrow = 2 * stem
    for stage, (count, middle, wide) in enumerate(zip(blocks, middles, wides, strict=True)):
        if stage:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for _ in range(count):
            layers.append(OneShot(narrow, middle, wide, depth))
            narrow = wide
    return Classifier(nn.Sequential(*layers), narrow)


class Albert(nn.Module):
    """Applies BERT with one set of weights for all layers, and the tanh GeLU written out (Lan et al. 2020)."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.bert = Bert(1, width, heads, vocabulary, length)
        self.bert.layers[0].mlp[1] = Gelu()
        self.bert.layers.extend(self.bert.layers[0] for _ in range(layers - 1))

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return self.bert(words, torch.ones_like(words, dtype=torch.bool), labels)


class Gelu(nn.Module):
    """Applies `gelu`, as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x)


class Scored(nn.Module):
    """Classifies images, and returns the loss."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.classifier(image), label)
