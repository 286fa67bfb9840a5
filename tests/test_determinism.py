"""The same problem gives the same plan: in a second run, and with other hash seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from depth import deep_except
from helpers import CONFIGURED, each, most_values
from numpy.random import default_rng

from remat import Problem, solve
from remat.plugin import Feature, Solver


def tied_problem(seed: int, values: int, budget: bool) -> Problem:
    """A problem with prices of 0 to 2 only, and so with many cheapest plans."""
    random = default_rng(seed)
    edges = {(int(random.integers(v)), v) for v in range(1, values) for _ in range(2)}
    return Problem.of(
        random.integers(3, size=values).tolist(),
        edges=sorted(edges),
        needed=random.permutation(values)[: values // 2].tolist(),
        recompute_cost=random.integers(3, size=values).tolist(),
        save_bytes=random.integers(3, size=values),
        budget_bytes=values // 2 if budget else None,
    )


@cache
def digests(solver: Solver) -> list[str]:
    """One digest a problem: it stands for the plan."""
    values = most_values(solver, 30)
    budgets = (False, True) if Feature.BUDGET in solver.features else (False,)
    solutions = [solve(tied_problem(seed, values, budget), solver) for seed in range(5) for budget in budgets]
    return [solution.plan.digest for solution in solutions if solution.plan is not None]


@cache
def digests_in_a_new_process(hash_seed: str) -> dict[str, list[str]]:
    code = "import json, test_determinism as t; print(json.dumps({repr(s): t.digests(s) for s in t.CONFIGURED}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)


@each(CONFIGURED)
@pytest.mark.parametrize("hash_seed", deep_except(["31337"], ["0", "1", "31337"]))
def test_same_plan_with_any_hash_seed(solver: Solver, hash_seed: str) -> None:
    assert digests_in_a_new_process(hash_seed)[repr(solver)] == digests(solver)


@each(CONFIGURED)
def test_the_problems_have_ties_worth_testing(solver: Solver) -> None:
    """Different problems have different plans, so equal digests above say something."""
    assert len(set(digests(solver))) >= 5
