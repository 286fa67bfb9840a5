"""Whoever asks for less saved memory and gets a higher peak is told."""

import warnings
from typing import Any

import pytest
import torch
from commands import run
from depth import deep_except

import remat
from costmodels import MemoryBudget
from remat import Corpus, Graph
from remat.improve.byte_budgets import default_plan
from tests.test_whole_run import WIDTH, Model

RISES = "small-dropout-mlp"
FALLS = "small-evonorm"


def peak_of_budget(graph: Graph, budget: float, **host: Any) -> tuple[int, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        plan = remat.choose(graph, MemoryBudget(budget, **host)).plan
    return remat.timeline(graph, plan).peak_bytes, [str(warning.message) for warning in heard]


def check_warnings(name: str, share: float, **host: Any) -> None:
    """Checks that a warning comes just where the peak is higher."""
    graph = Corpus.open().graph(name)
    default = remat.timeline(graph, default_plan(graph)).peak_bytes
    peak, told = peak_of_budget(graph, share, **host)
    assert bool(told) == (peak > default)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("name", [RISES, FALLS, "small-layernorm-gelu-mlp", "small-lstm-cells"])
def test_a_budget_warns_just_where_its_peak_is_above_that_of_the_default(name: str, share: float) -> None:
    check_warnings(name, share)


@pytest.mark.parametrize("share", [0.5, 0.0])
@pytest.mark.parametrize("name", deep_except([RISES, FALLS], [RISES, FALLS, "small-gpt-fused-attention"]))
def test_a_budget_with_a_host_warns_where_its_peak_is_higher(name: str, share: float) -> None:
    check_warnings(name, share, estimator="roofline:device=h100", offload=True)


def test_both_happen() -> None:
    (told,) = peak_of_budget(Corpus.open().graph("vgg16"), 0.1)[1]
    assert "from 3.0 GiB, that of PyTorch's default plan, to 3.6 GiB" in told
    assert not peak_of_budget(Corpus.open().graph(FALLS), 0.5)[1]


@pytest.mark.parametrize("offload", [False, "h100"])
@pytest.mark.parametrize(("blocks", "times"), [(1, 1), (2, 0)], ids=["one graph", "two graphs"])
def test_a_compiled_model_warns_where_the_peak_of_all_its_graphs_is_higher(
    blocks: int, times: int, offload: bool | str
) -> None:
    """Each of the two graphs by itself has a higher peak, and both of them together do not."""
    step = remat.compile(Model(blocks, breaks=blocks > 1), cost_model=MemoryBudget(0.2, offload=offload), codegen=False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            step(torch.randn(512, WIDTH)).sum().backward()
    assert len([warning for warning in heard if "raises the predicted peak" in str(warning.message)]) == times


def test_a_command_says_it_in_a_line() -> None:
    ran = run("solve", Corpus.open().path(RISES), "-m", "memory-budget:budget=0.5")
    assert ran.stderr.startswith("warning: this budget of saved memory raises the predicted peak from")
    assert len(ran.stderr.splitlines()) == 1
