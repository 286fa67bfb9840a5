"""One prediction tells what several changes of a plan do to its step time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import remat
from costmodels import RecomputeTime
from remat import Corpus, Graph
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.improve import joint_effects as module
from remat.improve.joint_effects import joint_effects
from remat.improve.one_liners import one_liners
from remat.improve.peak_plans import PeakPlans
from remat.improve.step_predictor import StepPredictor, predictor_on
from tests.modules import ModuleOf, Step

LAYERS = 8


def layer() -> nn.Module:
    step: Step = lambda net, x: x + net.second(torch.tanh(net.first(x).sin()))  # noqa: E731
    return ModuleOf(step, first=nn.Linear(64, 256), second=nn.Linear(256, 64))


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = nn.Sequential(*(layer() for _ in range(LAYERS)))
    return remat.capture(model, torch.randn(128, 64, requires_grad=True))


def h100(graph: Graph) -> StepPredictor:
    predictor = predictor_on(graph, "h100")
    assert predictor is not None
    return predictor


def plans_of(graph: Graph) -> PeakPlans:
    return PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))


def saving_products(graph: Graph, plans: PeakPlans) -> Choice:
    return plans.legal.saving(np.array([graph.ops[v].startswith("aten.addmm") for v in graph.plannable]))


def one_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VALUES", 0)
    monkeypatch.setattr(module, "_STEPS", 1)


def changes_of(graph: Graph, *, near: bool) -> tuple[Choice, list[list[Choice]]]:
    """Returns a plan that saves the products alone, and plans that save one more value each.

    All of these values belong to one layer if `near`; if not, each has a layer of its own.
    """
    plans = plans_of(graph)
    ops = np.array(graph.ops)[graph.plannable]
    before = saving_products(graph, plans)
    pointwise = [np.flatnonzero([op.startswith(f"aten.{name}.") for op in ops])[:LAYERS] for name in ("sin", "tanh")]
    values = [of[2] for of in pointwise] if near else [pointwise[i % 2][i] for i in range(1, LAYERS - 1)]
    return before, [[plans.legal.also_saving(before, np.array([v]))] for v in values]


def alone(graph: Graph, predictor: StepPredictor, before: Choice, changed: list[list[Choice]]) -> list[float]:
    ns = [predictor.ns(graph.for_all_values(choice.saved)) for choice in (before, *(one for (one,) in changed))]
    return [after - ns[0] for after in ns[1:]]


@pytest.mark.parametrize("near", [False, True])
def test_each_effect_is_that_of_the_change_alone(graph: Graph, near: bool) -> None:
    predictor = h100(graph)
    before, changed = changes_of(graph, near=near)
    expected = alone(graph, predictor, before, changed)
    effects = joint_effects(predictor, before, changed)
    assert any(expected)
    assert [effects[i] for i in range(len(changed))] == pytest.approx(expected, abs=1e-6)


def test_changes_in_different_layers_share_one_prediction(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = h100(graph)
    one_step_only(monkeypatch)
    before, changed = changes_of(graph, near=False)
    assert len(joint_effects(predictor, before, changed)) == LAYERS - 2
    assert len(joint_effects(predictor, *changes_of(graph, near=True))) == 1


def twins() -> nn.Module:
    """One kernel computes both of two values, which touch nothing in common."""
    both: Step = lambda net, x: net.first(x.sin()) * net.second(x.cos())  # noqa: E731
    return ModuleOf(both, first=nn.Linear(64, 64), second=nn.Linear(64, 64))


def test_changes_that_meet_in_a_kernel_are_predicted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = remat.capture(twins(), torch.randn(128, 64))
    predictor = h100(graph)
    plans = plans_of(graph)
    before = saving_products(graph, plans)
    values = [plans.problem.index[name] for name in ("sin", "cos")]
    changed = [[plans.legal.also_saving(before, np.array([v]))] for v in values]
    expected = alone(graph, predictor, before, changed)
    assert joint_effects(predictor, before, changed) == pytest.approx(dict(enumerate(expected)), abs=1e-6)
    one_step_only(monkeypatch)
    assert joint_effects(predictor, before, changed) == {}


def test_a_change_alone_counts_kernels_that_compute_none_of_its_values() -> None:
    graph = Corpus.open().graph("small-bert")
    predictor = h100(graph)
    plans = plans_of(graph)
    saved = dict(one_liners(predictor.graph))["activation_memory_budget = 0.35"]
    before = plans.legal.saving(saved[graph.plannable])
    changed = [plans.legal.also_saving(before, np.array([plans.problem.index[name]])) for name in ("bmm_1", "addmm_1")]
    expected = alone(graph, predictor, before, [[one] for one in changed])
    assert [joint_effects(predictor, before, [[one]])[0] for one in changed] == pytest.approx(expected, abs=1e-6)
