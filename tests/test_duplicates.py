"""The experiment that counts what duplicating values within a pass saves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from experiments.bench import duplicates
from experiments.models import workloads
from experiments.models.workloads import Sample


class Gate(nn.Module):
    """Backward, several kernels read the sigmoid on CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        z = y * y.sigmoid()
        return (z / z.std((2, 3), keepdim=True)).mean((2, 3))


def gated() -> Sample:
    return Gate(), (torch.randn(4, 8, 32, 32),)


def test_bytes_with_the_pass_beside_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is something to gain, and where there is not; forward and backward add up."""
    zoo = {"gate": gated, "perceptron": lambda: workloads.perceptron(layers=1, dropout=0.1)}
    monkeypatch.setattr(duplicates, "KERNEL_ZOO", zoo)
    gate, perceptron = ({"case": name, **row} for name in zoo for row in duplicates.measure(name))
    assert duplicates.fewer(gate) > 0 == duplicates.fewer(perceptron)
    for row in (gate, perceptron):
        for side in ("forward", "backward"):
            assert 0 < row["after"][f"{side}_kernels"] <= row["before"][f"{side}_kernels"]
    assert "on 1 of 2 models: gate" in duplicates.summary([gate, perceptron])[0]


def test_counting_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    duplicates.counted(model, (torch.randn(4, 8),), {})
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
