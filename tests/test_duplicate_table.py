"""The experiment that counts what duplicating values within a pass saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from experiments.models import workloads
from experiments.models.workloads import Sample
from experiments.traffic_study import duplicate_table


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


def test_bytes_with_the_pass_beside_those_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is something to gain, and where there is not; forward and backward add up."""
    zoo = {"gate": gated, "perceptron": lambda: workloads.perceptron(layers=1, dropout=0.1)}
    monkeypatch.setattr(duplicate_table, "KERNEL_ZOO", zoo)
    duplicate_table.main(only="", output=tmp_path)
    gate, perceptron = json.loads((tmp_path / "duplicate.json").read_text())["rows"]
    moved = [gate[side]["forward_bytes"] + gate[side]["backward_bytes"] for side in ("before", "after")]
    assert gate["ratio"] == pytest.approx(moved[1] / moved[0])
    assert gate["ratio"] < 1
    assert perceptron["ratio"] == 1
    for row in (gate, perceptron):
        for side in ("forward", "backward"):
            assert 0 < row["after"][f"{side}_kernels"] <= row["before"][f"{side}_kernels"]
    text = (tmp_path / "duplicate.md").read_text()
    assert f"| gate | {moved[0] / 1e6:.2f} | {moved[1] / 1e6:.2f} | {100 * (gate['ratio'] - 1):+.1f} % |" in text
    assert "| perceptron | " in text


def test_counting_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    duplicate_table.compared(model, (torch.randn(4, 8),))
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no model has 'nothing' in its name; there are GPT"):
        duplicate_table.main(only="nothing", output=tmp_path)
