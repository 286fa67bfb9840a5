"""Predicted kernels of rotary positions are Inductor's: parts of what repeats are one read, wherever they begin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import remat
from costmodels import ByteTraffic
from remat.predict.kernels import kernels
from remat.pytorch.inductor.scheduled import Scheduled


def rotary(x: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    """The gradient is put together of slices; where angles are computed again, each slice reads the same positions."""
    y, angles = x * weight, positions.sin().repeat(1, 2)
    return y * angles + torch.cat([-y[..., 8:], y[..., :8]], -1) * (1 - angles)


def test_kernels_of_a_gradient_that_is_put_into_the_last_dimension_are_inductors() -> None:
    x = torch.randn(4, 6, 8, requires_grad=True)
    graph = remat.capture(lambda x: x.sin().select(2, 1).exp().sum(), x)
    assert any(op.startswith("aten.select_scatter") for op in graph.ops)
    plan = remat.solve(ByteTraffic().pose(graph)).plan
    counted = Scheduled(graph).kernels(plan)
    assert sorted((k.backward, k.bytes) for k in kernels(graph, plan)) == sorted((k.backward, k.bytes) for k in counted)


@pytest.mark.parametrize("device", ["cpu", "h100"])
@pytest.mark.parametrize("mode", ["conservative", "aggressive"])
def test_kernels_of_rotary_positions_are_inductors(mode: str, device: str) -> None:
    inputs = torch.zeros(2, 4, 32, 16), torch.zeros(16), torch.zeros(32, 8)
    graph = remat.capture(rotary, *(tensor.requires_grad_(i < 2) for i, tensor in enumerate(inputs)))
    plan = remat.solve(ByteTraffic(mode=mode).pose(graph)).plan
    assert ("repeat" in plan.saved) == (mode == "conservative")
    counted = Scheduled(graph, device=device).kernels(plan)
    predicted = kernels(graph, plan, backend="cpu" if device == "cpu" else "triton")
    assert sorted((k.backward, k.bytes) for k in predicted) == sorted((k.backward, k.bytes) for k in counted)
