"""One prediction tells what several changes of a plan do to its step time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import remat
from costmodels import RecomputeTime
from remat import Graph
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.improve import joint_effects as module
from remat.improve.joint_effects import joint_effects
from remat.improve.peak_plans import PeakPlans
from remat.improve.step_predictor import StepPredictor, predictor_on

LAYERS = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(x).sin()))


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    return remat.capture(model, torch.randn(128, 64, requires_grad=True))


def changes_of(graph: Graph, *, near: bool) -> tuple[Choice, list[list[Choice]]]:
    """Returns a plan that saves the products alone, and plans that save one more value each.

    All of these values belong to one layer if `near`; if not, each has a layer of its own.
    """
    plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
    ops = np.array(graph.ops)[graph.plannable]
    before = plans.legal(np.array([op.startswith("aten.addmm") for op in ops]))
    pointwise = [np.flatnonzero([op.startswith(f"aten.{name}.") for op in ops])[:LAYERS] for name in ("sin", "tanh")]
    values = [of[2] for of in pointwise] if near else [pointwise[i % 2][i] for i in range(1, LAYERS - 1)]
    return before, [[plans.also_saving(before, np.array([v]))] for v in values]


def alone(graph: Graph, predictor: StepPredictor, before: Choice, changed: list[list[Choice]]) -> list[float]:
    ns = [predictor.ns(graph.for_all_values(choice.saved)) for choice in (before, *(one for (one,) in changed))]
    return [after - ns[0] for after in ns[1:]]


@pytest.mark.parametrize("near", [False, True])
def test_each_effect_is_that_of_the_change_alone(graph: Graph, near: bool) -> None:
    predictor = predictor_on(graph, "h100")
    assert predictor is not None
    before, changed = changes_of(graph, near=near)
    expected = alone(graph, predictor, before, changed)
    effects = joint_effects(predictor, before, changed)
    assert any(expected)
    assert [effects[i] for i in range(len(changed))] == pytest.approx(expected, abs=1e-6)


def test_changes_in_different_layers_share_one_prediction(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = predictor_on(graph, "h100")
    assert predictor is not None
    monkeypatch.setattr(module, "_VALUES", 0)
    monkeypatch.setattr(module, "_STEPS", 1)
    before, changed = changes_of(graph, near=False)
    assert len(joint_effects(predictor, before, changed)) == LAYERS - 2
    assert len(joint_effects(predictor, *changes_of(graph, near=True))) == 1
