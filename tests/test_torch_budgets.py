"""PyTorch's own memory budgets, read as plans and put beside a frontier."""

from __future__ import annotations

import pytest
import torch
from depth import deep_except
from torch import nn
from torch._functorch import config

import remat
from experiments.bench import budget_kernels
from experiments.bench.budgets import best, compared, illegal, summary
from experiments.models import workloads
from remat import Corpus, InvalidPlan
from remat.answer.plan_facts import PlanFacts
from remat.improve.byte_budgets import default_saved_bytes
from remat.pytorch.measure.torch_budgets import torchs_choice_at, torchs_plans, torchs_plans_of


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


def test_the_table_by_kernels_keeps_to_what_pytorchs_plan_saves() -> None:
    row, same, whole = budget_kernels.compared(Corpus.open().graph("small-dropout-mlp"), 5, [0.3, 0.4, 1.0])
    assert row == same | {"budget": 0.3}  # PyTorch's plans at both are equal
    for fact in ("saved_bytes", "recompute_ns"):
        assert budget_kernels.change(row, "portfolio", fact) <= 0
    assert budget_kernels.change(row, "portfolio", "traffic_bytes") > 0
    assert all(budget_kernels.change(row, "no_worse", fact) <= 0 for fact in budget_kernels.FACTS)
    fewer = row["pytorch"] | {"kernels": row["pytorch"]["kernels"] - 1}
    assert budget_kernels.is_better(row | {"no_worse": fewer})
    assert not budget_kernels.is_better(row | {"no_worse": row["pytorch"]})
    assert not budget_kernels.is_better(row | {"no_worse": row["portfolio"]})
    assert row["pytorch"]["saved_bytes"] < whole["pytorch"]["saved_bytes"]
    assert whole["pytorch"]["traffic_bytes"] > 0


def test_pytorchs_plan_with_dropout_is_refused_below_a_budget_of_one() -> None:
    """It recomputes the seed (pytorch#190758)."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 16))
    ((graph, plans),) = torchs_plans(model, torch.randn(4, 16), budgets=(0.0, 1.0))
    assert "inductor_seeds" in illegal(graph, plans[0.0])
    assert illegal(graph, plans[1.0]) == ""
    with pytest.raises(InvalidPlan, match=r"cannot be recomputed \(.*\), but is: 'inductor_seeds"):
        remat.frontier(graph).price(plans[0.0])


def test_the_table_of_the_experiment_counts_what_it_claims() -> None:
    torch.manual_seed(0)
    model, args = workloads.mixer(layers=1)
    ((graph, plans),) = torchs_plans(model, *args, budgets=(0.3, 1.0))
    rows = list(compared(graph, plans, "roofline", 5.0))
    assert [row["illegal"] for row in rows] == ["", ""]
    assert all(row["bound"] <= row["ours"] <= row["pytorch"] for row in rows)
    worse = [row | {"ours": row["pytorch"] + 1} for row in rows]
    assert "ours costs less in 0, as much in 0, more in 2" in summary(worse)[0]
    assert "more in 0" in summary(rows)[0].splitlines()[1]


def test_no_plan_saves_so_little() -> None:
    problem = remat.Problem.of([0], needed=[0], save_bytes=[8], cannot_recompute={0: "a seed"})
    assert best(problem, 7, 1.0) is None
    assert best(problem, 8, 1.0).objective == 0


def test_settings_of_torch_are_put_back() -> None:

    before = config.activation_memory_budget, config.activation_memory_budget_solver
    with pytest.raises(RuntimeError, match="valid ranges"):
        torchs_choice_at(torch.fx.Graph(), None, 2.0)
    assert (config.activation_memory_budget, config.activation_memory_budget_solver) == before
