"""The frontier: exact vertices, a valid bound at every budget, plans in between."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from depth import drawn
from examples import cosines
from helpers import FLOW, each, every_plan
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Dice, every_legal_mask, late_views, training_steps

import remat
from costmodels import MemoryBudget, RecomputeTime
from remat import Choice, Corpus, Infeasible, InvalidOption, Problem, frontier, solve
from remat.answer.plan_facts import no_recompute_saved, no_recompute_saved_bytes
from remat.errors import CertificateRejected
from remat.improve.byte_budgets import default_saved_bytes
from remat.improve.frontier import EAGER, PYTORCH
from remat.improve.pareto_front import pareto_front
from remat.improve.progress import ending_within
from remat.plugin import SOURCE, FlowSolver, IntArray, Network, Sides
from remat.problem.multipliers import BY_BYTES, BY_COST, Multipliers
from remat.proof.certify import proven_bound
from remat.proof.hull import Hull
from remat.testing import graphs, problems


def layers(count: int, bytes: int = 100, cost: int = 7) -> Problem:
    """A network of equal layers, each of which may keep its activation, or make it again from the one before."""
    n = count + 1
    return Problem.of(
        [0] * n,
        edges=[(0, v) for v in range(1, n)],
        needed=range(1, n),
        recompute_cost=[0] + [cost] * count,
        save_bytes=[0] + [bytes] * count,
        cannot_recompute={0: "an input"},
    )


def lower_hull(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The vertices of the lower left convex hull, from the fewest bytes on; by hand, for few points."""
    cheapest: dict[int, int] = {}
    for size, cost in points:
        cheapest[size] = min(cost, cheapest.get(size, cost))
    hull: list[tuple[int, int]] = []
    for size, cost in sorted(cheapest.items()):
        if hull and cost >= hull[-1][1]:
            continue
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (size - hull[-2][0]) >= (cost - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((size, cost))
    return hull


def are_countable(problem: Problem) -> bool:
    """Costs times bytes stay below 2^62, so that no price of memory is rounded; beyond, only bounds are promised."""
    cost = int(problem.save_cost.sum()) + int(problem.recompute_cost.sum())
    return 2 * cost * int(problem.save_bytes.sum()) < 2**62


@drawn(150)
@given(problems(max_values=6).filter(are_countable))
def test_the_vertices_are_those_of_all_plans(problem: Problem) -> None:
    every = [(plan.saved_bytes, plan.cost) for plan in every_plan(problem)]
    assert [point.point for point in frontier(problem).vertices] == lower_hull(every)


@drawn(150)
@given(problems(max_values=6).filter(are_countable), st.data())
def test_the_bound_holds_at_every_budget(problem: Problem, data: st.DataObject) -> None:
    curve = frontier(problem)
    budget = data.draw(st.integers(0, int(problem.save_bytes.sum()) + 1))
    within = [plan.cost for plan in every_plan(problem) if plan.saved_bytes <= budget]
    bound = curve.bound(budget)
    assert (bound is None) == (not within)
    if bound is not None:
        assert bound <= min(within) <= curve.at(budget).cost
        assert all(bound == point.cost for point in curve.vertices if point.saved_bytes == budget)


@drawn(150)
@given(problems(max_values=30).filter(are_countable))
def test_every_edge_is_proven_by_its_flow(problem: Problem) -> None:
    curve = frontier(problem)
    for edge in curve.edges:
        for end in (edge.left, edge.right):
            within = replace(problem, budget_bytes=end.saved_bytes)
            assert edge.is_exact
            assert proven_bound(within, edge.certificate) == end.cost


@drawn(150)
@given(problems(max_values=30))
def test_cheaper_memory_recomputes_less(problem: Problem) -> None:
    """Where saving is free but for its bytes, the cuts are nested: what is recomputed only shrinks."""
    free = replace(problem, save_cost=np.zeros(len(problem), np.int64))
    for tight, loose in pairwise(frontier(free).vertices):
        assert set(loose.plan.recomputed) <= set(tight.plan.recomputed)


@each(FLOW)
@drawn(30)
@given(problems(max_values=12, largest=1000))
def test_every_flow_solver_draws_the_same_frontier(solver: FlowSolver, problem: Problem) -> None:
    assert [p.plan for p in frontier(problem, solver=solver).points] == [p.plan for p in frontier(problem).points]


@drawn(75)
@given(problems(max_values=10, largest=2**40), st.data())
def test_bounds_hold_where_weights_are_too_large_for_the_solver(problem: Problem, data: st.DataObject) -> None:
    """2^40 times 2^40 is past 62 bits: the price of memory is rounded, the bound is not."""
    curve = frontier(problem)
    budget = data.draw(st.integers(curve.points[0].saved_bytes, int(problem.save_bytes.sum()) + 1))
    best = solve(replace(problem, budget_bytes=budget), "exhaustive").objective
    bound = curve.bound(budget)
    assert bound <= best <= curve.at(budget).cost


def test_coarser_weights_keep_the_ratio() -> None:
    weights = Multipliers(3 * 10**17 + 1, 2 * 10**11 + 1)
    coarse = weights.coarser(40)
    assert max(coarse.cost, coarse.byte) < 2**40
    assert coarse.byte / coarse.cost == pytest.approx(weights.byte / weights.cost, rel=1e-3)
    assert weights.coarser(60) == weights
    assert Multipliers(10**18, 1).coarser(8) == Multipliers(255, 1)


@pytest.mark.parametrize("wrong", [(0, 0), (-1, 2), (1.0, 0.0), (True, 1), (math.nan, 1)])
def test_weights_that_weigh_nothing(wrong: tuple[int, int]) -> None:
    with pytest.raises(InvalidOption, match="whole numbers, non-negative and not both 0"):
        Multipliers(*wrong)


@drawn(75)
@given(problems(max_values=7, largest=2**58), st.data())
def test_no_prices_are_too_large_for_a_frontier(problem: Problem, data: st.DataObject) -> None:
    """In the end bytes are free, which every problem allows; no bound, drawn ones included, is above a plan."""
    curve = frontier(problem)
    every = list(every_plan(problem))
    assert {point.point for point in curve.vertices} <= set(lower_hull([(p.saved_bytes, p.cost) for p in every]))
    figure = curve.plot()
    drawn = next(line for line in figure.axes[0].lines if line.get_label() == "proven bound")
    for plan in every:
        bound = curve.bound(plan.saved_bytes)
        assert bound <= plan.cost
        assert np.interp(plan.saved_bytes, *drawn.get_data()) <= plan.cost * (1 + 1e-9)
    budget = data.draw(st.integers(curve.points[0].saved_bytes, int(problem.save_bytes.sum())))
    solution = solve(replace(problem, budget_bytes=budget), "lagrangian")
    assert solution.bound <= min(plan.cost for plan in every if plan.saved_bytes <= budget)


def test_a_large_storage_beside_a_small_one_that_is_dear() -> None:
    """Eight bits for the price of a byte are too many: all bytes are weighed, those that are always saved, too."""
    least, cost = 2**60 + 1, 2**40 + 1
    problem = Problem.of(
        [0] * 3, needed=range(3), recompute_cost=[0, cost, 1], save_bytes=[least, 1, 5], cannot_recompute={0: "a seed"}
    )
    curve = frontier(problem)
    assert [point.point for point in curve.vertices] == [(least, cost + 1), (least + 1, 1), (least + 6, 0)]
    assert [edge.is_exact for edge in curve.edges] == [False, True]
    first, *others = curve.vertices
    assert first.bound == curve.bound(least) < first.cost  # what was not proven is not called so
    assert all(point.is_proven for point in others)
    assert solve(replace(problem, budget_bytes=least), "lagrangian").objective == cost + 1


def test_a_vertex_that_rounded_weights_miss_is_not_drawn_over() -> None:
    problem = Problem.of(
        [288230376151711744, 250, 349603, 250],
        edges=[(0, 1), (1, 2), (0, 2), (2, 3)],
        needed=[0, 1, 3],
        recompute_cost=[1220, 4685533962111566, 1084242, 4685533962111566],
        save_bytes=[30090034151, 555, 1173, 192314],
        cannot_recompute={0: "an input", 2: "random"},
    )
    curve = frontier(problem, solver="networkx")
    line = curve.plot().axes[0].lines[0]
    assert line.get_label() == "proven bound"
    for plan in every_plan(problem):
        assert np.interp(plan.saved_bytes, *line.get_data()) <= plan.cost * (1 + 1e-9)


@dataclass(frozen=True)
class Lazy(FlowSolver):
    """Says of no flow at all that it is a maximum."""

    name: ClassVar[str] = "lazy"

    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        start = np.arange(network.num_vertices) == SOURCE
        return np.zeros(len(network.tails), np.int64), Sides(source=start, sink=~start)


def test_a_cut_that_its_flow_does_not_prove_is_no_vertex() -> None:
    with pytest.raises(CertificateRejected, match=r"lazy: the minimum cut weighs .*, not 0 as claimed$"):
        frontier(layers(12), solver=Lazy())


def test_what_a_price_of_memory_proves() -> None:
    assert BY_COST.bound(9, None) == 9
    assert BY_BYTES.bound(100, 99) is None
    assert BY_BYTES.bound(100, 100) == 0
    assert Multipliers(cost=2, byte=3).bound(100, 10) == 35
    assert Multipliers(cost=2, byte=3).bound(101, 10) == 36  # rounded up: costs are integers
    assert Multipliers(cost=2, byte=3).bound(10, 10) == 0  # no plan costs less than nothing


def test_one_plan_that_is_best_in_both() -> None:
    curve = frontier(Problem.of([0, 0], edges=[(0, 1)], needed=[1], cannot_recompute={0: "an input"}))
    assert [point.point for point in curve.points] == [(0, 0)]
    assert curve.edges == ()
    assert (curve.bound(0), curve.at(0).cost) == (0, 0)


def test_bans_that_leave_no_plan_are_explained() -> None:
    with pytest.raises(Infeasible, match="no plan can make 'v0' available"):
        frontier(Problem.of([np.inf], needed=[0], cannot_recompute={0: "random"}))


def test_only_cuts_make_a_frontier() -> None:
    with pytest.raises(InvalidOption, match=r"needs a flow solver .*, got 'pulp'"):
        frontier(layers(3), solver="pulp")


def test_equal_layers_make_one_edge_and_are_filled_one_by_one() -> None:
    curve = frontier(layers(12)).refine([100, 250, "1.2kB"])
    assert [point.point for point in curve.vertices] == [(0, 84), (1200, 0)]
    assert [(p.budget_bytes, p.saved_bytes, p.cost, p.bound) for p in curve.points if not p.is_vertex] == [
        (100, 100, 77, 77),
        (250, 200, 70, 67),
        (1200, 1200, 0, 0),
    ]


@pytest.mark.parametrize("solver", ["lagrangian", "cpsat", "pulp"])
@drawn(15)
@given(problem=problems(max_values=10, largest=1000))
def test_refined_points_keep_their_budget_and_their_bound(solver: str, problem: Problem) -> None:
    curve = frontier(problem).refine(5, solver)
    assert [p.saved_bytes for p in curve.points] == sorted(p.saved_bytes for p in curve.points)
    for point in curve.points:
        assert curve.price(point.plan) == point.point
        assert point.bound <= point.cost
        assert point.saved_bytes <= point.budget_bytes
        best = solve(replace(problem, budget_bytes=point.budget_bytes), "exhaustive").objective
        assert point.bound <= best <= point.cost


def test_a_frontier_of_a_graph_in_time() -> None:
    curve = frontier(cosines(), estimator="roofline")
    assert curve.unit == "ns"
    assert curve.as_frame()["cost_ns"].is_monotonic_decreasing
    flops = frontier(cosines(), estimator="flops")
    assert (flops.unit, flops.vertices[-1].cost) == ("flops", 0)
    traffic = frontier(cosines(), cost_model="byte-traffic")
    assert (
        traffic.vertices[-1].cost
        == solve(remat.answer.registry.find_costmodel("byte-traffic").pose(cosines())).objective
    )


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (-1, "whole number of bytes"),
        (True, "whole number of bytes"),
        (1.5, "whole number of bytes"),
        (math.nan, "whole number of bytes"),
        ("8 bananas", "a number and a unit"),
    ],
)
def test_budgets_that_are_none(budget: object, message: str) -> None:
    curve = frontier(layers(2))
    for ask in (curve.at, curve.bound, lambda budget: curve.refine([budget])):
        with pytest.raises(InvalidOption, match=message):
            ask(budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("budgets", [-1, -3, True, 0.5, None, "8GB"])
def test_budgets_to_refine_that_are_none(budgets: object) -> None:
    with pytest.raises(InvalidOption, match="must be a number of budgets, or a list such as"):
        frontier(layers(2)).refine(budgets)  # type: ignore[arg-type]


def test_budgets_of_numpy_count_as_those_of_python() -> None:
    curve = frontier(layers(12))
    assert curve.bound(np.uint8(200)) == curve.bound(200) == curve.bound("200 B") == 70
    assert len(curve.refine(np.int64(3)).points) == 5
    for solver in ("lagrangian", "cpsat", "pulp", "knapsack-dp"):
        within = replace(layers(12), budget_bytes=np.uint8(200))
        assert (type(within.budget_bytes), solve(within, solver).objective) == (int, 70)


def test_spacing_keeps_to_the_ends_past_what_a_double_holds() -> None:
    least = 2**60 + 1
    problem = Problem.of(
        [0, 0], needed=[0, 1], recompute_cost=[0, 9], save_bytes=[least, 3], cannot_recompute={0: "a seed"}
    )
    curve = frontier(problem).refine(2)
    assert [point.budget_bytes - least for point in curve.points] == [0, 1, 2, 3]


def test_what_an_exact_solver_claims_stands_beside_what_is_proven() -> None:
    """Three of 100 bytes do not fill 250: the hull does not know, the integer program does."""
    (point,) = (p for p in frontier(layers(12)).refine([250], "cpsat").points if not p.is_vertex)
    assert (point.cost, point.claimed_bound, point.bound, point.is_proven) == (70, 70, 67, False)
    frame = frontier(cosines()).refine(2).as_frame()
    assert (frame["claimed_bound_ns"] >= frame["bound_ns"]).all()


def test_what_a_frontier_is_not_made_of() -> None:
    with pytest.raises(InvalidOption, match=r"needs a remat.Graph or a remat.Problem, got 'gpt2.json.gz'"):
        frontier("gpt2.json.gz")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="left out for a problem, which has its own prices, got 'byte-traffic'"):
        frontier(layers(2), cost_model="byte-traffic")


def test_a_budget_of_the_cost_model_is_ignored() -> None:
    vertices = [point.plan for point in frontier(cosines()).vertices]
    for of in ("saved", "peak"):
        assert [p.plan for p in frontier(cosines(), cost_model=MemoryBudget(0.5, of=of)).vertices] == vertices


def test_no_plan_saves_so_little() -> None:
    curve = frontier(Problem.of([0], needed=[0], save_bytes=[8], cannot_recompute={0: "a seed"}))
    with pytest.raises(InvalidOption, match="must be at least 8, the fewest bytes that any plan saves, got 7"):
        curve.at(7)
    assert curve.bound(7) is None
    with pytest.raises(Infeasible, match="every plan saves at least 8"):
        curve.refine([7])


def test_the_picture_is_written(tmp_path: Path) -> None:
    curve = frontier(layers(12)).refine(4)
    figure = curve.plot(tmp_path / "frontier.svg", other_points={"PyTorch": [(600, 60)]})
    axes = figure.axes[0]
    assert (tmp_path / "frontier.svg").read_text().startswith("<?xml")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("saved activations", "cost (cost)")
    drawn = [text.get_text() for text in axes.get_legend().get_texts()]
    assert drawn == ["proven bound", "plans between them", "hull vertices, optimal", "PyTorch"]


def test_the_old_name_of_other_points_draws_the_same_and_warns() -> None:
    curve, points = frontier(layers(12)), {"PyTorch": [(600, 60)]}
    with pytest.warns(DeprecationWarning, match="other_points= now"):
        old = curve.plot(beside=points)
    new = curve.plot(other_points=points)
    assert [line.get_xydata().tolist() for line in old.axes[0].lines] == [
        line.get_xydata().tolist() for line in new.axes[0].lines
    ]


def test_pytorchs_and_eagers_plan_stand_beside_every_frontier_of_a_graph() -> None:
    graph = Corpus.open().graph("small-dropout-mlp")
    curve = frontier(graph)
    theirs, eager = curve.references
    assert (theirs.solver, eager.solver) == ("PyTorch's default", "nothing runs twice (eager)")
    assert (theirs.saved_bytes, eager.saved_bytes) == (default_saved_bytes(graph), no_recompute_saved_bytes(graph))
    for point in curve.references:
        assert curve.price(point.plan) == point.point
        assert point.bound <= point.cost
    axes = curve.plot().axes[0]
    assert axes.get_title() == "dropout MLP: a small model of our own: memory against recompute time"
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert all(drawn[point.solver] == [list(point.point)] for point in curve.references)


@pytest.mark.parametrize(
    ("name", "offload"),
    [
        ("small-gpt-fused-attention", False),
        ("small-resnet", False),
        ("small-resnet", "h100"),
        ("small-gpt-fused-attention", "h100"),
    ],
)
def test_where_nothing_runs_twice_no_time_is_added(name: str, offload: str | bool) -> None:
    """Attention, and the search for maxima, make what the backward pass alone reads: it is kept, not made again."""
    graph = Corpus.open().graph(name)
    with ending_within(1e-9):  # the references come without any search
        curve = frontier(graph, estimator="roofline:device=h100", offload=offload)
    (eager,) = [point for point in curve.references if point.solver == EAGER]
    assert eager.cost == 0
    assert not any(graph.compute_bound[graph.index[name]] for name in eager.plan.recomputed)


def test_a_landmark_that_is_not_legal_is_left_out() -> None:
    graph = Corpus.open().graph("small-dropout-mlp")
    assert {point.solver for point in frontier(graph).references} == {PYTORCH, EAGER}
    kept = no_recompute_saved(graph) & ~graph.input
    graph = replace(graph, cannot_save=graph.cannot_save.also(kept, "for this test"))
    assert EAGER not in {point.solver for point in frontier(graph).references}


def test_a_hull_is_asked_for_its_part_at_a_budget_only() -> None:
    hull = Hull(layers(12), remat.proof.budget.flow_solver())
    edge = hull.edge_at(250)
    assert (edge.left.point, edge.right.point, edge.bound(250)) == ((0, 84), (1200, 0), 67)
    assert hull.edge_at(1200) is None


def view_beside_its_owner() -> remat.Graph:
    """A view that takes time to compute again, of a value that is saved as well."""
    g = remat.GraphBuilder()
    first = g.op("exp", g.input("x", bytes=5), bytes=2, name="first")
    owner = g.op("exp", first, bytes=1, name="owner")
    other = g.op("exp", owner, bytes=1, name="other")
    g.output(first, owner, other)
    view = g.op("slice", owner, first, bytes=1, view=True, name="view")
    gradient = g.op("exp", g.tangent("dy", bytes=5), bytes=1, name="gradient")
    g.gradient(owner, other, view, gradient)
    return g.build()


@example(view_beside_its_owner(), 0)
@drawn(150)
@given(graphs(max_values=8, facts=False, largest=8) | training_steps() | late_views(), st.integers(0, 9))
def test_no_legal_plan_costs_less_than_the_bound_at_its_own_bytes(graph: remat.Graph, seed: int) -> None:
    """Whatever views a plan saves, where the problem bans no more than that; and whatever the prices."""
    for model in (RecomputeTime(), Dice(seed)):
        curve = frontier(graph, cost_model=model)
        for saved in every_legal_mask(graph):
            choice = Choice.from_saved(graph, saved)
            if not (choice.recomputed[graph.plannable] & curve.problem.cannot_recompute.mask).any():
                saved_bytes, cost = curve.price(choice.plan(graph))
                assert (curve.bound(saved_bytes) or 0) <= cost


COSTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def _beats(costs: tuple[int, int], others: tuple[int, int]) -> bool:
    return costs != others and costs[0] <= others[0] and costs[1] <= others[1]


@given(COSTS)
def test_the_front_has_the_costs_that_no_other_ones_beat(costs: list[tuple[int, int]]) -> None:
    unbeaten = sorted({one for one in costs if not any(_beats(other, one) for other in costs)})
    assert pareto_front(costs, key=lambda one: one) == unbeaten


@given(COSTS)
def test_of_equal_items_the_first_stays(costs: list[tuple[int, int]]) -> None:
    front = pareto_front(enumerate(costs), key=lambda item: item[1])
    assert all(costs.index(pair) == place for place, pair in front)
