"""What users of PyTorch get in one line, and PyTorch's own memory budgets, read as plans and put beside a frontier."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from depth import deep_except
from torch import nn
from torch._functorch import config

import remat
from experiments.models import workloads
from remat import Choice, Corpus, Graph, InvalidPlan
from remat.answer.plan_facts import PlanFacts
from remat.facts.columns import BoolArray
from remat.improve.byte_budgets import default_saved_bytes
from remat.improve.one_liners import layers_of, one_liners
from remat.improve.torch_knapsack import torch_budget_plans
from remat.problem.constraints import base_problem
from remat.pytorch.measure.torch_budgets import torchs_plans, torchs_plans_of
from remat.pytorch.seam.torch_partitioner import torchs_choice

SMALL = ["small-resnet", "small-bert", "small-layernorm-gelu-mlp"]


def saved_bytes(graph: Graph, saved: BoolArray) -> int:
    return PlanFacts.of(graph, Choice.from_saved(graph, saved).plan(graph)).saved_bytes


@pytest.mark.deep
@pytest.mark.parametrize("name", SMALL)
def test_budgets_save_what_pytorch_saves_at_them(name: str) -> None:
    from remat.pytorch.measure.torch_budgets import torchs_plans_of

    graph = Corpus.open().graph(name)
    budgets = [0.2, 0.5, 0.7]
    expected = torchs_plans_of(graph, budgets, legal=True)
    for budget in budgets:
        ((_, ours),) = torch_budget_plans(graph, [budget])
        theirs = PlanFacts.of(graph, expected[budget]).saved_bytes
        assert saved_bytes(graph, ours) == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("name", [*SMALL, "small-gpt-fused-attention"])
def test_every_one_liner_is_a_legal_plan_on_the_owners_of_memory(name: str) -> None:
    graph = Corpus.open().graph(name)
    found = dict(one_liners(graph))
    assert next(iter(found)) == "PyTorch's default"
    for saved in found.values():
        remat.check_plan(base_problem(graph), Choice.from_saved(graph, saved).plan(graph))


def test_a_smaller_budget_saves_less() -> None:
    graph = Corpus.open().graph("small-bert")
    sizes = [saved_bytes(graph, saved) for _, saved in torch_budget_plans(graph)]
    assert len(sizes) > 5
    assert all(larger > smaller for larger, smaller in pairwise(sizes))


@pytest.mark.parametrize("named", [True, False], ids=["by modules", "by repeated blocks"])
def test_a_checkpointed_layer_saves_what_enters_it(named: bool) -> None:
    graph = Corpus.open().graph("hf-llama3-8b-lora" if named else "hf-gpt2-sdpa")
    assert any(graph.modules) is named
    layers = layers_of(graph)
    assert int(layers.max()) + 1 == (4 if named else 11)  # of 12: the first one begins in another way
    found = dict(one_liners(graph))
    every, second = found["every layer checkpointed"], found["every second layer checkpointed"]
    default = saved_bytes(graph, found["PyTorch's default"])
    assert saved_bytes(graph, every) < saved_bytes(graph, second) < default
    inside = (layers >= 0) & every & ~graph.cannot_recompute.mask
    leaves = graph.output.copy()
    crossing = layers[graph.producers] != layers[graph.consumers]
    leaves[graph.producers[crossing & graph.in_forward[graph.consumers]]] = True
    assert not (inside & ~leaves).any()


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
