"""Rows: budgets of some values, beside or without the budget of all values."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from depth import drawn
from examples import linear_dropout
from helpers import CONFIGURED, EXACT, each
from hypothesis import given

from costmodels import MemoryBudget
from remat import Infeasible, InvalidPlan, LimitReached, Plan, Problem, UnsupportedProblem, certify, check_plan, solve
from remat.answer.dimacs_file import write_dimacs
from remat.answer.solution import FlowCertificate
from remat.errors import CertificateRejected, InvalidProblem
from remat.improve.joint_budget import union_problem
from remat.improve.subproblem import Subproblem
from remat.plugin import BudgetRow, Choice, ClaimedBound, Feature, Solution, Solver, Termination, TerminationReason
from remat.problem.mps_file import write_mps
from remat.testing import problems
from solvers import CPSAT

TAKES = [solver for solver in CONFIGURED if Feature.ROWS in solver.features]
EXACTLY = [solver for solver in EXACT if Feature.ROWS in solver.features and solver.name != "exhaustive"]


def row(name: str, values: set[int], bytes: int, length: int = 5) -> BudgetRow:
    return BudgetRow(name, np.isin(np.arange(length), list(values)), bytes)


def two_parts(*rows: BudgetRow, budget: int | None = None) -> Problem:
    """x (an input) -> a -> b, and x -> c -> d; the backward pass needs all, and to compute a or c takes longer."""
    return replace(
        Problem.of(
            [0] * 5,
            edges=[(0, 1), (1, 2), (0, 3), (3, 4)],
            needed=range(1, 5),
            recompute_cost=[0, 9, 4, 7, 3],
            save_bytes=[0, 8, 8, 8, 8],
            names=list("xabcd"),
            cannot_recompute={0: "an input"},
            budget_bytes=budget,
        ),
        rows=rows,
    )


AB, CD = (lambda limit: row("ab", {1, 2}, limit)), (lambda limit: row("cd", {3, 4}, limit))


@drawn(60)
@each(EXACTLY)
@given(
    problems(max_values=8, rows=True)
    | problems(max_values=8, rows=True, budget=True, feasible=None)
    | problems(max_values=6, rows=True, budget=True, offload=True)
)
def test_rows_cost_what_the_comparison_of_all_plans_says(solver: Solver, problem: Problem) -> None:
    best, found = (solve(problem, each_solver, throw=False) for each_solver in ("exhaustive", solver))
    assert found.objective == best.objective
    assert found.termination.reason is best.termination.reason
    if found.plan is not None:
        assert check_plan(problem, found.plan) == found.objective
        choice = Choice.from_plan(problem, found.plan)
        for one in problem.rows:
            assert sum(problem.save_bytes[one.values & choice.on_device].tolist()) <= one.bytes


@each(TAKES)
def test_each_row_limits_its_own_values(solver: Solver) -> None:
    """Half of everything would save a and c; half of each part does so, too, and less of one part costs that part."""
    for rows, cost in (((), 0), ((AB(8),), 4), ((AB(8), CD(0)), 14), ((AB(0), CD(16)), 13), ((AB(16), CD(8)), 3)):
        assert solve(two_parts(*rows, budget=32), solver).objective == cost
        assert solve(two_parts(*rows), solver if rows else None).objective == cost
    overlapping = (AB(8), row("bd", {2, 4}, 0), row("all", {1, 2, 3, 4}, 8))
    assert solve(two_parts(*overlapping), solver).objective == 14


def one_of_two() -> Problem:
    """v1, or v2 that is computed from it, must be saved; each has too small a budget."""
    return replace(
        Problem.of([0, 0, 0], edges=[(1, 2)], needed=[2], save_bytes=[0, 8, 8], cannot_recompute={1: "random"}),
        rows=(row("one", {1}, 7, 3), row("two", {2}, 7, 3)),
    )


@each(TAKES)
def test_what_only_the_rows_together_make_impossible_is_reported(solver: Solver) -> None:
    problem = one_of_two()
    assert solve(replace(problem, rows=problem.rows[:1]), solver).plan is not None
    assert solve(problem, solver, throw=False).plan is None
    with pytest.raises((Infeasible, LimitReached), match=r"no plan keeps every budget|take an exact solver"):
        solve(problem, solver)


@each(TAKES)
def test_a_row_that_no_plan_keeps_is_proven_before_a_solver_is_called(solver: Solver) -> None:
    banned = two_parts(AB(7), CD(8)).cannot_recompute.also(np.array([False, True, False, False, False]), "random")
    problem = replace(two_parts(AB(7), CD(8)), cannot_recompute=banned)
    with pytest.raises(Infeasible, match="no plan fits the budget of 7 bytes of 'ab': every plan saves at least 8"):
        solve(problem, solver)
    assert solve(problem, solver, throw=False).is_proven


def test_a_plan_that_breaks_a_row_is_not_legal() -> None:
    plan = Plan(("x", "a", "b"), ("c", "d"))
    assert check_plan(two_parts(AB(16), CD(0)), plan) == 10
    with pytest.raises(InvalidPlan, match="saves 16 bytes of 'ab', but the budget is 15"):
        check_plan(two_parts(AB(15)), plan)


@drawn(100)
@given(problems(max_values=8, rows=True, budget=True))
def test_a_flow_proves_a_bound_under_one_budget(problem: Problem) -> None:
    """The bound holds for the plans within all budgets; a flow under another budget, or none, is refused."""
    best, found = solve(problem, "exhaustive"), solve(problem, "lagrangian", throw=False)
    assert isinstance(found.certificate, FlowCertificate)
    assert found.bound is not None
    assert best.objective is not None
    assert found.bound <= best.objective
    assert certify(problem, found) == (found.objective == found.bound)
    for wrong in (len(problem.budgets), -1, True):
        with pytest.raises(CertificateRejected, match="no budget at position"):
            certify(problem, replace(found, certificate=replace(found.certificate, budget=wrong)))


def test_the_bound_is_that_of_the_tightest_budget() -> None:
    found = solve(two_parts(AB(0), CD(15), budget=31), "lagrangian")
    assert (found.bound, found.objective) == (13, 16)
    assert solve(two_parts(AB(0), CD(16), budget=31), "lagrangian").is_proven


def test_files_hold_rows(tmp_path: Path) -> None:
    for (offload, budget), suffix in product(((None, None), ([1] * 5, 9)), ("", ".gz")):
        problem = two_parts(AB(8), CD(3), budget=budget)
        if offload:
            problem = replace(problem, offload=Problem.of([0] * 5, offload_cost=offload).offload)
        problem.save(tmp_path / f"parts.json{suffix}")
        read = Problem.load(tmp_path / f"parts.json{suffix}")
        assert [(one.name, one.bytes, one.values.tolist()) for one in read.rows] == [
            (one.name, one.bytes, one.values.tolist()) for one in problem.rows
        ]
        assert (read.budget_bytes, read.offload is None) == (budget, offload is None)
        assert solve(read, "exhaustive").objective == solve(problem, "exhaustive").objective
    document = json.loads((tmp_path / "parts.json").read_text())
    (tmp_path / "old.json").write_text(json.dumps(document | {"version": 1}))
    with pytest.raises(InvalidProblem, match='"rows" need version 3, got version 1'):
        Problem.load(tmp_path / "old.json")


def test_an_integer_program_in_a_file_has_the_rows(tmp_path: Path) -> None:
    import pulp

    write_mps(two_parts(AB(8), CD(0), budget=31), tmp_path / "parts.mps")
    _, program = pulp.LpProblem.fromMPS(str(tmp_path / "parts.mps"))
    assert {"BUDGET", "BUDGET1", "BUDGET2"} <= program.constraints.keys()
    program.solve(pulp.PULP_CBC_CMD(msg=False))
    assert round(pulp.value(program.objective)) == 14


def test_who_cannot_state_rows_says_so(tmp_path: Path) -> None:
    for solver in [solver for solver in CONFIGURED if solver not in TAKES]:
        with pytest.raises(UnsupportedProblem, match="does not support budgets of some values"):
            solve(two_parts(AB(8)), solver)
    with pytest.raises(UnsupportedProblem, match="a DIMACS file does not support budgets of some values"):
        write_dimacs(two_parts(AB(8)), tmp_path / "parts.max")


def test_rows_that_are_none() -> None:
    for limit in (-1, None, 0.5):
        with pytest.raises(InvalidProblem, match=f"the budget of 'ab' must be a non-negative integer, got {limit}"):
            AB(limit)
    for wrong in ([AB(8)], (7,), (row("ab", {1}, 8, 4),)):
        with pytest.raises(InvalidProblem, match=r"Problem\.rows must be a tuple of remat\.plugin\.BudgetRow of 5"):
            replace(two_parts(), rows=wrong)  # type: ignore[arg-type]


def test_without_cpsat_the_portfolio_has_what_lagrangian_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CPSAT, "missing", classmethod(lambda _: ("ortools",)))
    with pytest.warns(UserWarning, match="by lagrangian alone"):
        assert solve(two_parts(AB(0), CD(15), budget=31), "portfolio").objective == 16
    with pytest.raises(LimitReached, match="portfolio is a heuristic, and found no plan"):
        solve(one_of_two(), "portfolio")


def test_several_calls_share_no_budget_where_values_have_their_own() -> None:
    graph = linear_dropout()
    problem = replace(MemoryBudget(0.5).pose(graph), rows=())
    part = Subproblem(graph, replace(problem, rows=(BudgetRow("all", np.ones(len(problem), np.bool_), 9),)))
    assert [one.bytes for one in union_problem([part]).rows] == [9]
    for parts in ([part, part], [replace(part, times=2)]):
        with pytest.raises(UnsupportedProblem, match="a budget that several calls share does not support budgets of"):
            union_problem(parts)


class Denying(Solver):
    """Claims that there is no plan."""

    name: ClassVar[str] = "denying"
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.ROWS})

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        del problem, time_limit_s
        return Solution(None, None, Termination(TerminationReason.INFEASIBLE), ClaimedBound(self.name), self.name)


def test_that_one_row_is_infeasible_is_not_believed_without_proof() -> None:
    """Only of several budgets together may a solver claim it: of one, a flow has found a plan."""
    with pytest.raises(CertificateRejected, match="denying claims INFEASIBLE"):
        solve(two_parts(AB(8)), Denying())
    with pytest.raises(Infeasible, match=r"every budget \('ab', 'cd'\), says denying"):
        solve(two_parts(AB(8), CD(8)), Denying())
