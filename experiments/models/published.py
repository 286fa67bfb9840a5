"""Makes convolutional nets at the widths that were published, and acquisition functions of Bayesian optimization.

Written out in plain PyTorch: nothing to download. Each net returns its loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models.workloads import EvoNorm

Norm = Callable[[int], nn.Module]


class Classifier(nn.Module):
    """Classifies by features of an image, their mean and a linear layer; returns the loss."""

    def __init__(self, features: nn.Module, width: int, classes: int = 1000) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(image).mean((2, 3))), label)


def conv(
    narrow: int,
    wide: int,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
    norm: Norm = nn.BatchNorm2d,
    act: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Makes a convolution without a bias, a normalization, and an activation unless it is None."""
    layers = [nn.Conv2d(narrow, wide, size, stride, size // 2, groups=groups, bias=False), norm(wide)]
    return nn.Sequential(*layers, *([act()] if act else []))


class ResidualSum(nn.Module):
    """Adds two branches, and applies an activation: a residual connection."""

    def __init__(self, branch: nn.Module, short: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.branch, self.short, self.act = branch, short, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.branch(x) + self.short(x))


def bottleneck_net(
    blocks: Sequence[int],
    widths: Sequence[int],
    group_width: int | None = None,
    expansion: int = 4,
    stem: int = 64,
    norm: Norm = nn.BatchNorm2d,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> Classifier:
    """Makes a net of 1x1, 3x3, 1x1: ResNet (He et al. 2016); with groups and expansion 1 RegNetX (Radosavovic 2020)."""
    pool = [nn.MaxPool2d(3, 2, 1)] if stem == 64 else []  # RegNet's stem has none
    layers: list[nn.Module] = [conv(3, stem, 7 if pool else 3, 2, norm=norm, act=act), *pool]
    narrow = stem
    for stage, (depth, width) in enumerate(zip(blocks, widths, strict=True)):
        wide = width * expansion
        for i in range(depth):
            stride = 2 if i == 0 and (stage or not pool) else 1
            groups = width // group_width if group_width else 1
            branch = nn.Sequential(
                conv(narrow, width, 1, norm=norm, act=act),
                conv(width, width, 3, stride, groups, norm=norm, act=act),
                conv(width, wide, 1, norm=norm, act=None),
            )
            same = stride == 1 and narrow == wide
            short = nn.Identity() if same else conv(narrow, wide, 1, stride, norm=norm, act=None)
            layers.append(ResidualSum(branch, short, act()))
            narrow = wide
    return Classifier(nn.Sequential(*layers), narrow)


def resnet50(blocks: Sequence[int] = (3, 4, 6, 3)) -> Classifier:
    """Makes a ResNet-50, or a ResNet-152 with blocks (3, 8, 36, 3)."""
    return bottleneck_net(blocks, (64, 128, 256, 512))


def regnetx() -> Classifier:
    """Makes a RegNetX-1.6GF: stages of 2, 4, 10 and 2 blocks, groups of 24 channels."""
    return bottleneck_net((2, 4, 10, 2), (72, 168, 408, 912), group_width=24, expansion=1, stem=32)


def evonorm50() -> Classifier:
    """Makes a ResNet-50 with EvoNorm-S0, 8 groups, in the place of batch normalization and ReLU (Liu et al. 2020)."""
    return bottleneck_net((3, 4, 6, 3), (64, 128, 256, 512), norm=lambda width: EvoNorm(width, 8), act=nn.Identity)


class VGG(nn.Module):
    """Classifies by 3x3 convolutions and three linear layers with dropout (VGG, Simonyan and Zisserman 2015).

    Of images with `side` pixels a side; `hidden` is the width of the linear layers.
    """

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int] = (64, 128, 256, 512, 512),
        hidden: int = 4096,
        side: int = 224,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        narrow, left = 3, side // 2 ** len(depths)
        for depth, wide in zip(depths, widths, strict=True):
            for _ in range(depth):
                layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU()]
                narrow = wide
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            *(nn.Linear(narrow * left**2, hidden), nn.ReLU(), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, 1000)),
        )

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(image).flatten(1)), label)


class Dense(nn.Module):
    """Concatenates what it computes to what it was given: a layer of a DenseNet."""

    def __init__(self, narrow: int, growth: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm2d(narrow), conv(narrow, 4 * growth, 1)
        self.outer = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.outer(self.inner(F.relu(self.norm(x))))], 1)


def densenet121(depths: Sequence[int] = (6, 12, 24, 16), growth: int = 32) -> Classifier:
    """Makes a DenseNet-121 (Huang et al. 2017)."""
    width = 2 * growth
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        if stage:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        layers += [Dense(width + growth * i, growth) for i in range(depth)]
        width += growth * depth
    return Classifier(nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU()), width)


class Squeeze(nn.Module):
    """Weighs channels by a perceptron over their means: squeeze and excitation (Hu et al. 2018)."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


def inverted(
    narrow: int, wide: int, expansion: int, size: int, stride: int, act: Callable[[], nn.Module], squeezes: bool
) -> nn.Module:
    """Makes an inverted residual: wide in the middle, where the convolution is depthwise."""
    middle = narrow * expansion
    branch = nn.Sequential(
        *([conv(narrow, middle, 1, act=act)] if expansion > 1 else []),
        conv(middle, middle, size, stride, middle, act=act),
        *([Squeeze(middle, max(1, narrow // 4))] if squeezes else []),
        conv(middle, wide, 1, act=None),
    )
    return ResidualSum(branch, nn.Identity(), nn.Identity()) if stride == 1 and narrow == wide else branch


def mobile(stages: Sequence[tuple[int, int, int, int, int]], act: Callable[[], nn.Module], squeezes: bool) -> nn.Module:
    """Makes stages of inverted residuals; each gives expansion, width, depth, stride and the kernel's size."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act=act)]
    narrow = 32
    for expansion, wide, depth, stride, size in stages:
        for i in range(depth):
            layers.append(inverted(narrow, wide, expansion, size, 1 if i else stride, act, squeezes))
            narrow = wide
    return Classifier(nn.Sequential(*layers, conv(narrow, 1280, 1, act=act)), 1280)


def mobilenet_v2() -> nn.Module:
    """Makes a MobileNetV2 (Sandler et al. 2018)."""
    wides = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    return mobile([(*stage, 3) for stage in wides], nn.ReLU6, squeezes=False)


def efficientnet_b0() -> nn.Module:
    """Makes an EfficientNet-B0 (Tan and Le 2019), without stochastic depth."""
    stages = (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
    return mobile(stages, nn.SiLU, squeezes=True)


class UNet(nn.Module):
    """Applies a U-Net (Ronneberger et al. 2015), padded so that sizes stay, with batch normalization."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        pairs = list(itertools.pairwise((3, *widths)))
        self.down = nn.ModuleList(nn.Sequential(conv(narrow, wide), conv(wide, wide)) for narrow, wide in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * wide, wide, 2, 2) for wide in widths[-2::-1])
        self.merge = nn.ModuleList(nn.Sequential(conv(2 * wide, wide), conv(wide, wide)) for wide in widths[-2::-1])
        self.head = nn.Conv2d(64, classes, 1)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x, skips = self.down[0](image), []
        for layer in self.down[1:]:
            skips.append(x)
            x = layer(F.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return F.cross_entropy(self.head(x), label)


class Posterior(nn.Module):
    """Draws samples of the posterior of independent Gaussian processes with an RBF kernel, one for each objective.

    Observed are `points` (n x d) with `targets` (objectives x n); the kernel is fitted elsewhere. The
    candidates are what one optimizes, so they are the parameter: `batch` sets of q points.
    """

    def __init__(self, batch: int, q: int, dims: int) -> None:
        super().__init__()
        self.candidates = nn.Parameter(torch.rand(batch, q, dims))

    def samples(self, points: Tensor, targets: Tensor, draws: Tensor) -> Tensor:
        """Returns samples x batch x q x objectives, from standard normal `draws` of that shape."""
        x, noise = self.candidates, 1e-4
        known = torch.linalg.cholesky(rbf(points, points) + noise * torch.eye(len(points), device=points.device))
        across = torch.linalg.solve_triangular(known, rbf(points, x), upper=False)
        mean = across.mT @ torch.linalg.solve_triangular(known, targets.T, upper=False)
        covariance = rbf(x, x) - across.mT @ across + noise * torch.eye(x.shape[1], device=x.device)
        return mean + torch.linalg.cholesky(covariance) @ draws


def rbf(x: Tensor, y: Tensor, scale: float = 0.2) -> Tensor:
    """Computes a Gaussian kernel, its distances written out."""
    return torch.exp(-((x.unsqueeze(-2) - y.unsqueeze(-3)) ** 2).sum(-1) / (2 * scale**2))


class ExpectedImprovement(Posterior):
    """Computes q-expected improvement by Monte Carlo (Wilson et al. 2018)."""

    def forward(self, points: Tensor, targets: Tensor, draws: Tensor) -> Tensor:
        best = targets.max()
        return -(self.samples(points, targets, draws)[..., 0] - best).clamp_min(0).amax(-1).mean(0).sum()


class ExpectedHypervolumeImprovement(Posterior):
    """Computes q-expected hypervolume improvement: inclusion and exclusion over subsets (Daulton et al. 2020)."""

    def forward(self, points: Tensor, targets: Tensor, draws: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Takes `lower` and `upper`, cells x objectives: the boxes that the current Pareto front leaves free."""
        samples = self.samples(points, targets, draws)
        q, total = samples.shape[-2], samples.new_zeros(samples.shape[:2])
        for size in range(1, q + 1):
            subsets = list(itertools.combinations(range(q), size))
            corner = samples[:, :, subsets].amin(-2)  # the best point that all points of a subset dominate
            sides = (torch.minimum(corner.unsqueeze(2), upper[:, None]) - lower[:, None]).clamp_min(0)
            total = total + (-1) ** (size + 1) * sides.prod(-1).sum((-1, -2))
        return -total.mean(0).sum()
