"""A solver that is stopped says so, and what it says of its plan is true."""

from __future__ import annotations

import time
from typing import Any

import pulp
import pytest
from helpers import SOLVERS, each
from numpy.random import default_rng

from remat import LimitReached, Problem, TerminationReason, solve
from remat.plugin import Feature, Solver
from solvers import pulp_ilp

LIMITED = [solver for solver in SOLVERS if Feature.TIME_LIMIT in solver.features]


def knapsack(values: int) -> Problem:
    """A hard one: what a value costs to recompute is its size and a constant (Pisinger 2005)."""
    size = default_rng(1).integers(10**6, 10**7, size=values)
    return Problem.of(
        [0] * values,
        needed=range(values),
        recompute_cost=(size + 10**6).tolist(),
        save_bytes=size,
        budget_bytes=int(size.sum()) // 2,
    )


@each(LIMITED)
@pytest.mark.parametrize("time_limit_s", [0.001, 0.01])
def test_a_time_limit_is_kept_and_reported(solver: Solver, time_limit_s: float) -> None:
    start = time.perf_counter()
    solution = solve(knapsack(400), solver, time_limit_s=time_limit_s, throw=False)
    assert time.perf_counter() - start < time_limit_s + 5  # a hundred times what starting CBC takes
    assert solution.termination.limit == "time"
    assert solution.termination.reason in (TerminationReason.FEASIBLE, TerminationReason.LIMIT)
    if solution.plan is not None:
        assert solution.bound < solution.objective
        assert 0 < (solution.gap or 0) < 1


@each(LIMITED)
def test_a_bound_found_before_the_limit_holds_after_it(solver: Solver) -> None:
    small = knapsack(16)
    best = solve(small, "exhaustive").objective
    for time_limit_s in (0.001, 0.01, 60):
        solution = solve(small, solver, time_limit_s=time_limit_s, throw=False)
        assert solution.bound is None or solution.bound <= best
        assert solution.objective is None or solution.objective >= best
        assert solution.is_optimal == (solution.termination.limit is None)


@each(LIMITED)
def test_a_generous_limit_is_not_mentioned(solver: Solver) -> None:
    solution = solve(knapsack(12), solver, time_limit_s=60)
    assert solution.is_optimal
    assert solution.termination.limit is None
    assert solution.objective == solution.bound == solve(knapsack(12), "exhaustive").objective


@each([solver for solver in LIMITED if solver.exact])
def test_no_plan_within_the_limit_is_an_error_unless_asked_otherwise(solver: Solver) -> None:
    problem = knapsack(400)
    solution = solve(problem, solver, time_limit_s=1e-4, throw=False)
    assert (solution.plan, solution.objective, solution.termination.reason) == (None, None, TerminationReason.LIMIT)
    with pytest.raises(LimitReached, match=f"{solver.name} found no plan within its time limit"):
        solve(problem, solver, time_limit_s=1e-4)


@each(SOLVERS)
@pytest.mark.parametrize("time_limit_s", [0, -1, float("nan")])
def test_a_limit_must_be_positive(solver: Solver, time_limit_s: float) -> None:
    with pytest.raises(ValueError, match=f"time_limit_s must be a positive number of seconds, got {time_limit_s}"):
        solve(Problem.of([1]), solver, time_limit_s=time_limit_s)


def test_a_limit_in_cbcs_preprocessing_is_no_proof_that_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(program: Any, *_: object) -> str:
        program.status, program.sol_status = pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible
        return "Pre-processing says infeasible or unbounded"

    monkeypatch.setattr(pulp_ilp, "_run_cbc", stopped)
    solution = solve(knapsack(40), "pulp", time_limit_s=0.01, throw=False)
    assert (solution.plan, solution.termination.reason, solution.termination.limit) == (
        None,
        TerminationReason.LIMIT,
        "time",
    )
