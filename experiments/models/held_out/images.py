"""Makes held-out models that take images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models import published
from experiments.models.workloads import Sample


class GroupNormUNet(nn.Module):
    """Applies a U-Net of two levels, with group normalization and SiLU, upsampled bilinearly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.bottom = self.block(3, width), self.block(width, 2 * width)
        self.outer, self.head = self.block(3 * width, width), nn.Conv2d(width, 3, 1)

    @staticmethod
    def block(narrow: int, wide: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(narrow, wide, 3, padding=1), nn.GroupNorm(8, wide), nn.SiLU())

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        skip = self.inner(image)
        low = self.bottom(F.avg_pool2d(skip, 2))
        up = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        return F.mse_loss(self.head(self.outer(torch.cat([up, skip], 1))), target)


class SmallVGG(nn.Module):
    """Applies convolutions with biases, maximum pooling, and linear layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        narrow = 3
        for wide in (32, 64):
            layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            narrow = wide
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(64 * 64, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 10))

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(image).flatten(1)), label)


class ChannelsLastBlock(nn.Module):
    """Applies a block of ConvNeXt: depthwise 7x7, layer normalization over channels, perceptron, channel scales."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class SuperResolution(nn.Module):
    """Applies PReLU between convolutions, shuffles channels into pixels, and takes an absolute error."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, width, 5, padding=2), nn.PReLU(width)),
            *(nn.Conv2d(width, width, 3, padding=1), nn.PReLU(width), nn.Conv2d(width, 12, 3, padding=1)),
            nn.PixelShuffle(2),
        )

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(self.layers(image), target)


class Pyramid(nn.Module):
    """Joins three scales of an image by nearest and bicubic upsampling, and takes a smooth absolute error."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Conv2d(narrow, width, 3, stride, 1) for narrow, stride in ((3, 1), (width, 2), (width, 2))
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        scales = [image]
        for stage in self.stages:
            scales.append(F.leaky_relu(stage(scales[-1]), 0.1))
        x = self.lateral[2](scales[3])
        for lateral, scale in zip(list(self.lateral)[1::-1], scales[2:0:-1], strict=True):
            x = F.interpolate(x, size=scale.shape[-2:], mode="nearest") + lateral(scale)
        return F.smooth_l1_loss(F.interpolate(self.head(x), scale_factor=2, mode="bicubic"), target)


class Generator(nn.Module):
    """Makes an image from an image: reflected borders, instance normalization, transposed convolutions, tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width, affine=True), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width), nn.ReLU()),
            *(nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.InstanceNorm2d(width), nn.ReLU()),
            *(nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh()),
        )

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(self.layers(image), target)


class Video(nn.Module):
    """Applies convolutions and pooling in three dimensions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv3d(3, width, 3, padding=1), nn.Conv3d(width, width, 3, padding=1)
        self.norm, self.head = nn.BatchNorm3d(width), nn.Linear(width, 10)

    def forward(self, frames: Tensor, label: Tensor) -> Tensor:
        x = F.max_pool3d(F.relu(self.norm(self.one(frames))), (1, 2, 2))
        return F.cross_entropy(self.head(F.elu(self.two(x)).mean((2, 3, 4))), label)


class SpatialTransformer(nn.Module):
    """Moves an image by an affine map that a small net finds, and classifies it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(3, 8, 7, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.affine, self.conv = nn.Linear(128, 6), nn.Conv2d(3, width, 5, padding=2)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        grid = F.affine_grid(self.affine(self.find(image)).view(-1, 2, 3), list(image.shape), align_corners=False)
        x = self.conv(F.grid_sample(image, grid, align_corners=False))
        return F.cross_entropy(self.head(F.relu(x).amax((2, 3))), label)


class Detector(nn.Module):
    """Computes a focal loss of the classes, and the generalized overlap of boxes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, 2, 1)
        self.classes, self.boxes = nn.Conv2d(width, classes, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, image: Tensor, truth: Tensor, boxes: Tensor) -> Tensor:
        x = F.mish(self.conv(image))
        logits, found = self.classes(x), self.boxes(x).exp()
        p = logits.sigmoid()
        cross = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
        focal = (0.25 * (1 - (p * truth + (1 - p) * (1 - truth))) ** 2 * cross).sum()
        left, right = torch.minimum(found[:, :2], boxes[:, :2]), torch.minimum(found[:, 2:], boxes[:, 2:])
        common = (left + right).clamp(min=0).prod(1)
        union = (found[:, :2] + found[:, 2:]).prod(1) + (boxes[:, :2] + boxes[:, 2:]).prod(1) - common
        return focal / truth.numel() + (1 - common / union.clamp(min=1e-6)).mean()


class Shuffle(nn.Module):
    """Applies grouped 1x1 convolutions, shuffles their channels, and pools to several sizes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = published.conv(3, width, 3, 1)
        self.inner, self.outer = nn.Conv2d(width, width, 1, groups=4), nn.Conv2d(width, width, 1, groups=4)
        self.head = nn.Linear(width * 21, 10)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.stem(image)
        y = F.channel_shuffle(F.relu(self.inner(x)), 4)
        x = x + self.outer(y)
        pools = [F.adaptive_max_pool2d(x, n).flatten(1) for n in (1, 2, 4)]
        return F.cross_entropy(self.head(torch.cat(pools, 1)), label)


class Classified(nn.Module):
    """Classifies by given layers and the mean over the image; returns the loss."""

    def __init__(self, width: int, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 10)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(image).mean((2, 3))), label)


def _labelled(model: Callable[[], nn.Module], *shape: int) -> Callable[[], Sample]:
    return lambda: (model(), (torch.randn(*shape), torch.randint(10, shape[:1])))


def _regressed(model: Callable[[], nn.Module], shape: tuple[int, ...], times: int = 1) -> Callable[[], Sample]:
    batch, channels, *sides = shape
    target = (batch, channels, *(times * side for side in sides))
    return lambda: (model(), (torch.randn(shape), torch.randn(target)))


def _mobile(act: Any, squeezes: bool) -> nn.Module:
    layers = [published.inverted(16, 16, 4, 3, 1, act, squeezes), published.inverted(16, 32, 4, 5, 2, act, squeezes)]
    return Classified(32, published.conv(3, 16, 3, 1, act=act), *layers)


def _dense() -> nn.Module:
    transition = (nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 32, 1, bias=False), nn.AvgPool2d(2))
    layers = (published.conv(3, 32, 3), published.Dense(32, 16), published.Dense(48, 16))
    return Classified(48, *layers, *transition, published.Dense(32, 16))


def _next() -> nn.Module:
    return Classified(48, nn.Conv2d(3, 48, 4, 4), ChannelsLastBlock(48), ChannelsLastBlock(48))


def _resnext() -> nn.Module:
    return published.bottleneck_net((1, 1), (32, 64), group_width=8, expansion=2, stem=32)


MODELS: dict[str, Callable[[], Sample]] = {
    "U-Net: group norm, SiLU, bilinear upsampling": _regressed(lambda: GroupNormUNet(32), (4, 3, 32, 32)),
    "VGG: max pooling, dropout": _labelled(SmallVGG, 8, 3, 32, 32),
    "MobileNet: depthwise convolution, ReLU6": _labelled(lambda: _mobile(nn.ReLU6, False), 8, 3, 32, 32),
    "MobileNet: squeeze and excitation, hard swish": _labelled(lambda: _mobile(nn.Hardswish, True), 8, 3, 32, 32),
    "ResNeXt: grouped convolutions": _labelled(_resnext, 8, 3, 64, 64),
    "DenseNet: concatenations, average pooling": _labelled(_dense, 8, 3, 32, 32),
    "ConvNeXt: channels last, layer scale": _labelled(_next, 8, 3, 64, 64),
    "super-resolution: PReLU, pixel shuffle": _regressed(lambda: SuperResolution(32), (4, 3, 32, 32), 2),
    "pyramid: nearest and bicubic interpolation": _regressed(lambda: Pyramid(32), (4, 3, 32, 32), 2),
    "generator: reflection, instance norm": _regressed(lambda: Generator(32), (4, 3, 32, 32)),
    "video: 3-d convolution and pooling": _labelled(lambda: Video(16), 4, 3, 8, 32, 32),
    "spatial transformer: grid sample": _labelled(lambda: SpatialTransformer(32), 8, 3, 32, 32),
    "detector: focal loss, overlap of boxes": lambda: (
        Detector(32, 16),
        (torch.randn(4, 3, 64, 64), torch.rand(4, 16, 32, 32).round(), torch.rand(4, 4, 32, 32)),
    ),
    "channel shuffle, adaptive max pooling": _labelled(lambda: Shuffle(32), 8, 3, 32, 32),
}
"""Makers of the models, by what these contain."""
