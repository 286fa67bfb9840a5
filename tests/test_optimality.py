"""No plan is cheaper than the one that a solver returns."""

from __future__ import annotations

from helpers import BUDGET, EXACT, each, every_plan, largest_price, most_values
from hypothesis import given, settings
from hypothesis import strategies as st

from remat import Problem, Solver, solve
from remat.testing import problems

DRAWN = settings.default.max_examples


def besides(oracle: str, solvers: list[Solver]) -> list[Solver]:
    return [solver for solver in solvers if solver.name != oracle]


@settings(max_examples=DRAWN // 3)
@given(problems(max_values=6) | problems(max_values=6, budget=True))
def test_enumeration_agrees_with_running_every_plan(problem: Problem) -> None:
    assert min(plan.cost for plan in every_plan(problem)) == solve(problem, "exhaustive").objective


@each(besides("exhaustive", EXACT))
@settings(max_examples=3 * DRAWN)
@given(data=st.data())
def test_agrees_with_enumeration(solver: Solver, data: st.DataObject) -> None:
    problem = data.draw(problems(max_values=12, largest=largest_price(solver, 12)))
    assert solve(problem, "exhaustive").objective == solve(problem, solver).objective


@each(besides("exhaustive", BUDGET))
@settings(max_examples=3 * DRAWN)
@given(data=st.data())
def test_agrees_with_enumeration_within_a_budget(solver: Solver, data: st.DataObject) -> None:
    problem = data.draw(problems(max_values=12, budget=True, largest=largest_price(solver, 12)))
    assert solve(problem, "exhaustive").objective == solve(problem, solver).objective


@each(besides("pulp", EXACT))
@settings(max_examples=DRAWN // 3)
@given(data=st.data())
def test_agrees_with_the_integer_program(solver: Solver, data: st.DataObject) -> None:
    most = most_values(solver, 40)
    problem = data.draw(problems(min_values=most // 3, max_values=most, largest=2**20))
    assert solve(problem, "pulp").objective == solve(problem, solver).objective


@each(BUDGET)
def test_a_budget_is_kept_to_the_byte(solver: Solver) -> None:
    """CBC keeps a row of a program to a part in 10^7 only; here single bytes of 10^8 decide."""
    sizes = [10**8 + extra for extra in (0, 3, 1, 2, 3, 0, 2, 1)]
    problem = Problem.of(
        [0] * 8, needed=range(8), recompute_cost=[1, 9, 4, 4, 8, 2, 7, 3], save_bytes=sizes, budget_bytes=4 * 10**8 + 6
    )
    assert min(plan.cost for plan in every_plan(problem)) == solve(problem, solver).objective


@each(EXACT)
def test_a_network_without_arcs(solver: Solver) -> None:
    """Two free saves, both needed: no arc is left to break ties on."""
    problem = Problem.of([0, 0], needed=[0, 1], recompute_cost=[1, 1])
    assert solve(problem, solver).objective == 0


@each(EXACT)
def test_nothing_to_decide(solver: Solver) -> None:
    assert solve(Problem.of([]), solver).objective == 0
    assert solve(Problem.of([5], recompute_cost=[3]), solver).objective == 0
    assert solve(Problem.of([5], recompute_cost=[3], needed=[0]), solver).objective == 3
