"""What users of PyTorch get in one line, found from graphs alone: against PyTorch's own answers, and by meaning."""

from __future__ import annotations

from itertools import pairwise

import pytest

import remat
from remat import Choice, Corpus, Graph
from remat.answer.plan_facts import PlanFacts
from remat.facts.columns import BoolArray
from remat.improve.one_liners import layers_of, one_liners
from remat.improve.torch_knapsack import torch_budget_plans
from remat.problem.constraints import base_problem

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
