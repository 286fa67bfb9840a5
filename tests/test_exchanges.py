"""A plan is improved by exchanges of saved values: those that are worth more for those that are worth less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import remat
from costmodels import MemoryBudget, RecomputeTime
from remat import Graph, GraphBuilder
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.facts.columns import IntArray
from remat.improve.changes import Change, Offer, Payment
from remat.improve.exchanges import Exchanges
from remat.improve.limited_search import LimitedSearch
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.time_prices import AboveLimit, Liveness
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
    """Has few moments, and the bytes that each saved value takes at them (moments, k): `sizes`."""

    sizes: IntArray

    def moments(self, choice: Choice, step: Any) -> Liveness:
        del choice
        return Liveness(np.array(step.alive_bytes), *[np.array([], np.int64)] * 2)

    def after(self, moments: Liveness, before: Choice, after: Choice) -> Liveness:
        added = (self.sizes * after.saved).sum(1) - (self.sizes * before.saved).sum(1)
        return replace(moments, alive_bytes=moments.alive_bytes + added)

    def above_limit(self, moments: Liveness, limit_bytes: int, most: int) -> AboveLimit:
        at = np.flatnonzero(moments.alive_bytes > limit_bytes)
        return AboveLimit(at, moments.alive_bytes[at] - limit_bytes, self.sizes[at].T)


class Toy:
    """Prices plans of `kinds`: a recomputed value takes 1, 10 or 20 ns, and what is saved is alive at the peak."""

    def __init__(self, dear: int, cheap: int, large: int = 0, at_least: int = 0) -> None:
        self.set_graph(kinds(dear=dear, cheap=cheap, large=large))
        self.at_least = at_least

    def set_graph(self, graph: Graph) -> None:
        self.plans = ToyPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
        names = self.plans.problem.names
        self.kind = np.array([name.rstrip("0123456789") for name in names])
        self.plans.sizes = np.array([[0] * len(names), [SIZES.get(kind, 0) for kind in self.kind]])
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
        alive_bytes = np.array([self.at_least, 0]) + self.plans.sizes[:, choice.saved].sum(1)
        return SimpleNamespace(alive_bytes=alive_bytes, peak_bytes=int(alive_bytes.max()))

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


def test_what_an_exchange_frees_makes_room_for_the_part_that_fits() -> None:
    """Each dear value takes twice as much as is estimated, and the start fills its limit."""

    class Twice(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            return PeakPlan(choice, 0, BYTES * (2 * self.saved(choice)["dear"] + self.saved(choice)["cheap"]))

    toy, tried = Twice(8, 8), list[str]()
    predict = toy.plan
    toy.plan = lambda choice, _source="": tried.append(_source) or predict(choice)
    better = toy.exchanges(8 * BYTES).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 0}
    assert "exchange in part" in tried


def test_a_large_value_is_not_given_where_a_small_one_suffices() -> None:
    """The large value is cheaper per byte, but 40 times as large as what is needed."""
    toy = Toy(1, 4, large=1)
    better = toy.exchanges(44 * BYTES).improved(toy.start("cheap", "large"))
    assert toy.saved(better.choice) == {"dear": 1, "cheap": 3, "large": 1}


def test_a_byte_that_is_missing_is_paid_by_a_whole_value_and_an_exact_fit_by_no_more() -> None:
    payer, size = Change(np.arange(32), saves=False, ns=32.0), np.full((32, 1), 10**9)
    for needed, count in [(1, 1), (10**9, 1), (10**9 + 1, 2), (15 * 10**9, 15), (10**12, 32)]:
        excess = np.array([needed])
        part, freed_bytes = payer.freeing(AboveLimit(np.array([0]), excess, size), excess)
        assert (part.values.tolist(), part.ns, freed_bytes.tolist()) == ([*range(count)], count, [count * 10**9])
    assert replace(payer, saves=True).first(2).values.tolist() == [30, 31]
    part, freed_bytes = replace(payer, bytes_factor=0.5).freeing(AboveLimit(np.array([0]), excess, size), excess // 200)
    assert (part.values.tolist(), freed_bytes.tolist()) == ([*range(10)], [5 * 10**9])


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


def test_no_change_is_proposed_twice_and_only_what_it_changes_counts() -> None:
    """What a product reads cannot be saved here, so the product is; two of the five products are always saved."""
    g = GraphBuilder()
    x = g.input("x", bytes=BYTES)
    bases = [g.op("base", x, bytes=BYTES, name=f"base{i}", cannot_save="of a product") for i in range(5)]
    products = [g.op("dear", base, bytes=BYTES, name=f"dear{i}") for i, base in enumerate(bases[:3])]
    products += [
        g.op("dear", base, bytes=BYTES, name=f"dear{i}", cannot_recompute="here")
        for i, base in [(3, bases[3]), (4, bases[4])]
    ]
    g.output(g.op("sum", *products, bytes=4))
    g.gradient(g.op("back", g.tangent("dy", bytes=4), *products, *bases, bytes=BYTES))
    toy, proposed = Toy(0, 0), list[list[Choice]]()
    toy.set_graph(g.build())
    start = toy.start()
    effects = toy.effects
    toy.effects = lambda before, changed: proposed.append([one[0] for one in changed]) or effects(before, changed)
    better = toy.exchanges(3 * BYTES).improved(start)
    assert [toy.saved(choice)["dear"] for choice in proposed[0]] == [3]
    names = np.array(toy.plans.problem.names)
    assert set(names[better.choice.saved]) >= {"dear2", "dear3", "dear4"}, "there is room for one of the other three"


@pytest.mark.parametrize(
    ("factor", "saved", "freed"), [(0.8, 4, 1), (0.9, 4, 1), (1.1, 4, 2), (1.25, 4, 2), (1.5, 4, 3), (2, 3, 3)]
)
def test_for_a_predicted_change_as_much_room_is_made_as_its_peak_says(factor: float, saved: int, freed: int) -> None:
    """What is dear takes more or less than is estimated; the start is three values below its peak."""

    class Times(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            kinds = self.saved(choice)
            return PeakPlan(choice, 0, max(self.at_least, int(BYTES * (factor * kinds["dear"] + kinds["cheap"]))))

    toy = Times(4, 4, at_least=7 * BYTES)
    exchanges, start = toy.exchanges(7 * BYTES), toy.start("cheap")
    changes, before = exchanges._changes(start), exchanges._liveness(start.choice)
    dear = next(change for change in changes if change.saves)
    predicted = exchanges._predicted(start, before, dear)
    offer = exchanges._offer(start, before, predicted, changes)
    assert predicted.bytes_factor == pytest.approx(factor)
    assert len(offer.part.values) == saved
    assert [len(payment.part.values) for payment in offer.paid] == [freed]


@pytest.mark.parametrize(("frees", "factor"), [(1, 1), (0.5, 0.5), (0, 0), (-1, 0)])
def test_what_is_predicted_to_free_less_than_estimated_counts_less(frees: float, factor: float) -> None:
    class Partly(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            cheap = 4 - self.saved(choice)["cheap"]
            return PeakPlan(choice, 0, int(BYTES * (4 - frees * cheap)))

    toy = Partly(4, 4)
    exchanges, start = toy.exchanges(4 * BYTES), toy.start("cheap")
    cheap = next(change for change in exchanges._changes(start) if not change.saves)
    assert exchanges._predicted(start, exchanges._liveness(start.choice), cheap).bytes_factor == factor


def test_what_is_dearer_than_what_it_makes_room_for_is_kept() -> None:
    class Masks(Toy):
        def ns(self, choice: Choice) -> float:
            return super().ns(choice) + 15 * sum(self.kind[choice.recomputed] == "mask")

    toy, tried = Masks(0, 0), list[str]()
    toy.set_graph(kinds(dear=2, cheap=1, mask=1))
    predict = toy.plan
    toy.plan = lambda choice, _source="": tried.append(_source) or predict(choice)
    better = toy.exchanges(2 * BYTES).improved(toy.start("cheap", "mask"))
    assert toy.saved(better.choice) == {"dear": 1, "cheap": 0, "mask": 1}
    assert tried == ["", "exchange"]


def test_what_is_recomputed_already_is_not_counted_on_once_more() -> None:
    """Each dear value takes half as much again as is estimated."""

    class More(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            tried.append(_source)
            return super().plan(choice)

        def timeline(self, choice: Choice) -> Any:
            saved = self.saved(choice)
            alive_bytes = np.array([self.at_least, BYTES * (3 * saved["dear"] // 2 + saved["cheap"])])
            return SimpleNamespace(alive_bytes=alive_bytes, peak_bytes=int(alive_bytes.max()))

    tried = list[str]()
    toy = More(4, 4, at_least=7 * BYTES)
    better = toy.exchanges(7 * BYTES).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 1}
    assert tried == ["", "exchange", "exchange"]


def test_a_part_that_gains_less_than_all_that_is_paid_is_not_made() -> None:
    """The whole exchange would be faster, but what is dear takes twice as much as is estimated."""

    class Dearer(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            return PeakPlan(choice, 0, BYTES * (2 * self.saved(choice)["dear"] + self.saved(choice)["cheap"]))

        def ns(self, choice: Choice) -> float:
            return super().ns(choice) + 7 * sum(self.kind[choice.recomputed] == "cheap")

    toy = Dearer(4, 4)
    start = toy.start("cheap")
    assert toy.exchanges(4 * BYTES).improved(start) is start


def test_what_several_calls_free_together_makes_room_for_the_part_that_fits() -> None:
    class Twice(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            kinds = self.saved(choice)
            tried.append((_source, kinds["dear"]))
            return PeakPlan(choice, 0, 2 * BYTES * (2 * kinds["dear"] + kinds["cheap"]))

    tried = list[tuple[str, int]]()
    toy = Twice(8, 8)
    toy.plans.in_flight = 2
    toy.exchanges(16 * BYTES).improved(toy.start("cheap"))
    assert tried[:3] == [("", 0), ("exchange", 8), ("exchange in part", 4)]


def test_an_exchange_that_is_not_faster_is_not_made() -> None:
    """To recompute what is cheap takes ten times as long as its single values say."""

    class Slow(Toy):
        def effects(self, before: Choice, changed: Sequence[Sequence[Choice]]) -> list[float]:
            return [ns if ns < 0 else ns / 20 for ns in super().effects(before, changed)]

        def ns(self, choice: Choice) -> float:
            return super().ns(choice) + 19 * sum(self.kind[choice.recomputed] == "cheap")

    toy = Slow(4, 4)
    start = toy.start("cheap")
    assert toy.exchanges(4 * BYTES).improved(start) is start


@pytest.mark.parametrize(("ns", "after"), [(4, 1028), (6, 1032), (8, 1036), (12, 1040)])
def test_if_a_part_of_a_class_fits_only_its_part_is_paid(ns: int, after: int) -> None:
    """What is dear takes memory at two moments. At the first, there is room for two values, and nothing makes more."""

    class OneMomentPays(Toy):
        def set_graph(self, graph: Graph) -> None:
            super().set_graph(graph)
            dear, cheap = self.kind == "dear", self.kind == "cheap"
            self.plans.sizes = BYTES * np.array([dear, dear | cheap], np.int64)

        def timeline(self, choice: Choice) -> Any:
            alive_bytes = np.array([2 * BYTES, 0]) + self.plans.sizes[:, choice.saved].sum(1)
            return SimpleNamespace(alive_bytes=alive_bytes, peak_bytes=int(alive_bytes.max()))

        def ns(self, choice: Choice) -> float:
            return 1000 + sum({"dear": 10, "cheap": ns}.get(kind, 0) for kind in self.kind[choice.recomputed])

    toy = OneMomentPays(4, 4)
    start = toy.start("cheap")
    better = toy.exchanges(4 * BYTES).improved(start)
    assert toy.ns(start.choice) == 1040
    assert toy.ns(better.choice) == after
    assert better.peak_bytes <= 4 * BYTES


def test_of_several_calls_in_flight_each_takes_its_part_of_the_limit() -> None:
    class Twice(Toy):
        def plan(self, choice: Choice, _source: str = "") -> PeakPlan:
            return PeakPlan(choice, 0, 2 * self.timeline(choice).peak_bytes)

    toy, tried = Twice(4, 4), list[str]()
    toy.plans.in_flight = 2
    predict = toy.plan
    toy.plan = lambda choice, _source="": tried.append(_source) or predict(choice)
    better = toy.exchanges(10 * BYTES).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 1}
    assert tried == ["", "exchange"]


def test_only_changes_with_a_large_effect_are_predicted_one_by_one() -> None:
    def estimate(ns: float, values: int = 1) -> Change:
        return Change(np.arange(values), saves=ns < 0, ns=ns)

    change, dear, cheap, large = estimate(-100), estimate(11), estimate(1), estimate(2)
    paid = [Payment(dear, dear, 5), Payment(cheap, cheap, 5), Payment(large, large, 90)]
    offer = Offer(change, change, paid)
    assert offer.largest_estimate is change
    offer = replace(offer, change=replace(change, is_predicted=True))
    assert offer.largest_estimate is large
    paid[2] = replace(paid[2], payer=replace(large, is_predicted=True))
    assert offer.largest_estimate is dear
    paid[0] = replace(paid[0], payer=replace(dear, is_predicted=True))
    assert offer.largest_estimate is None


def test_what_is_alive_at_another_moment_than_the_peak_makes_room_there() -> None:
    """At the peak nothing could be absent; what is dear raises another moment to it, at which all that is cheap is."""
    toy, tried = Toy(4, 4, at_least=5 * BYTES), list[str]()
    predict = toy.plan
    toy.plan = lambda choice, _source="": tried.append(_source) or predict(choice)
    better = toy.exchanges(5 * BYTES).improved(toy.start("cheap"))
    assert toy.saved(better.choice) == {"dear": 4, "cheap": 1}
    assert tried == ["", "exchange"]


class TwoMoments(Toy):
    """Has all that is cheap alive at one moment; at another, its second half, twice as large, and all that is dear."""

    def set_graph(self, graph: Graph) -> None:
        super().set_graph(graph)
        cheap = self.kind == "cheap"
        late = cheap & (cheap.cumsum() > cheap.sum() // 2)
        self.plans.sizes = BYTES * np.array([cheap, (self.kind == "dear") + 2 * late], np.int64)


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
