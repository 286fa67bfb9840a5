"""Heuristics for byte budgets: what the default promises beside the classical ones."""

from __future__ import annotations

import pytest
from hypothesis import given

from costmodels import MemoryBudget
from remat import Problem, solve
from remat.facts.corpus import Corpus
from remat.testing import problems

KNAPSACKS = ("knapsack-greedy", "knapsack-dp")


@pytest.mark.parametrize("knapsack", KNAPSACKS)
@given(problem=problems(min_values=2, max_values=12, budget=True, feasible=True))
def test_the_default_is_never_worse_than_a_knapsack(knapsack: str, problem: Problem) -> None:
    theirs, ours = solve(problem, knapsack).objective, solve(problem, "lagrangian").objective
    assert theirs is not None
    assert ours is not None
    assert ours <= theirs


def test_where_the_knapsack_is_nearest_the_default_is_as_near() -> None:
    """Alone, what the hull's edge leads to costs 17% more here than what PyTorch's way of choosing finds."""
    graph = Corpus.open().graph("qehvi-8")
    problem = MemoryBudget(0.5, estimator="roofline:device=h200").pose(graph)
    ours, theirs = solve(problem, "lagrangian"), solve(problem, "knapsack-dp")
    assert ours.objective is not None
    assert theirs.objective is not None
    assert ours.objective <= theirs.objective
    assert ours.bound is not None
    assert ours.objective < 1.15 * ours.bound
