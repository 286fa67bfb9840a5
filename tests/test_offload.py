"""The third choice: what is saved may wait on the host."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from depth import drawn
from helpers import EXACT
from hypothesis import given

from costmodels import MemoryBudget
from remat import (
    Choice,
    Corpus,
    Graph,
    GraphBuilder,
    Infeasible,
    InvalidPlan,
    Plan,
    Problem,
    UnsupportedProblem,
    capture,
    check_plan,
    solve,
)
from remat.answer.dimacs_file import write_dimacs
from remat.improve.joint_budget import split_choice, union_problem
from remat.improve.peak_search import fit_peak
from remat.improve.subproblem import Subproblem
from remat.plugin import Bans, Feature, InvalidProblem, Offload, cannot_offload
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.testing import problems
from solvers import Exhaustive

TAKES = [solver for solver in EXACT if Feature.OFFLOAD in solver.features]


GRAPH = Corpus.open().graph("small-dropout-mlp")


def chain(**said: object) -> Problem:
    """x (an input) -> y -> z; the backward pass needs y and z."""
    lists = {"save_cost": [0, 0, 0], "recompute_cost": [0, 9, 9], "save_bytes": [8, 8, 8], "offload_cost": [inf, 5, 20]}
    return Problem.of(edges=[(0, 1), (1, 2)], needed=[1, 2], cannot_recompute={0: "an input"}, **(lists | said))  # type: ignore[arg-type]


def test_every_solver_of_this_package_takes_the_third_choice() -> None:
    assert TAKES == EXACT


@drawn(50)
@given(problems(min_values=12, max_values=40, offload=True, largest=2**20))
def test_a_minimum_cut_costs_what_the_integer_program_does(problem: Problem) -> None:
    solution = solve(problem, flow_solver())
    assert solution.is_proven
    assert solve(problem, "pulp").objective == solution.objective


@drawn(100)
@given(problems(max_values=12) | problems(max_values=12, budget=True))
def test_a_host_that_nothing_can_go_to_changes_nothing(problem: Problem) -> None:
    nowhere = Bans.none(len(problem)).also(np.ones(len(problem), np.bool_), "too far")
    hosted = replace(problem, offload=Offload(np.zeros(len(problem), np.int64), nowhere))
    for solver in ("ortools",) if problem.budget_bytes is None else ("cpsat", "lagrangian", "pulp"):
        first, second = solve(problem, solver), solve(hosted, solver)
        assert (first.plan, first.termination) == (second.plan, second.termination)


@drawn(60)
@given(problems(max_values=7, offload=True, largest=100))
def test_the_hull_lies_below_every_plan_and_its_corners_are_plans(problem: Problem) -> None:
    hull = Hull(problem, flow_solver())
    edges = hull.edges()
    corners = {hull.smallest, hull.cheapest, *(end for edge in edges for end in (edge.left, edge.right))}
    for corner in corners:
        within = replace(problem, budget_bytes=corner.saved_bytes)
        assert corner.cost == check_plan(within, corner.choice.plan(problem)) == solve(within, "exhaustive").objective
    for edge in edges:
        for budget in range(edge.left.saved_bytes, edge.right.saved_bytes, 1 + edge.right.saved_bytes // 10):
            best = solve(replace(problem, budget_bytes=budget), "exhaustive").objective
            assert edge.bound(budget) <= best


def test_a_plan_with_offloaded_values_travels(tmp_path: Path) -> None:
    plan = Plan(("y", "z"), (), offloaded=("y",))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert repr(plan).endswith("2 saved (1 on the host), 0 recomputed>")
    assert plan.digest != Plan(("y", "z"), ()).digest


def test_a_plan_of_two_choices_is_written_as_ever(tmp_path: Path) -> None:
    Plan(("y",), ("z",)).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert '"version": 1,' in text
    assert "offloaded" not in text
    assert Plan(("y",), ("z",)).digest == "d5e4df08d994bdb3d9b357500138caa251e1ed33883e7b04a3c5ae202e18a367"


@pytest.mark.parametrize(
    ("plan", "message", "said"),
    [
        (Plan(("y",), ("z",), offloaded=("z",)), "offloaded, but not saved: 'z'", {}),
        (
            Plan(("x", "y", "z"), (), offloaded=("x",)),
            r"cannot be offloaded \(its price is infinite\), but is: 'x'",
            {},
        ),
        (Plan(("y", "z"), ()), "saves 16 bytes, but the budget is 8", {}),
        (Plan(("y", "z"), (), offloaded=("w",)), "Plan.offloaded names 'w', which is not a value", {}),
        (Plan(("y", "z"), (), offloaded=("y",)), r"\(the problem has no host to offload to\)", {"offload_cost": None}),
    ],
)
def test_an_illegal_plan_is_refused(plan: Plan, message: str, said: dict[str, object]) -> None:
    with pytest.raises(InvalidPlan, match=message):
        check_plan(chain(names=("x", "y", "z"), budget_bytes=8, **said), plan)


def test_a_budget_that_offloading_cannot_meet_is_refused() -> None:
    problem = chain(offload_cost=[0, inf, 0], recompute_cost=[0, inf, 9], budget_bytes=7)
    with pytest.raises(Infeasible, match="every plan saves at least 8"):
        solve(problem)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ([1, 2], "Problem.offload must be remat.plugin.Offload of 3 values"),
        ([1, 2, -3], "Offload.cost must not be negative, got -3"),
        ([1, 2, 0.5], "whole numbers"),
        ([2**62, 2**62, 0], r"Offload|add up to less than 2\*\*62"),
    ],
)
def test_a_price_that_is_none_is_refused(cost: list[float], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        chain(offload_cost=cost)


def test_a_maximum_flow_in_a_file_states_two_choices(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProblem, match="a DIMACS file does not support offloading"):
        write_dimacs(chain(), tmp_path / "problem")


def test_what_knows_no_host_refuses_it() -> None:
    """Nothing takes an offloaded value for one on the device."""
    graph = GRAPH
    problem = MemoryBudget(0.5).pose(graph)
    problem = replace(problem, offload=Offload(np.zeros(len(problem), np.int64), Bans.none(len(problem))))
    plan = solve(problem).plan
    assert plan.offloaded
    with pytest.raises(UnsupportedProblem, match="a limit on peak memory does not support offloading"):
        fit_peak(graph, replace(problem, budget_bytes=None), (2**30,))


def test_several_graphs_share_a_budget_and_a_host() -> None:
    host = chain(offload_cost=[inf, 5, 20], budget_bytes=None)
    both = union_problem([Subproblem(GRAPH, host, 2), Subproblem(GRAPH, host)])
    assert both.offload.cost.tolist() == [0, 10, 40, 0, 5, 20]
    assert both.offload.banned.mask.tolist() == [True, False, False] * 2
    choice = Choice(*np.array([[True] * 6, [False] * 6, [False, True, True, False, False, True]]))
    assert [
        mine.offloaded.tolist()
        for _, mine in split_choice([Subproblem(GRAPH, host, 2), Subproblem(GRAPH, host)], choice)
    ] == [[False, True, True], [False, False, True]]


def test_a_solver_says_what_it_does_not_take() -> None:
    class Classic(Exhaustive):
        features = frozenset({Feature.BUDGET})

    with pytest.raises(UnsupportedProblem, match="does not support offloading"):
        solve(chain(), Classic())
    with pytest.raises(UnsupportedProblem, match="takes up to 10 values with offloading, got 11"):
        solve(Problem.of([0] * 11, offload_cost=[0] * 11), "exhaustive")


def reasons(graph: Graph) -> dict[str, str | None]:
    bans = cannot_offload(graph)
    return {name: bans.reason(i) for i, name in enumerate(graph.names)}


def test_what_is_not_contiguous_is_read_from_the_strides(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 8, 8, requires_grad=True).to(memory_format=torch.channels_last)
    graph = capture(lambda x: x.exp().tanh().contiguous().exp().sum(), images)
    strided = [name for name, flag in zip(graph.names, graph.noncontiguous, strict=True) if flag]
    assert {"exp", "tanh"} <= set(strided)
    assert "clone" not in strided
    assert reasons(graph)["exp"] == "not contiguous: it would come back in rows"
    assert reasons(graph)["clone"] is None
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json").noncontiguous.tolist() == graph.noncontiguous.tolist()


def test_strides_of_symbolic_sizes_are_read_and_guarded_by_nothing() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    graph = capture(lambda x: (x.t().exp().tanh() + x.exp().tanh().t()).sum(), x)
    assert any(dtype == "symint" for dtype in graph.dtypes)
    assert graph.noncontiguous.any()


def test_a_file_that_does_not_say_takes_values_for_contiguous(tmp_path: Path) -> None:
    graph = Corpus.open().graph("small-dropout-mlp")
    assert not graph.noncontiguous.any()
    graph.save(tmp_path / "graph.json")
    assert "noncontiguous" not in (tmp_path / "graph.json").read_text()


def test_each_reason_is_told() -> None:
    g = GraphBuilder()
    x, w, size = g.input("x", bytes=4), g.input("w", bytes=4, parameter=True), g.input("s", bytes=8, dtype="symint")
    view = g.op("view", x, view=True, name="view of an input")
    y = g.op("mm", view, w, size, name="y", bytes=4)
    g.op("view", y, view=True, name="view")
    double = g.op("add", size, size, name="double", bytes=8, dtype="symint")
    several = g.op("several", y, double, name="tuple", bytes=0, cannot_save="a tuple")
    g.op("getitem", several, name="element", bytes=4)
    out = g.op("exp", y, name="out", bytes=4)
    returned = g.op("view", out, name="returned", view=True)
    g.output(returned)
    dy = g.tangent("dy", bytes=4)
    g.gradient(g.op("mul", dy, y, out, view, "view", "element", double, name="dx"))
    holder = "which the caller holds"
    assert reasons(g.build()) == {
        "x": f"an input's memory, {holder}",
        "w": f"an input's memory, {holder}",
        "s": f"an input's memory, {holder}",
        "view of an input": f"an input's memory, {holder}",
        "y": None,
        "view": "a view: what owns its memory can be",
        "double": "no tensor with a size",
        "tuple": "a tuple",
        "element": None,
        "out": f"memory of an output, {holder}",
        "returned": f"memory of an output, {holder}",
        "dy": "only the backward pass computes it",
        "dx": "only the backward pass computes it",
    }
