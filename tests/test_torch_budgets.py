"""PyTorch's own memory budgets, read as plans and put beside a frontier."""

from __future__ import annotations

import pytest
import torch
from depth import deep_except
from torch import nn
from torch._functorch import config

import remat
from experiments.models import workloads
from remat import Corpus, InvalidPlan
from remat.answer.plan_facts import PlanFacts
from remat.improve.byte_budgets import default_saved_bytes
from remat.pytorch.measure.torch_budgets import torchs_plans, torchs_plans_of
from remat.pytorch.seam.torch_partitioner import torchs_choice


def test_every_budget_of_pytorch_is_at_or_above_our_frontier() -> None:
    torch.manual_seed(0)
    model, args = workloads.mixer(layers=2)
    ((graph, plans),) = torchs_plans(model, *args, budgets=(0.0, 0.2, 0.5, 1.0))
    curve = remat.frontier(graph, estimator="flops")
    points = [curve.price(plan) for plan in plans.values()]
    assert list(plans) == [0.0, 0.2, 0.5, 1.0]
    assert points[0][0] == 0 < points[1][0] < points[3][0]
    for saved_bytes, cost in points:
        assert curve.bound(saved_bytes) <= cost


SHARES = ["small-layernorm-gelu-mlp", "small-evonorm", "vgg19", "gpt2-small-bf16"]


@pytest.mark.parametrize("name", deep_except(["small-layernorm-gelu-mlp", "vgg19"], SHARES))
def test_a_share_of_one_is_what_pytorchs_default_saves(name: str) -> None:
    """Of these the fastest plan saves between 512 bytes less and 2.8 times as much."""
    graph = Corpus.open().graph(name)
    default = torchs_plans_of(graph, [1.0])[1.0]
    assert default_saved_bytes(graph) == PlanFacts.of(graph, default).saved_bytes


def test_pytorchs_plan_with_dropout_is_refused_below_a_budget_of_one() -> None:
    """It recomputes the seed (pytorch#190758)."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 16))
    ((graph, plans),) = torchs_plans(model, torch.randn(4, 16), budgets=(0.0, 1.0))
    remat.check_plan(remat.plugin.base_problem(graph), plans[1.0])
    with pytest.raises(InvalidPlan, match=r"cannot be recomputed \(.*\), but is: 'inductor_seeds"):
        remat.frontier(graph).price(plans[0.0])


def test_settings_of_torch_are_put_back() -> None:

    before = config.activation_memory_budget, config.activation_memory_budget_solver
    with pytest.raises(RuntimeError, match="valid ranges"):
        torchs_choice(torch.fx.Graph(), None, 2.0)
    assert (config.activation_memory_budget, config.activation_memory_budget_solver) == before
