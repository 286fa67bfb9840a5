"""Predicted kernels of networks over images are Inductor's, and their peaks those of the code that it writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat.predict.kernels import kernels
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.inductor.scheduled import Scheduled


class Normalized(nn.Module):
    """Convolutions with group norms, whose scales go through as_strided, and a short cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (8, 16, 16))
        self.short, self.last = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(nn.functional.silu(self.norms[0](x)))
        h = self.second(nn.functional.silu(self.norms[1](h)))
        return self.last(nn.functional.silu(self.norms[2](h + self.short(x)))).square().mean()


class Attending(nn.Module):
    """Images that become rows of a matrix, and images again."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.behind = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.norm, self.into, self.out = nn.GroupNorm(4, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ahead(x)
        rows = self.norm(h).flatten(2).transpose(1, 2)
        q, k, v = self.into(rows).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.behind(h + self.out(mixed).transpose(1, 2).unflatten(2, h.shape[2:])).square().mean()


class Joined(nn.Module):
    """Images side by side: a gradient is cut, and its parts go to convolutions and past them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(n, 8, 3, padding=1) for n in (4, 8, 16, 8))
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (8, 16))

    def forward(self, x: Tensor) -> Tensor:
        a = self.convolutions[0](x)
        b = self.convolutions[1](nn.functional.silu(self.norms[0](a)))
        c = self.convolutions[2](nn.functional.silu(self.norms[1](torch.cat([a, b], 1))))
        return self.convolutions[3](c + a).square().mean()


MODELS = [(Normalized, 8), (Attending, 4), (Joined, 4)]
PLANS = {"default": ByteTraffic(), "half": MemoryBudget(0.5), "least": MemoryBudget(0)}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("make", "channels"), MODELS)
def test_kernels_and_peaks_of_images_are_inductors(make: type[nn.Module], channels: int, plan: str) -> None:
    graph = remat.capture(make(), torch.randn(2, channels, 8, 8))
    chosen = remat.solve(PLANS[plan].pose(graph)).plan
    counted = Scheduled(graph).kernels(chosen)
    predicted = kernels(graph, chosen)
    assert sorted((k.backward, k.bytes) for k in predicted) == sorted((k.backward, k.bytes) for k in counted)
    assert remat.timeline(graph, chosen).peak_bytes == rehearsed_peak(graph, chosen)
