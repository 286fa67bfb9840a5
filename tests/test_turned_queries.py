"""Attention that turns queries and keys by their positions, as in Llama, has the kernels and the peak of Inductor."""

from __future__ import annotations

import pytest
import torch
from kernel_facts import assert_as_inductor
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat.problem.costmodel import CostModel


class Turned(nn.Module):
    """Four heads of queries and two of keys and values, in half precision; the angles are in single precision."""

    def __init__(self, *, normalized: bool) -> None:
        super().__init__()
        sizes = (64, 32, 32, 64)
        self.linear = nn.ModuleList(nn.Linear(64, n, bias=False, dtype=torch.bfloat16) for n in sizes)
        norms = [nn.RMSNorm(n, dtype=torch.bfloat16) if normalized else nn.Identity() for n in sizes[:2]]
        self.norms, self.frequencies = nn.ModuleList(norms), nn.Parameter(torch.rand(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None, :, None].float()
        angles = (positions * self.frequencies).repeat(1, 1, 2)
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        if isinstance(self.norms[0], nn.Identity):
            cos, sin = cos.bfloat16(), sin.bfloat16()

        def turned(y: Tensor) -> Tensor:
            other = torch.cat([-y[..., 8:], y[..., :8]], -1)
            return (y * cos[:, None] + other * sin[:, None]).bfloat16()

        q, k, v = (linear(x) for linear in self.linear[:3])
        q, k, v = (y.unflatten(-1, (-1, 16)).transpose(1, 2) for y in (self.norms[0](q), self.norms[1](k), v))
        k, v = (y[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for y in (turned(k), v))
        mixed = nn.functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        return self.linear[3](mixed.transpose(1, 2).flatten(2)).float().square().mean()


@pytest.mark.parametrize(
    ("normalized", "cost_model"),
    [
        # The gradient of a key computes the same sine for two slices, which counts as one operation.
        (False, ByteTraffic(mode="aggressive")),
        # A query that two calls read is laid out as the loop that writes it reads.
        (False, MemoryBudget(0.0)),
        # A query is laid out otherwise than in eager mode, and so is the result of attention.
        (True, MemoryBudget(0.0)),
    ],
    ids=str,
)
def test_queries_that_are_turned_by_position(normalized: bool, cost_model: CostModel) -> None:
    x = torch.randn(2, 256, 64, dtype=torch.bfloat16)
    graph = remat.capture(Turned(normalized=normalized), x, device="h100")
    assert_as_inductor(graph, remat.solve(cost_model.pose(graph)).plan, peak=True)
