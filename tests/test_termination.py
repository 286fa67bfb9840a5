"""A solver that is stopped says so truly; and whether any plan exists is decided before a solver is called."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pulp
import pytest
from depth import drawn
from helpers import BUDGET, SOLVERS, each, every_plan
from hypothesis import given
from numpy.random import default_rng

from remat import Infeasible, LimitReached, Problem, Solution, TerminationReason, solve
from remat.plugin import Feature, Solver
from remat.problem.feasibility import check_feasible
from remat.testing import problems
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


# rng -> mask -> scaled <- bystander. What cannot be had from rng cannot be had from scaled.
LOST = Problem.of(
    [1, 1, 1, 1],
    edges=[(1, 2), (0, 3), (2, 3)],
    needed=[0, 3],
    names=["bystander", "rng", "mask", "scaled"],
    cannot_save={1: "a seed", 2: "a tuple", 3: "marked MUST_RECOMPUTE"},
    cannot_recompute={1: "random"},
)


@dataclass(frozen=True)
class NeverCalled(Solver):
    name: ClassVar[str] = "never-called"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        raise AssertionError("an infeasible problem must not reach a solver")


def test_the_path_is_told_node_by_node_before_any_solver_is_called() -> None:
    with pytest.raises(Infeasible) as caught:
        solve(LOST, NeverCalled())
    assert caught.value.path == (
        ("rng", ("cannot be saved (a seed)", "cannot be recomputed (random)")),
        ("mask", ("cannot be saved (a tuple)", "cannot be recomputed (uses 'rng')")),
        (
            "scaled",
            (
                "cannot be saved (marked MUST_RECOMPUTE)",
                "cannot be recomputed (uses 'mask')",
                "needed by the backward pass",
            ),
        ),
    )
    assert str(caught.value) == (
        "no plan can make 'scaled' available in the backward pass. These rules contradict each other:\n"
        "  rng: cannot be saved (a seed); cannot be recomputed (random)\n"
        "  mask: cannot be saved (a tuple); cannot be recomputed (uses 'rng')\n"
        "  scaled: cannot be saved (marked MUST_RECOMPUTE); cannot be recomputed (uses 'mask'); "
        "needed by the backward pass\n"
        "Relax one of them."
    )


@pytest.mark.parametrize("relaxed", [1, 2, 3])
def test_lifting_any_ban_on_the_path_helps(relaxed: int) -> None:
    check_feasible(replace(LOST, cannot_save=LOST.cannot_save.without(np.arange(len(LOST)) == relaxed)))


@drawn(75)
@given(problems(max_values=6, feasible=None))
def test_agrees_with_looking_at_every_plan(problem: Problem) -> None:
    if any(True for _ in every_plan(problem)):
        check_feasible(problem)
    else:
        with pytest.raises(Infeasible) as caught:
            check_feasible(problem)
        first, *_, last = (name for name, _ in (caught.value.path[0], *caught.value.path))
        assert problem.cannot_recompute.reason(problem.index[first]) is not None
        assert problem.needed[problem.index[last]]


@each(BUDGET)
def test_a_budget_that_nothing_fits(solver: Solver) -> None:
    needs_four = Problem.of([4, 7], needed=[0], cannot_recompute={0: "an input"}, budget_bytes=3)
    with pytest.raises(Infeasible, match="no plan fits the budget of 3 bytes") as caught:
        solve(needs_four, solver)
    assert caught.value.path == ()
    solution = solve(needs_four, solver, throw=False)
    assert (solution.plan, solution.objective, solution.termination.reason) == (
        None,
        None,
        TerminationReason.INFEASIBLE,
    )
