"""Checkmate's formulation: it is proven against all schedules, its schedules are replayed, and ours are among them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import numpy as np
import pytest
from depth import drawn
from hypothesis import given
from hypothesis import strategies as st

from costmodels import RecomputeTime
from experiments.rivals.checkmate.coarse import coarse
from experiments.rivals.checkmate.instance import Instance, InvalidSchedule, Replayed, replay, schedule_of
from experiments.rivals.checkmate.solve import least_cost
from remat import Choice, Corpus, Graph, InvalidOption
from remat.answer.registry import find_solver
from remat.improve.peak_plans import PeakPlans
from remat.predict.memory import Simulator
from remat.testing import graphs


def plain(graph: Graph) -> Graph:
    """The same values without views and fusion, the tangents' closure last; all take memory, and prices differ."""
    n = len(graph)
    unfused = replace(graph, fusible=np.zeros(n, np.bool_), fusible_uses=np.zeros(len(graph.producers), np.bool_))
    found = coarse(unfused, n)
    return replace(found, bytes=np.maximum(found.bytes, 1), flops=3 + np.arange(len(found)) * 7 % 5)


PLAIN = graphs(max_values=10, facts=False, largest=8).map(plain)


State: TypeAlias = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
"""Cost, stage, the next value of the stage, what is held, and what was computed and must not be again."""


def by_search(instance: Instance, budget_bytes: int) -> float:
    """The least cost of all schedules of the stages: Dijkstra's algorithm over the place in them and what is held."""
    queue: list[State] = [(0, 0, 0, (), ())]
    seen = set[State]()
    while queue:
        cost, t, v, held, once = state = heapq.heappop(queue)
        if (0, *state[1:]) in seen:
            continue
        seen.add((0, *state[1:]))
        if t == len(instance.stages):
            if instance.gradients <= {*held}:
                return cost - sum(instance.costs)
            continue
        for after in successors(instance, budget_bytes, cost, t, v, held, once):
            heapq.heappush(queue, after)
    return math.inf


def successors(
    instance: Instance, budget_bytes: int, cost: int, t: int, v: int, held: tuple[int, ...], once: tuple[int, ...]
) -> Iterator[State]:
    begin = {own: stage for stage, own in enumerate(instance.stages) if own is not None}
    stage, value = (t, v + 1) if v + 1 < len(instance) else (t + 1, 0)
    if instance.stages[t] != v:
        yield cost, stage, value, held, once
    for u in {*held} - instance.outputs:
        yield cost, t, v, tuple(w for w in held if w != u), once
    can = {*instance.operands[v]} <= {*held} and v not in held and begin.get(v, 0) <= t and v not in once
    if can and sum(instance.sizes[u] for u in (*held, v)) <= budget_bytes:
        told = tuple(sorted({*once, v} & instance.once))
        yield cost + instance.costs[v], stage, value, tuple(sorted((*held, v))), told


def ours_by_trying(graph: Graph, instance: Instance, budget_bytes: int) -> float:
    """The least cost of all our plans within a budget of the simulated peak."""
    problem, simulator, best = RecomputeTime("flops").pose(graph), Simulator(graph), math.inf
    for wanted in product((False, True), repeat=len(problem)):
        choice = Choice.from_saved(problem, np.array(wanted))
        if (choice.recomputed & problem.cannot_recompute.mask).any():
            continue
        saved = graph.for_all_values(choice.saved)
        if simulator.peak(saved) <= budget_bytes:
            best = min(best, replay(instance, schedule_of(graph, saved)).cost)
    return best


def budgets(graph: Graph) -> list[int]:
    peak = Simulator(graph).peak(graph.in_forward)
    return [peak * share // 8 for share in (8, 7, 6, 5, 4)]


@drawn(150)
@given(PLAIN, st.data())
def test_each_of_our_plans_is_one_of_its_schedules(graph: Graph, data: st.DataObject) -> None:
    problem, instance = RecomputeTime("flops").pose(graph), Instance.of(graph)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem)))
    choice = Choice.from_saved(problem, np.array(wanted, np.bool_))
    saved = graph.for_all_values(choice.saved)
    if (choice.recomputed & problem.cannot_recompute.mask).any():
        return
    replayed = replay(instance, schedule_of(graph, saved))
    assert replayed.peak_bytes == Simulator(graph).peak(saved)
    assert replayed.cost >= choice.cost(problem)
    found = least_cost(instance, replayed.peak_bytes)
    assert found.is_proven
    assert found.cost <= replayed.cost


@drawn(60)
@given(PLAIN)
def test_it_finds_what_a_search_over_all_schedules_finds(graph: Graph) -> None:
    instance = Instance.of(graph)
    for budget in budgets(graph):
        least = by_search(instance, budget)
        for backend in ("cpsat", "pulp"):
            found = least_cost(instance, budget, backend)
            assert found.is_proven
            assert (math.inf if found.cost is None else found.cost) == least


@drawn(60)
@given(PLAIN)
def test_our_model_as_its_rows_is_our_model(graph: Graph) -> None:
    instance = Instance.of(graph)
    for budget in budgets(graph):
        found = [least_cost(instance, budget, rules=rules) for rules in ("ours", "twice", "checkmate")]
        costs = [math.inf if one.cost is None else one.cost for one in found]
        assert costs[0] == ours_by_trying(graph, instance, budget)
        assert costs == sorted(costs, reverse=True)
        plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
        if (plan := plans.within(budget)) is not None:
            assert replay(instance, schedule_of(graph, graph.for_all_values(plan.choice.saved))).cost >= costs[0]


CHAIN = Instance(
    names=("a", "b", "c", "d"),
    sizes=(4, 2, 1, 1),
    costs=(10, 5, 1, 1),
    operands=((), (0,), (1,), (0, 2)),
    stages=(0, 1, 2, 3),
    turn=1,
    once=frozenset({1}),
)
"""The last value reads the first again."""


def test_a_schedule_is_replayed() -> None:
    assert replay(CHAIN, (0, 1, 2, 3)) == Replayed(0, 7)
    assert replay(CHAIN, (0, 1, 2, 0, 3)) == Replayed(10, 6)
    assert replay(replace(CHAIN, outputs=frozenset({1})), (0, 1, 2, 0, 3)) == Replayed(10, 8)
    assert replay(replace(CHAIN, gradients=frozenset({2})), (0, 1, 2, 0, 3)) == Replayed(10, 6)


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ((0, 2, 1, 3), "computes 'c' without 'b'"),
        ((0, 1, 2), "nothing computes 'd'"),
        ((0, 1, 2, 1, 3), "computes 'b' again"),
    ],
)
def test_what_is_no_schedule_is_refused(runs: tuple[int, ...], says: str) -> None:
    with pytest.raises(InvalidSchedule, match=says):
        replay(CHAIN, runs)
    with pytest.raises(InvalidSchedule, match="order of the stages"):
        replay(replace(CHAIN, operands=((), (), (), ())), (1, 0, 2, 3))


def test_recomputing_more_than_once_can_pay() -> None:
    """A chain is read backwards: its start is computed again and again, with four values in memory."""
    k = 7
    names = tuple(f"f{i}" for i in range(k)) + tuple(f"b{i}" for i in range(k))
    operands = [(i - 1,) if i else () for i in range(k)]
    operands += [(k - 1,), *((k + i - 1, k - 1 - i) for i in range(1, k))]
    chain = Instance(names, (1,) * 2 * k, (1,) * 2 * k, tuple(operands), tuple(range(2 * k)), k - 1)
    costs = {rules: least_cost(chain, 4, rules=rules) for rules in ("ours", "twice", "checkmate")}
    assert all(found.is_proven for found in costs.values())
    assert [found.cost for found in costs.values()] == [None, None, 5]


@pytest.mark.parametrize("most", [10, 30, 1000])
def test_groups_keep_what_both_passes_need(most: int) -> None:
    graph = Corpus.open().graph("small-layernorm-gelu-mlp")
    joined = coarse(graph, most)
    groups = [v for v in range(len(joined)) if joined.ops[v] == "group"]
    assert len(groups) <= max(most, 2)
    assert joined.gradient.sum() <= graph.gradient.sum()
    assert joined.bytes[joined.output].sum() >= graph.bytes[graph.output].sum()
    replay(Instance.of(joined), schedule_of(joined, joined.in_forward))


def test_a_graph_that_is_not_plain_is_refused() -> None:
    with pytest.raises(InvalidOption, match="plain"):
        Instance.of(Corpus.open().graph("small-dropout-mlp"))
