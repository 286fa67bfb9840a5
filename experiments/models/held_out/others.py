"""Makes held-out models that take tables, sets, graphs and functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from experiments.models.held_out.sequences import floats
from experiments.models.workloads import Sample


class Clicks(nn.Module):
    """Predicts clicks from bags of words and all pairs of products by a perceptron, as DLRM does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(256, width, mode=mode) for mode in ("sum", "mean"))
        self.dense = nn.Linear(13, width)
        self.head = nn.Sequential(nn.Linear(width + 3, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, words: Tensor, numbers: Tensor, clicked: Tensor) -> Tensor:
        dense = self.dense(numbers.log1p()).relu()
        vectors = torch.stack([dense, *(bag(words) for bag in self.bags)], 1)
        i, j = torch.tril_indices(3, 3, -1)
        pairs = (vectors @ vectors.transpose(1, 2))[:, i, j]
        logits = self.head(torch.cat([dense, pairs], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(logits, clicked)


class Messages(nn.Module):
    """Computes sums and means over the neighbours of each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sent = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        total = torch.zeros_like(x).index_add(0, target, sent)
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        return (self.update(torch.cat([x, total / degree[:, None]], 1)).tanh() - x).square().mean()


class NeighbourAttention(nn.Module):
    """Computes a softmax over the neighbours of each node, by scatters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(width, width), nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        y = self.project(x)
        scores = F.leaky_relu(self.score(torch.cat([y[source], y[target]], 1)), 0.2)[:, 0]
        most = torch.full((len(x),), -1e9).scatter_reduce(0, target, scores.detach(), "amax")
        weights = (scores - most[target]).exp()
        total = torch.zeros(len(x)).scatter_add(0, target, weights)
        mixed = torch.zeros_like(y).index_add(0, target, (weights / total[target])[:, None] * y[source])
        return F.mse_loss(F.selu(mixed), x)


class Sorted(nn.Module):
    """Compares distributions in order: by a sort, a cumulative maximum, and a median."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.map(x)
        ordered = z.sort(0).values
        return (ordered - y.sort(0).values).abs().mean() + (z - z.median(1, True).values).cummax(1).values.mean()


class Points(nn.Module):
    """Takes the maximum over the points of a set, with batch normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, width), nn.Linear(width, 2 * width)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(2 * width)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, points: Tensor, real: Tensor, label: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.one(points).transpose(1, 2))).transpose(1, 2)
        x = self.norm2(self.two(x).transpose(1, 2))
        best = x.masked_fill(~real[:, None], -1e9).max(2).values
        mean = (x * real[:, None]).sum(2) / real.sum(1, keepdim=True)
        return F.nll_loss(F.log_softmax(self.head(torch.cat([best, mean], 1)), -1), label)


class Variational(nn.Module):
    """Encodes and decodes with random draws and a divergence (a variational autoencoder)."""

    def __init__(self, width: int, code: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(width, 512), nn.Softplus(), nn.Linear(512, 2 * code))
        self.decode = nn.Sequential(nn.Linear(code, 512), nn.Softplus(), nn.Linear(512, width))

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
        return F.binary_cross_entropy_with_logits(self.decode(drawn), x) + divergence.mean()


class Contrast(nn.Module):
    """Contrasts two normalized towers: each row and each column has to find its own partner."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.scale.exp() * F.normalize(self.left(x), dim=-1) @ F.normalize(self.right(y), dim=-1).T
        own = scores.diagonal()
        return (scores.logsumexp(0) - own).mean() + (scores.logsumexp(1) - own).mean()


class Distances(nn.Module):
    """Computes all distances within a batch, and a hinge loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        far = torch.cdist(self.map(x), self.map(y))
        return F.relu(far.diagonal()[:, None] - far + 0.2).triu(1).mean() + F.cosine_similarity(x, self.map(y)).mean()


class RungeKutta(nn.Module):
    """Integrates three steps of four stages each (Runge-Kutta)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for h in (0.1, 0.2, 0.3):
            a = self.f(x)
            b = self.f(x + h / 2 * a)
            c = self.f(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + self.f(x + h * c))
        return (x - target).norm(dim=-1).mean()


class Mixture(nn.Module):
    """Computes the density of a mixture of Gaussians whose parameters a net gives."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts, self.net = parts, nn.Linear(width, 3 * parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight, mean, scale = self.net(F.silu(x)).chunk(3, -1)
        scale = F.softplus(scale) + 1e-3
        density = torch.distributions.Normal(mean, scale, validate_args=False).log_prob(y[:, None])
        return -(weight.log_softmax(-1) + density).logsumexp(-1).mean()


class Radiance(nn.Module):
    """Encodes places by sines and cosines, and computes what light is left along a ray."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(36, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, places: Tensor, color: Tensor) -> Tensor:
        angles = (places[..., None] * 2.0 ** torch.arange(6)).flatten(-2)
        found = self.net(torch.cat([angles.sin(), angles.cos()], -1))
        opaque = 1 - torch.exp(-F.relu(found[..., 3]) * 0.1)
        left = torch.cumprod(1 - opaque + 1e-10, 1)
        return F.mse_loss(((opaque * left)[..., None] * found[..., :3].sigmoid()).sum(1), color)


class Buckets(nn.Module):
    """Sorts numbers into buckets, and weighs their one-hot codes."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 31))
        self.weights, self.head = nn.Parameter(torch.randn(columns, 32, width) / 8), nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hot = F.one_hot(torch.bucketize(x, self.edges), 32).float()
        columns = torch.einsum("bcn,cnd->bcd", hot, self.weights)
        return F.mse_loss(self.head(F.hardtanh(columns).prod(1))[:, 0], y)


class Critic(nn.Module):
    """Divides weights by their largest singular value, and computes a hinge loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = spectral_norm(nn.Linear(width, width)), spectral_norm(nn.Linear(width, 1))

    def forward(self, real: Tensor, fake: Tensor) -> Tensor:
        good, bad = (self.two(F.leaky_relu(self.one(x), 0.2)) for x in (real, fake))
        return F.relu(1 - good).mean() + F.relu(1 + bad).mean()


def _graph(model: Callable[[], nn.Module]) -> Callable[[], Sample]:
    return lambda: (model(), (torch.randn(512, 128), *torch.randint(512, (2, 2048)).unbind()))


MODELS: dict[str, Callable[[], Sample]] = {
    "DLRM: embedding bags, pairs of products": lambda: (
        Clicks(64),
        (torch.randint(256, (512, 16)), torch.rand(512, 13), torch.rand(512).round()),
    ),
    "graph network: index_add": _graph(lambda: Messages(128)),
    "graph attention: scatter_reduce, scatter_add": _graph(lambda: NeighbourAttention(128)),
    "sort, cummax, median": floats(lambda: Sorted(256), (256, 256), (256, 256)),
    "PointNet: batch norm, max over points": lambda: (
        Points(64),
        (torch.randn(16, 128, 3), torch.rand(16, 128) < 0.9, torch.randint(10, (16,))),
    ),
    "VAE: random draws, softplus": floats(lambda: Variational(784, 64), (256, 784)),
    "contrastive: normalize, logsumexp": floats(lambda: Contrast(256), (256, 256), (256, 256)),
    "cdist, hinge, cosine similarity": floats(lambda: Distances(256), (256, 256), (256, 256)),
    "neural ODE: Runge-Kutta, tanh": floats(lambda: RungeKutta(128), (512, 128), (512, 128)),
    "mixture density: softplus, logsumexp": floats(lambda: Mixture(128, 32), (1024, 128), (1024,)),
    "radiance field: sin, cos, cumprod": floats(lambda: Radiance(128), (64, 32, 3), (64, 3)),
    "buckets, one-hot, prod": floats(lambda: Buckets(8, 64), (512, 8), (512,)),
    "spectral norm, hinge": floats(lambda: Critic(256), (512, 256), (512, 256)),
}
"""Makers of the models, by what these contain."""
