"""A plan is improved by exchanges of saved values: those that are worth more for those that are worth less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import remat
from costmodels import MemoryBudget, RecomputeTime
from remat import Graph, GraphBuilder
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.facts.columns import BoolArray, IntArray
from remat.improve.exchanges import Change, Exchanges
from remat.improve.limited_search import LimitedSearch
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.time_prices import AboveLimit
from remat.predict.time import Flops

BYTES = 100
SIZES = {"dear": BYTES, "cheap": BYTES, "large": 40 * BYTES, "mask": BYTES, "numbers": 4 * BYTES}


def kinds(**counts: int) -> Graph:
    """Returns a graph that computes so many values of each kind from its input, and reads all backward."""
    g = GraphBuilder()
    x = g.input("x", bytes=BYTES)
    values = [g.op(kind, x, bytes=SIZES[kind], name=f"{kind}{i}") for kind, n in counts.items() for i in range(n)]
    g.output(g.op("sum", *values, bytes=4))
    g.gradient(g.op("back", g.tangent("dy", bytes=4), *values, bytes=BYTES))
    return g.build()


class ToyPlans(PeakPlans):
    """All that is saved is alive at one moment."""

    def peaks_with(self, choice: Choice, step: Any, saved_too: Sequence[BoolArray]) -> list[int]:
        del choice
        return [step.at_forward_end + int(self.problem.save_bytes[values].sum()) for values in saved_too]

    def above_limit(self, choice: Choice, step: Any, limit_bytes: int, most: int) -> AboveLimit:
        del choice, most
        return AboveLimit(np.array([max(step.peak_bytes - limit_bytes, 0)]), self.problem.save_bytes[:, None])


class Toy:
    """Prices plans of `kinds`: a recomputed value takes 1, 10 or 20 ns, and what is saved is alive at the peak."""

    def __init__(self, dear: int, cheap: int, large: int = 0, at_least: int = 0) -> None:
        self.set_graph(kinds(dear=dear, cheap=cheap, large=large))
        self.at_least = at_least

    def set_graph(self, graph: Graph) -> None:
        self.plans = ToyPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
        names = self.plans.problem.names
        self.kind = np.array([name.rstrip("0123456789") for name in names])
        self.classes = np.unique(self.kind, return_inverse=True)[1]

    def start(self, *kinds: str) -> PeakPlan:
        return self.plan(self.plans.legal.saving(np.isin(self.kind, kinds)))

    def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
        return PeakPlan(choice, 0, self.timeline(choice).peak_bytes)

    def ns(self, choice: Choice) -> float:
        return 1000 + sum({"dear": 10, "cheap": 1, "large": 20}.get(kind, 0) for kind in self.kind[choice.recomputed])

    def saved(self, choice: Choice) -> dict[str, int]:
        counts = {kind: int(choice.saved[self.kind == kind].sum()) for kind in SIZES}
        return {kind: count for kind, count in counts.items() if kind in self.kind}

    def timeline(self, choice: Choice) -> Any:
        names, kinds = np.array(self.plans.problem.names)[choice.saved], self.kind[choice.saved]
        alive = [
            SimpleNamespace(name=n, bytes=SIZES.get(kind, 0), why="saved") for n, kind in zip(names, kinds, strict=True)
        ]
        saved_bytes = sum(t.bytes for t in alive)
        peak_bytes = max(self.at_least, saved_bytes)
        return SimpleNamespace(peak_tensors=alive, peak_bytes=peak_bytes, at_forward_end=saved_bytes)

    def exchanges(self, limit_bytes: int) -> Exchanges:
        return Exchanges(LimitedSearch(limit_bytes, self.plans, self.plan, self, self.timeline, self.classes))

    def of(self, choice: Choice) -> float:
        return self.ns(choice)

    def seems_worse(self, choice: Choice, best: Choice) -> bool:
        return self.ns(choice) > self.ns(best)

    def effects(self, before: Choice, changed: Sequence[Sequence[Choice]]) -> list[float]:
        return [self.ns(choices[0]) - self.ns(before) for choices in changed]


def test_as_little_as_possible_of_what_is_cheap_is_given_for_what_is_dear() -> None:
    toy = Toy(4, 4)
    better = toy.exchanges(5 * BYTES + 50).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 1}


def test_nothing_dear_is_given_for_what_is_cheap() -> None:
    toy = Toy(4, 4)
    start = toy.start("dear")
    assert toy.exchanges(4 * BYTES).improved(start) is start


def test_where_all_does_not_fit_a_part_of_the_values_is_saved() -> None:
    toy = Toy(4, 4)
    nothing = toy.plan(toy.plans.legal.saving(np.zeros(len(toy.kind), np.bool_)))
    better = toy.exchanges(3 * BYTES).improved(nothing)
    assert toy.saved(better.choice) == {"dear": 3, "cheap": 0}
    assert better.choice.saved[toy.kind == "dear"].tolist() == [False, True, True, True]  # the last are freed first


def test_an_exchange_beyond_the_limit_is_paid_by_what_is_alive_at_its_peak() -> None:
    """At the peak of the start, recomputing what is cheap frees nothing: the peak is elsewhere."""
    toy = Toy(4, 4, at_least=7 * BYTES)
    better = toy.exchanges(7 * BYTES + 99).improved(toy.start("cheap"))
    assert toy.saved(better.choice)["dear"] == 4
    assert better.peak_bytes == 7 * BYTES


def test_if_the_whole_exchange_does_not_fit_the_part_that_fits_is_made_next() -> None:
    """Each dear value takes twice as much as is estimated; nothing is saved that could pay."""
    toy, tried = Toy(8, 0), list[int]()
    predict = toy.plan

    def plan(choice: Choice, _source: str = "") -> PeakPlan:
        tried.append(toy.saved(choice)["dear"])
        return PeakPlan(choice, 0, 2 * predict(choice).peak_bytes)

    toy.plan = plan
    nothing = toy.plan(toy.plans.legal.saving(np.zeros(len(toy.kind), np.bool_)))
    better = toy.exchanges(11 * BYTES).improved(nothing)
    assert toy.saved(better.choice)["dear"] == 5
    assert tried[:3] == [0, 8, 5]


def test_a_large_value_is_not_given_where_a_small_one_suffices() -> None:
    """The large value is cheaper per byte, but 40 times as large as what is needed."""
    toy = Toy(1, 4, large=1)
    better = toy.exchanges(44 * BYTES).improved(toy.start("cheap", "large"))
    assert toy.saved(better.choice) == {"dear": 1, "cheap": 3, "large": 1}


def test_a_byte_that_is_missing_is_paid_by_a_whole_value_and_an_exact_fit_by_no_more() -> None:
    payer = Change(np.arange(32), saves=False, ns=32.0, peak_bytes=-32 * 10**9)
    for needed, count in [(1, 1), (10**9, 1), (10**9 + 1, 2), (15 * 10**9, 15), (10**12, 32)]:
        part = payer.freeing(needed)
        assert (len(part.values), part.ns, part.peak_bytes) == (count, count, -count * 10**9)
    assert payer.freeing(2 * 10**9).values.tolist() == [0, 1]
    assert replace(payer, saves=True).freeing(2 * 10**9).values.tolist() == [30, 31]


def test_a_mask_is_not_given_where_its_random_numbers_must_be_saved_instead() -> None:
    """The numbers take four times the bytes of the mask; before this rule, masks were the first to be predicted."""
    g = GraphBuilder()
    x = g.input("x", bytes=BYTES)
    numbers = g.op("numbers", x, bytes=4 * BYTES, random=True, cannot_recompute="random")
    mask, dear = g.op("mask", numbers, bytes=BYTES), g.op("dear", x, bytes=BYTES)
    g.output(g.op("sum", mask, dear, bytes=4))
    g.gradient(g.op("back", g.tangent("dy", bytes=4), mask, dear, bytes=BYTES))
    toy = Toy(0, 0)
    toy.set_graph(g.build())
    proposed = list[Choice]()
    predict = toy.plan
    toy.plan = lambda choice, _source="": proposed.append(choice) or predict(choice)
    start = toy.start("mask")
    assert toy.exchanges(start.peak_bytes).improved(start) is start
    assert not any(choice.saved[toy.kind == "numbers"].any() for choice in proposed)


class TwoMoments(Toy):
    """Has all that is cheap alive at one moment; at another, its second half, twice as large, and all that is dear."""

    def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
        later = sum(t.bytes for t in self.timeline(choice).peak_tensors)
        return PeakPlan(choice, 0, max(BYTES * self.saved(choice)["cheap"], later))

    def timeline(self, choice: Choice) -> Any:
        dear, cheap = (np.flatnonzero(self.kind == kind) for kind in ("dear", "cheap"))
        sizes = dict.fromkeys(dear, BYTES) | dict.fromkeys(cheap[len(cheap) // 2 :], 2 * BYTES)
        names = self.plans.problem.names
        alive = [SimpleNamespace(name=names[v], bytes=sizes[v], why="saved") for v in sizes if choice.saved[v]]
        peak_bytes = max(BYTES * self.saved(choice)["cheap"], sum(t.bytes for t in alive))
        return SimpleNamespace(peak_tensors=alive, peak_bytes=peak_bytes, at_forward_end=peak_bytes)


def test_what_was_recomputed_already_does_not_pay_again() -> None:
    """The first half of what is cheap frees nothing at the later moment, so a part of the other half pays."""
    toy = TwoMoments(4, 8)
    better = toy.exchanges(8 * BYTES).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 6}


def test_a_plan_that_pays_nothing_for_what_it_recomputes_ends_the_search() -> None:
    """The search went on for ever if all ranks were 0."""

    class Products(Flops):
        def recompute_cost(self, graph: Graph) -> IntArray:
            return super().recompute_cost(graph) * graph.compute_bound

    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + torch.sin(torch.softmax(x @ w, -1)) * torch.tanh(x)
        return x

    graph = remat.capture(layers, torch.randn(256, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True))
    assert remat.choose(graph, MemoryBudget(1.0, of="peak", estimator=Products())).objective == 0


def test_small_values_are_saved_together_but_not_those_that_raise_the_peak() -> None:
    toy = Toy(8, 8)
    start = toy.start("dear")
    limit = 10**4 * BYTES
    most = start.peak_bytes + 5 * BYTES
    toy.plan = lambda choice, _source="": PeakPlan(  # more than that is beyond the limit
        choice, 0, limit + 1 if BYTES * sum(toy.saved(choice).values()) > most else limit
    )
    better = toy.exchanges(limit).with_small_values(toy.plan(start.choice))
    assert toy.saved(better.choice) == {"dear": 8, "cheap": 5}


def test_an_operator_with_several_results_is_not_recomputed_if_its_results_are_saved() -> None:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x.sin(), 0)
        return (x.sin() - mean) * (variance + 1).rsqrt() * variance

    graph = remat.capture(normalize, torch.randn(8, 4, requires_grad=True))
    plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
    ops = np.array(graph.ops)[graph.plannable]
    pair = np.flatnonzero([op.startswith("aten.var_mean") for op in ops])
    recomputes = plans.legal.saving(np.zeros(len(ops), np.bool_))
    assert recomputes.recomputed[pair].all()
    saves = plans.legal.also_saving(recomputes, pair)
    assert not saves.recomputed[pair].any()
    assert set(ops[saves.saved & ~recomputes.saved]) == {"getitem"}
