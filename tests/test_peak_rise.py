"""Whoever asks for less saved memory and gets a higher peak is told, with a budget that has no higher peak."""

import re
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from commands import run
from depth import deep_except

import remat
from costmodels import MemoryBudget
from remat import Corpus, Graph, Problem, Solution, TerminationReason
from remat.improve.byte_budgets import default_plan
from remat.plugin import ClaimedBound, Termination
from remat.proof.budget import least_bytes
from solvers import Lagrangian
from tests.test_whole_run import WIDTH, Model

RISES = "small-dropout-mlp"
FALLS = "small-evonorm"


def peak_of_budget(graph: Graph, budget: float | int, **host: Any) -> tuple[int, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        plan = remat.choose(graph, MemoryBudget(budget, **host)).plan
    return remat.timeline(graph, plan).peak_bytes, [str(warning.message) for warning in heard]


def check_warnings(name: str, share: float, alone: str = "", **host: Any) -> None:
    """Checks that a warning comes just where the peak is higher, and the budget that it names."""
    graph = Corpus.open().graph(name)
    plan = default_plan(graph)
    default = remat.timeline(graph, plan).peak_bytes
    peak, told = peak_of_budget(graph, share, **host)
    assert bool(told) == (peak > default)
    without = {key: given for key, given in host.items() if key == "estimator"}
    for message in told:
        found = re.search(rf"The smallest budget{alone} found that does not is (\d+) bytes", message)
        if found is None:
            assert f"No budget{alone} was found that does not" in message
            continue
        assert peak_of_budget(graph, int(found[1]), **without)[0] <= default


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("name", [RISES, FALLS, "small-layernorm-gelu-mlp", "small-lstm-cells"])
def test_a_budget_warns_just_where_its_peak_is_above_that_of_the_default(name: str, share: float) -> None:
    check_warnings(name, share)


@pytest.mark.parametrize("share", [0.5, 0.0])
@pytest.mark.parametrize("name", deep_except([RISES, FALLS], [RISES, FALLS, "small-gpt-fused-attention"]))
def test_a_budget_with_a_host_warns_where_its_peak_is_higher(name: str, share: float) -> None:
    check_warnings(name, share, " without a host", estimator="roofline:device=h100", offload=True)


@dataclass(frozen=True)
class SavesNothing(Lagrangian):
    """Of all plans within a budget it returns the one that saves least."""

    name: ClassVar[str] = "saves-nothing"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        choice = least_bytes(problem).choice
        claim = Termination(TerminationReason.FEASIBLE, 0, "time")
        return Solution(choice.plan(problem), choice.cost(problem), claim, ClaimedBound("nobody"), self.name)


def test_the_budget_that_is_named_is_one_of_the_solvers_own_plan() -> None:
    """A plan of the frontier for that budget has no higher peak; the one that this solver returns has."""
    with pytest.warns(UserWarning, match="No budget was found that does not"):
        remat.choose(Corpus.open().graph("vgg16"), MemoryBudget(0.1), SavesNothing())
    with pytest.warns(UserWarning, match=r"The smallest budget found that does not is \d+ bytes"):
        remat.choose(Corpus.open().graph("vgg16"), MemoryBudget(0.1))


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
