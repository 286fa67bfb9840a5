"""Budgets of what is offloaded: the memory of the host, and the time of its link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from depth import drawn
from helpers import EXACT, SOLVERS, each, every_plan, largest_price
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from remat import (
    Bans,
    CertificateRejected,
    Choice,
    Feature,
    FlowCertificate,
    Infeasible,
    InvalidPlan,
    InvalidProblem,
    LimitReached,
    Offload,
    Plan,
    Problem,
    Reason,
    Solver,
    UnsupportedProblem,
    certify,
    check_plan,
    solve,
)
from remat.improve.frontier import frontier
from remat.improve.together import Part, side_by_side
from remat.problem.weights import Weights
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.prices import best_prices
from remat.testing import problems
from solvers import Portfolio

TAKES = [solver for solver in SOLVERS if Feature.HOST_BUDGET in solver.features]


def hosted(problem: Problem, most_bytes: int | None, most_cost: int | None = None) -> Problem:
    assert problem.offload is not None
    return replace(problem, offload=replace(problem.offload, budget_bytes=most_bytes, budget_cost=most_cost))


def limited(most_bytes: int | None, most_cost: int | None = None) -> Problem:
    """x and y, which are needed; the device has room for none, and recomputing costs 100 each."""
    problem = Problem.of(
        [0, 0], needed=[0, 1], recompute_cost=[100, 100], save_bytes=[8, 6], names=("x", "y"), budget_bytes=0,
        offload_cost=[5, 7],
    )  # fmt: skip
    return hosted(problem, most_bytes, most_cost)


def offloaded(about: Problem, solver: str | Solver = "cpsat") -> tuple[str, ...]:
    plan = solve(about, solver).plan
    assert plan is not None
    return plan.offloaded


def test_exact_solvers_that_take_them_are_known() -> None:
    assert {solver.name for solver in TAKES} == {"cpsat", "exhaustive", "lagrangian", "portfolio", "pulp"}


@each([solver for solver in EXACT if Feature.HOST_BUDGET in solver.features])
@drawn(300)
@given(data=st.data())
def test_agrees_with_enumeration(solver: Solver, data: st.DataObject) -> None:
    most = largest_price(solver, 21)
    problem = data.draw(
        problems(max_values=7, budget=data.draw(st.booleans()), offload=True, host_budgets=True, largest=most)
    )
    assert solve(problem, "exhaustive").objective == solve(problem, solver).objective


@drawn(300)
@given(problems(max_values=7, budget=True, offload=True, host_budgets=True, feasible=None))
def test_prices_bound_every_plan_and_what_they_prove_is_certified(problem: Problem) -> None:
    best = solve(problem, "exhaustive", throw=False)
    if best.is_proven and best.plan is None:  # neither does any plan fit where all may be offloaded
        return
    priced = best_prices(problem, flow_solver())
    assert best.plan is None or (priced.bound is not None and priced.bound <= (best.objective or 0))
    answer = solve(problem, "lagrangian", throw=False)
    assert answer.bound == (None if best.plan is None and priced.bound is None else priced.bound)
    if answer.plan is not None:
        assert isinstance(answer.certificate, FlowCertificate)
        assert check_plan(problem, answer.plan) == answer.objective
        assert certify(problem, answer) == answer.is_optimal


@drawn(200)
@given(problems(max_values=12, budget=True, offload=True))
def test_prices_of_one_budget_are_those_of_the_hull(problem: Problem) -> None:
    assert problem.budget_bytes is not None
    hull = Hull(problem, flow_solver())
    edge = hull.edge_at(problem.budget_bytes) if hull.smallest.saved_bytes <= problem.budget_bytes else None
    known = hull.cheapest.cost if edge is None else edge.bound(problem.budget_bytes)
    bound = best_prices(problem, flow_solver()).bound
    assert bound is not None
    rounded = 1 + known // 10**4  # prices are as fine as flows in 62 bits can count
    assert known - rounded <= bound <= known + rounded


def rows_of(problem: Problem) -> Iterator[list[int]]:
    """Of all plans the cost, the bytes on the device, and the bytes and the cost on the host."""
    offload = problem.offload
    assert offload is not None
    for plan in every_plan(replace(problem, offload=None, budget_bytes=None)):
        may = [v for v in plan.saved if not offload.banned.mask[v]]
        for flags in product((False, True), repeat=len(may)):
            away = np.array([v for v, goes in zip(may, flags, strict=True) if goes], np.int64)
            copies, size = int(offload.cost[away].sum()), int(problem.save_bytes[away].sum())
            yield [plan.cost - int(problem.save_cost[away].sum()) + copies, plan.saved_bytes - size, size, copies]


@drawn(100)
@given(problems(max_values=5, budget=True, offload=True, host_budgets=True, largest=10**6))
def test_no_prices_prove_more(problem: Problem) -> None:
    """By the linear program over all plans, written down."""
    assert problem.offload is not None
    rows = np.array(list(rows_of(problem)), np.float64)
    budgets = (problem.budget_bytes, problem.offload.budget_bytes, problem.offload.budget_cost)
    limited = [i for i, most in enumerate(budgets) if most is not None]
    most = np.array([budgets[i] for i in limited], np.float64)
    ones = np.ones((1, len(rows)))
    best = linprog(rows[:, 0], rows[:, 1:][:, limited].T, most, ones, np.ones(1), method="highs")
    assert best.status == 0
    bound = best_prices(problem, flow_solver()).bound
    assert bound is not None
    assert best.fun - 1e-6 * (1 + best.fun) <= bound <= best.fun + 1 + 1e-6 * best.fun


@drawn(300)
@given(problems(max_values=8, offload=True, host_budgets=True), st.data())
def test_exactly_the_plans_that_break_a_budget_are_refused(problem: Problem, data: st.DataObject) -> None:
    n, offload = len(problem), problem.offload
    assert offload is not None
    flags = st.lists(st.booleans(), min_size=n, max_size=n)
    saved = ~problem.cannot_save.mask & (problem.cannot_recompute.mask | np.array(data.draw(flags)))
    choice = Choice.from_saved(problem, saved, ~offload.banned.mask & np.array(data.draw(flags)))
    plan = choice.plan(problem)
    try:
        cost = check_plan(hosted(problem, None), plan)
    except InvalidPlan:
        return
    if choice.keeps_budgets(problem):
        assert check_plan(problem, plan) == cost
    else:
        with pytest.raises(InvalidPlan, match=r"what is offloaded has (bytes|cost) \d+ in all, but the host's budget"):
            check_plan(problem, plan)


@drawn(100)
@given(problems(max_values=10, budget=True, offload=True))
def test_budgets_that_all_fits_change_nothing(problem: Problem) -> None:
    assert problem.offload is not None
    all_bytes, all_cost = int(problem.save_bytes.sum()), int(problem.offload.cost.sum())
    roomy = replace(problem, offload=replace(problem.offload, budget_bytes=all_bytes, budget_cost=all_cost))
    first, second = solve(problem, "cpsat"), solve(roomy, "cpsat")
    assert (first.plan, first.termination) == (second.plan, second.termination)


@each([solver for solver in TAKES if solver.name != "lagrangian"])
@pytest.mark.parametrize(
    ("most", "expected"),
    [((None, None), ("x", "y")), ((6, None), ("y",)), ((13, None), ("x",)), ((None, 11), ("x",)), ((7, 6), ())],
)
def test_what_fits_the_host_goes_there(
    solver: Solver, most: tuple[int | None, int | None], expected: tuple[str, ...]
) -> None:
    assert offloaded(limited(*most), solver) == expected


def test_a_plan_that_breaks_both_budgets_is_told_of_both() -> None:
    both = limited(8, 10)
    with pytest.raises(InvalidPlan) as refused:
        check_plan(both, Plan(("x", "y"), (), offloaded=("x", "y")))
    assert "what is offloaded has bytes 14 in all, but the host's budget is 8" in str(refused.value)
    assert "what is offloaded has cost 12 in all, but the host's budget is 10" in str(refused.value)


def test_solvers_that_do_not_take_them_say_so() -> None:
    for solver in ("ortools", "networkx", "scipy"):
        with pytest.raises(UnsupportedProblem, match="does not support a budget of what is offloaded"):
            solve(replace(limited(8), budget_bytes=None), solver)


def test_without_a_budget_of_the_device_the_default_takes_them() -> None:
    free = replace(limited(8), save_cost=np.array([50, 50]), budget_bytes=None)
    assert offloaded(free, "cpsat") == ("x",)
    plan = solve(free).plan
    assert plan is not None
    assert plan.offloaded == ("x",)


def infeasible(most_bytes: int) -> Problem:
    return replace(limited(most_bytes), cannot_recompute=Bans.none(2).also(np.array([True, True]), "random"))


@pytest.mark.parametrize("solver", ["cpsat", "pulp", "exhaustive", "portfolio", "lagrangian"])
def test_too_little_room_on_both_is_told(solver: str) -> None:
    with pytest.raises(Infeasible, match="no plan saves at most 0 bytes and offloads at most 13 bytes, says"):
        solve(infeasible(13), solver)


def test_prices_prove_that_nothing_fits() -> None:
    answer = solve(infeasible(13), "lagrangian", throw=False)
    assert (answer.termination.reason, answer.is_proven) == (Reason.INFEASIBLE, True)


def test_what_no_price_can_refute_is_left_to_exact_solvers() -> None:
    """Of two values of 8 bytes, 8 may stay and 8 be offloaded, or 9 and 7, which is none: on average that fits."""
    odd = hosted(Problem.of([0, 0], needed=[0, 1], save_bytes=[8, 8], budget_bytes=9, cannot_recompute={0: "a", 1: "b"},
                     offload_cost=[0, 0]), 7)  # fmt: skip
    with pytest.raises(LimitReached, match="lagrangian is a heuristic, and found no plan"):
        solve(odd, "lagrangian")
    with pytest.raises(Infeasible, match="says portfolio"):
        solve(odd)
    with pytest.raises(LimitReached, match="portfolio found no plan within its time limit"):
        solve(odd, Portfolio(seconds=0))


@pytest.mark.parametrize("label", ["budget_bytes", "budget_cost"])
@pytest.mark.parametrize("wrong", [-1, 0.5, True, "8GB"])
def test_a_budget_that_is_none_is_refused(label: str, wrong: object) -> None:
    with pytest.raises(InvalidProblem, match=f"Offload.{label} must be a non-negative integer or None, got {wrong!r}"):
        Offload(np.array([1]), Bans.none(1), **{label: wrong})  # type: ignore[arg-type]


def test_parts_of_a_host_keep_its_budgets() -> None:
    host = Offload(np.array([1, 2, 3]), Bans.none(3), 8, 5)
    part = host.take(np.array([0, 2]))
    assert (part.cost.tolist(), part.budget_bytes, part.budget_cost) == ([1, 3], 8, 5)
    total = Offload(host.cost, host.banned, 8) + Offload(host.cost, host.banned, 7)
    assert (total.cost.tolist(), total.budget_bytes) == ([2, 4, 6], 7)
    with pytest.raises(InvalidProblem, match=r"Offload\.budget_cost is for one price of copies"):
        _ = host + Offload(host.cost, host.banned)


def test_the_repr_names_them() -> None:
    shown = "<Problem: 2 values, 0 uses, 2 needed, 2 can be offloaded (bytes up to 8) (cost up to 5), budget 0 bytes>"
    assert repr(limited(8, 5)) == shown


def test_weights_of_the_host_need_its_budgets() -> None:
    about = limited(8)
    answer = solve(about, "lagrangian")
    assert isinstance(answer.certificate, FlowCertificate)
    nothing = FlowCertificate(0 * answer.certificate.flow, Weights(1, 0, 0, 1))
    priced = replace(answer, certificate=nothing)
    with pytest.raises(CertificateRejected, match="bounds nothing without a budget"):
        certify(about, priced)


def test_curves_of_one_budget_refuse_them() -> None:
    with pytest.raises(UnsupportedProblem, match="has no budget of what is offloaded"):
        frontier(limited(8))


def test_graphs_side_by_side_share_the_host() -> None:
    about = replace(limited(8, 6), budget_bytes=None)
    both = side_by_side([Part(None, about, 2), Part(None, about)])  # type: ignore[arg-type]
    assert [(what, amounts.tolist(), most) for what, amounts, most in both.host_budgets] == [
        ("bytes", [16, 12, 8, 6], 8),
        ("cost", [10, 14, 5, 7], 6),
    ]
    assert not Part(None, about).least.offloaded.any()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("problem", "limit"),
    [
        (
            Problem.of(
                [5],
                needed=[0],
                recompute_cost=[9],
                save_bytes=[11],
                cannot_recompute={0: "input"},
                budget_bytes=10,
                offload_cost=[17],
            ),
            {"budget_cost": 2},
        ),
        (
            Problem.of(
                [0, 654],
                edges=[(0, 1)],
                needed=[0],
                recompute_cost=[322, 542],
                save_bytes=[207, 489],
                cannot_recompute={0: "input"},
                budget_bytes=92,
                offload_cost=[881, 729],
            ),
            {"budget_bytes": 152},
        ),
    ],
    ids=["stops early", "crashes"],
)
def test_what_cbc_cannot_say_without_preprocessing_has_no_plan(problem: Problem, limit: dict[str, int]) -> None:
    assert problem.offload is not None
    limited = replace(problem, offload=replace(problem.offload, **limit))
    assert solve(limited, "pulp", throw=False).termination.reason is Reason.INFEASIBLE
