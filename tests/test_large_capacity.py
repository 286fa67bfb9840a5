"""Prices and sizes past 2**33: exact, or refused. Never wrapped."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from depth import drawn
from helpers import BUDGET, CONFIGURED, FLOW, each, every_plan
from hypothesis import given
from hypothesis import strategies as st

from remat import Problem, UnsupportedProblem, check_plan, solve
from remat.plugin import FlowSolver, InvalidProblem, Network, Solver
from remat.proof.certify import check_flow
from remat.testing import problems

BIG = 2**33
FEW = drawn(50)


def exact_or_refused(problem: Problem, solver: Solver) -> None:
    counts_to = solver.largest_capacity or 2**62
    prices = int(problem.save_cost.sum() + problem.recompute_cost.sum())
    try:
        solution = solve(problem, solver)
    except UnsupportedProblem:
        assert counts_to <= max(prices, int(problem.save_bytes.sum()))
    else:
        assert solve(problem, "exhaustive").objective == solution.objective


@pytest.mark.parametrize(("solver", "budget"), [*product(CONFIGURED, [False]), *product(BUDGET, [True])], ids=repr)
@FEW
@given(data=st.data(), largest=st.sampled_from([2**29, 2**31, 2**41, 2**57]))
def test_any_prices_and_sizes(solver: Solver, budget: bool, data: st.DataObject, largest: int) -> None:
    exact_or_refused(data.draw(problems(max_values=12, largest=largest, budget=budget)), solver)


@each(BUDGET)
def test_sizes_past_2_31_within_a_budget(solver: Solver) -> None:
    """OR-Tools 9.15 adds such sizes up in 32 bits, and says that no plan costs less than 3."""
    exact_or_refused(
        Problem.of(
            [0] * 7,
            edges=[(0, 2)],
            needed=[1, 2, 3, 4, 5, 6],
            recompute_cost=[1, 1, 0, 1, 1, 1, 1],
            save_bytes=[7963588859, 5200000000, 3000000000, 5992000000, 6600000000, 3000000000, 4688333083],
            budget_bytes=23700000000,
        ),
        solver,
    )


@each(BUDGET)
@pytest.mark.parametrize("seed", range(5))
def test_costs_that_are_the_same_in_doubles(solver: Solver, seed: int) -> None:
    """Near 2**56; CP-SAT takes them for a gap of 0, and a plan for optimal, unless told otherwise."""
    random = np.random.default_rng(seed)
    sizes = random.integers(10**6, 10**7, 14)
    exact_or_refused(
        Problem.of(
            [0] * 14,
            needed=range(14),
            recompute_cost=(2**56 + random.integers(0, 40, 14)).tolist(),
            save_bytes=sizes,
            budget_bytes=int(sizes.sum()) // 2,
        ),
        solver,
    )


@each(CONFIGURED)
@FEW
@given(
    data=st.data(),
    largest=st.sampled_from([3, 1000]),
    unit=st.sampled_from([2, 3, 7, 1000, BIG]),
    of_bytes=st.booleans(),
)
def test_the_unit_of_prices_and_of_sizes_changes_no_plan(
    solver: Solver, data: st.DataObject, largest: int, unit: int, of_bytes: bool
) -> None:
    """Nor where small prices make many plans as cheap as each other."""
    small = data.draw(problems(max_values=8, largest=largest))
    large = replace(small, save_cost=unit * small.save_cost, recompute_cost=unit * small.recompute_cost)
    large = replace(large, save_bytes=unit * small.save_bytes) if of_bytes else large
    first, second = solve(small, solver), solve(large, solver)
    assert (first.plan, unit * first.objective) == (second.plan, second.objective)


def test_scipy_refuses_where_it_would_wrap() -> None:
    problem = Problem.of([BIG + 1, BIG + 2], needed=[0, 1], recompute_cost=[BIG + 3, BIG + 4])
    with pytest.raises(UnsupportedProblem, match=r"the prices add up to 34359738378 .* counts only to 1073741823"):
        solve(problem, "scipy")


@each(FLOW)
def test_a_flow_against_an_infinite_arc(solver: Solver) -> None:
    """SciPy 1.17 adds such a flow to the capacity in 32 bits: it found half of the flow."""
    assert isinstance(solver, FlowSolver)
    x = (2**31 - 100) // 6
    # source 0, sink 1; the short path 0-2-3-1 comes first, then 0-4-3-2-5-1 against it.
    arcs = {(0, 2): x, (3, 1): x, (0, 4): x, (4, 3): x, (2, 5): x, (5, 1): x}
    infinity = sum(arcs.values()) + 1
    arcs |= {(2, 3): infinity, (3, 2): infinity}
    arcs[0, 2] -= 1  # or all could be divided by x
    tails, heads = np.array(list(arcs)).T
    network = Network(6, tails, heads, np.array(list(arcs.values())), infinity)
    if infinity > (solver.largest_capacity or infinity):
        with pytest.raises(UnsupportedProblem, match="the prices add up to"):
            network.rescaled(solver.largest_capacity)
    else:
        assert 2 * x - 1 == check_flow(network, solver._max_flow(network)[0])


@pytest.mark.parametrize("column", ["save_cost", "recompute_cost", "save_bytes"])
def test_sums_that_int64_could_wrap_are_refused(column: str) -> None:
    zeros = {"save_cost": [0, 0], "recompute_cost": [0, 0], "save_bytes": [0, 0]}
    with pytest.raises(InvalidProblem, match=r"must add up to less than 2\*\*62"):
        Problem.of(**{**zeros, column: [2**61, 2**61]})
    with pytest.raises(InvalidProblem, match=r"must add up to less than 2\*\*62|must be below 2\*\*62|whole numbers"):
        Problem.of(**{**zeros, column: [2**70, 0]})


@pytest.mark.parametrize("solver", ["ortools", "networkx", "exhaustive"])
def test_sums_just_below_2_62_are_exact(solver: str) -> None:
    most = 2**62 - 2**20
    problem = Problem.of([most, 1000], edges=[(0, 1)], needed=[0], recompute_cost=[2, 3], cannot_recompute={0: "input"})
    assert solve(problem, solver).objective == most


def test_no_plan_s_bytes_wrap() -> None:
    """4 values of 2**59 bytes each, within a budget to the byte."""
    problem = Problem.of(
        [1] * 4, needed=range(4), recompute_cost=[2] * 4, save_bytes=[2**59 + 1] * 4, budget_bytes=2**61
    )
    solution = solve(problem, "exhaustive")
    assert min(plan.cost for plan in every_plan(problem)) == check_plan(problem, solution.plan) == 5
