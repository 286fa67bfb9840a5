"""No plan is cheaper than the one that a solver returns; `check_solver` compares small problems with all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from depth import drawn
from helpers import BUDGET, EXACT, SOLVERS, each, every_plan, is_legal, largest_price, most_values
from hypothesis import given
from hypothesis import strategies as st

from remat import Choice, Infeasible, Problem, solve
from remat.plugin import Feature, FlowCertificate, Solver
from remat.testing import problems
from solvers import CPSAT

HEURISTIC = [solver for solver in SOLVERS if not solver.exact and Feature.BUDGET in solver.features]


@each([solver for solver in EXACT if solver.name != "pulp"])
@drawn(50)
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


@each(HEURISTIC)
@drawn(150)
@given(data=st.data())
def test_a_heuristic_keeps_the_budget_and_never_beats_the_optimum(solver: Solver, data: st.DataObject) -> None:
    problem = data.draw(problems(max_values=12, budget=True, largest=largest_price(solver, 12)))
    best, found = solve(problem, "exhaustive").objective, solve(problem, solver)
    choice = Choice.from_plan(problem, found.plan)
    saved, recomputed = (frozenset(np.flatnonzero(mask).tolist()) for mask in (choice.saved, choice.recomputed))
    assert is_legal(problem, saved, recomputed)
    assert found.bound <= best <= found.objective
    assert found.is_optimal == (found.bound == found.objective)
    assert found.is_proven == (found.is_optimal and isinstance(found.certificate, FlowCertificate))


@each([*BUDGET, *HEURISTIC])
@drawn(150)
@given(data=st.data())
def test_the_budget_may_be_spent_to_the_last_byte(solver: Solver, data: st.DataObject) -> None:
    problem = data.draw(problems(max_values=8, largest=largest_price(solver, 8)))
    nothing = np.zeros(len(problem), np.int64)
    fewest = solve(replace(problem, save_cost=problem.save_bytes, recompute_cost=nothing), "exhaustive").objective
    tightest = solve(replace(problem, budget_bytes=fewest), solver)
    assert Choice.from_plan(problem, tightest.plan).saved_bytes(problem) == fewest
    for budget_bytes in {0, fewest - 1} if fewest else ():
        with pytest.raises(Infeasible, match=f"no plan fits the budget of {budget_bytes} bytes"):
            solve(replace(problem, budget_bytes=budget_bytes), solver)
    for more in (0, 1, 2**62):
        roomy = solve(replace(problem, budget_bytes=int(problem.save_bytes.sum()) + more), solver)
        assert roomy.objective == solve(problem, "exhaustive").objective


@drawn(150)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 300)), max_size=12), st.integers(0, 1000))
def test_a_dynamic_program_is_exact_where_values_are_independent(items: list[tuple[int, int]], budget: int) -> None:
    """Then the problem is a knapsack, and one of less than 10,000 bytes."""
    prices, sizes = [price for price, _ in items], [size for _, size in items]
    problem = Problem.of(
        [0] * len(items), needed=range(len(items)), recompute_cost=prices, save_bytes=sizes, budget_bytes=budget
    )
    best = solve(problem, "exhaustive").objective
    assert best == solve(problem, "knapsack-dp").objective
    greedy = solve(problem, "knapsack-greedy").objective
    # What greed saves is worth no less than the best saves, less the first item that no longer fits.
    assert greedy - best <= max(prices, default=0)


@pytest.mark.parametrize("solver", [CPSAT(bound_first=True), CPSAT(count_sizes=False), CPSAT(workers=4)], ids=str)
@drawn(50)
@given(problem=problems(max_values=12, budget=True))
def test_every_way_of_the_search_ends_with_the_optimum(solver: CPSAT, problem: Problem) -> None:
    assert solve(problem, solver).objective == solve(problem, "exhaustive").objective


@each(EXACT)
def test_nothing_to_decide(solver: Solver) -> None:
    assert solve(Problem.of([]), solver).objective == 0
    assert solve(Problem.of([5], recompute_cost=[3]), solver).objective == 0
    assert solve(Problem.of([5], recompute_cost=[3], needed=[0]), solver).objective == 3
    # Two free saves, both needed: no arc is left to break ties on.
    assert solve(Problem.of([0, 0], needed=[0, 1], recompute_cost=[1, 1]), solver).objective == 0
