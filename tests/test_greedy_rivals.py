"""Greedy, the integer program and the uniform budget are what `experiments.rivals.greedy` says, on small problems."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import remat
from costmodels import RecomputeTime
from experiments.bench.greedy import by_ratio, compare
from experiments.models.zoo import gpt2
from experiments.rivals.greedy import Candidates, equal_layers, exact, greedy, knapsack
from remat import Choice, Graph, GraphBuilder
from remat.facts.columns import BoolArray, IntArray
from remat.improve.one_liners import every_layer_checkpointed
from remat.predict.time.known_devices import find_device

NUMBERS = st.tuples(st.integers(0, 30), st.integers(1, 12))


@st.composite
def knapsacks(draw: st.DrawFn) -> tuple[IntArray, IntArray, int]:
    """Times, sizes and a budget of up to seven candidates."""
    times, sizes = np.array(draw(st.lists(NUMBERS, min_size=1, max_size=7)), np.int64).T
    return times, sizes, draw(st.integers(0, int(sizes.sum())))


def every_answer(count: int) -> list[BoolArray]:
    return [np.array(flags, np.bool_) for flags in product((False, True), repeat=count)]


@given(knapsacks())
def test_greedy_follows_the_rule_of_torchtitan(case: tuple[IntArray, IntArray, int]) -> None:
    """What goes while it fits is the first of all sets that fit, if sets are ordered by their cheapest members."""
    times, sizes, budget = case
    must_go = int(sizes.sum()) - budget
    order = sorted(range(len(sizes)), key=lambda i: times[i] / sizes[i])
    fitting = [gone for gone in every_answer(len(sizes)) if sizes[gone].sum() <= must_go]
    gone = max(fitting, key=lambda gone: tuple(gone[order]))
    if sizes[gone].sum() < must_go:
        smallest = min(sizes[~gone])
        gone[np.flatnonzero(~gone & (sizes == smallest))[0]] = True
    kept = greedy(times, sizes, budget)
    assert (kept == ~gone).all()
    assert sizes[kept].sum() <= budget


@given(knapsacks())
def test_one_candidate_is_all_that_the_ratio_rule_can_lose(case: tuple[IntArray, IntArray, int]) -> None:
    """Dantzig (1957): with a part of the first candidate that does not fit, the rule would be at the bound."""
    times, sizes, budget = case
    best = min(int(times[~kept].sum()) for kept in every_answer(len(sizes)) if sizes[kept].sum() <= budget)
    rule, solved = by_ratio(times, sizes, budget), exact(times, sizes, budget)
    assert times[~solved].sum() == best <= times[~rule].sum() <= best + times.max()
    for kept in (rule, solved):
        assert sizes[kept].sum() <= budget
    assert remat.solve(knapsack(times, sizes, budget), "exhaustive").objective == best


def test_greedy_may_drop_the_dearest_candidate_because_it_is_small() -> None:
    """Two bytes must go, and only the dearest candidate has no more; or one byte, and it is the smallest of all."""
    times, sizes = np.array([100, 10, 11]), np.array([2, 4, 4])
    for budget in (8, 9):
        assert greedy(times, sizes, budget).tolist() == [False, True, True]
        assert by_ratio(times, sizes, budget).tolist() == [True, False, True]


def layers(count: int = 2) -> Graph:
    """Layers of two products, something cheap, and attention, whose second result only the backward pass reads."""
    g = GraphBuilder()
    names, where = [g.input("x", bytes=8)], {}
    for layer in range(count):
        up = g.op("mm", names[-1], bytes=6, flops=10**12, compute_bound=True)
        cheap = g.op("gelu", up, bytes=5)
        pair = g.op("attention", cheap, bytes=0, flops=10**13, compute_bound=True, cannot_save="a tuple")
        out, sums = (g.op("getitem", pair, bytes=size) for size in (4, 1))
        end = g.op("down", out, bytes=8, flops=10**12, compute_bound=True)
        where |= dict.fromkeys((up, cheap, pair, out, sums, end), f"net.{layer}")
        names += [cheap, out, sums, end]
    g.output(names[-1])
    late = g.tangent("dy", bytes=8)
    for name in reversed(names[1:]):
        late = g.op("mul", late, name, bytes=8)
    g.gradient(late)
    graph = g.build()
    return replace(graph, modules=tuple(where.get(name, "") for name in graph.names))


def candidates_of(graph: Graph) -> tuple[Candidates, BoolArray]:
    stays = every_layer_checkpointed(graph)
    assert stays is not None
    return Candidates.of(graph, RecomputeTime("flops").pose(graph), stays, find_device("h100")), stays


def test_candidates_are_what_the_backward_pass_reads_of_a_layer_with_all_of_a_tuple() -> None:
    graph = layers()
    candidates, stays = candidates_of(graph)
    pairs = zip(candidates.makers, candidates.values, strict=True)
    found = [[graph.ops[made], *(graph.names[value] for value in values)] for made, values in pairs]
    assert found == [
        ["gelu", "gelu"],
        ["attention", "getitem", "getitem_1"],
        ["gelu", "gelu_1"],
        ["attention", "getitem_2", "getitem_3"],
    ]
    assert candidates.sizes_bytes.tolist() == [5, 5] * 2
    assert candidates.layers.tolist() == [0, 0, 1, 1]
    assert stays[list(graph.names).index("down")], "what a layer passes on"


def test_layers_share_a_budget_by_their_bytes_or_take_it_in_turn() -> None:
    candidates, stays = candidates_of(layers(3))
    assert candidates.uniform(15) == {0: 5, 1: 5, 2: 5}
    assert candidates.one_after_another(15) == {0: 10, 1: 5, 2: 0}
    kept = candidates.spend(exact, candidates.uniform(15))
    assert kept.tolist() == [False, True] * 3
    assert candidates.cost(kept) == candidates.times_ns[~kept].sum()
    saved = candidates.saved(kept, stays)
    assert saved.sum() == stays.sum() + 6


def test_a_product_that_only_something_cheap_reads_has_no_price_in_the_knapsack() -> None:
    graph = layers()
    problem = RecomputeTime("flops").pose(graph)
    candidates, stays = candidates_of(graph)
    dear = np.array([graph.ops[made] != "gelu" for made in candidates.makers])
    choice = Choice.from_saved(problem, candidates.saved(dear, stays)[graph.plannable])
    assert candidates.cost(dear) < 10**12 < choice.cost(problem)


def test_equal_layers_are_tied_place_by_place_as_an_enumeration_finds_them() -> None:
    """Each of four places is saved in both layers, or in none."""
    graph, budget = layers(), 31
    free = RecomputeTime("flops").pose(graph)
    places = [{"mm", "mm_1"}, {"gelu", "gelu_1"}, {"getitem", "getitem_2"}, {"getitem_1", "getitem_3"}]
    costs: list[int] = []
    for flags in product((False, True), repeat=len(places)):
        names = {"x", "down", "down_1"}.union(*(place for place, flag in zip(places, flags, strict=True) if flag))
        choice = Choice.from_saved(free, np.array([name in names for name in graph.names])[graph.plannable])
        if choice.saved_bytes(free) <= budget:
            costs.append(choice.cost(free))
    tied = replace(free, tied=equal_layers(graph, free), budget_bytes=budget)
    assert remat.solve(tied, "cpsat").objective == min(costs)
    assert remat.solve(replace(tied, tied=None), "cpsat").objective < min(costs)


def test_no_answer_within_the_budget_is_below_its_bound() -> None:
    model, args = gpt2(layers=2, width=32, heads=2, vocabulary=64, context=16, batch=2, fused=True)
    for row in compare(remat.capture(model, *args), "small", (0.5,)):
        within = [way for way, over in row["over"].items() if over <= 0]
        assert {*row["over"]} - {"dp knapsack"} <= {*within}
        for costs in ("independent", "whole"):
            assert all(row[costs]["bound"] <= row[costs][way] for way in within if way in row[costs])
        assert row["independent"]["exact"] <= row["independent"]["ilp"] <= row["independent"]["by ratio"]
        assert row["independent"]["ilp"] <= row["independent"]["greedy"]
        assert row["whole"]["best"] <= min(row["whole"]["uniform"], row["whole"]["candidates"], row["whole"]["choose"])
