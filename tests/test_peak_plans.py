"""Peaks that are searched for: no budget gets less than a smaller one, and none holds more than saving everything."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from depth import drawn
from hypothesis import given
from hypothesis import strategies as st

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.models.cases import CASES
from remat import Graph, GraphBuilder, InvalidOption, check_plan, choose
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import find_estimator, find_solver
from remat.improve import peak_search
from remat.improve.peak_plans import PeakPlans
from remat.improve.peak_search import fit_peak
from remat.improve.time_prices import TimeIndexedPrices
from remat.predict.buffers import StepMemory
from remat.predict.memory import Simulator, lower_bound, simulate
from remat.testing import graphs


def network(seed: int) -> Graph:
    """Layers with residual branches, of uneven sizes and costs; the backward pass reads most of them."""
    dice = random.Random(seed)
    g = GraphBuilder()
    layers, read = [g.input("x", bytes=10)], list[str]()
    for i in range(dice.randint(6, 25)):
        branch = [dice.choice(layers[-5:])] if dice.random() < 0.5 else []
        slow = dice.random() < 0.6
        size, flops = dice.randint(1, 100), dice.randint(1, 1000)
        layers.append(g.op("mm", layers[-1], *branch, name=f"f{i}", bytes=size, flops=flops, compute_bound=slow))
        if dice.random() < 0.7:
            read.append(layers[-1])
    g.output(layers[-1])
    d = g.tangent("d", bytes=dice.randint(1, 50))
    for i, value in enumerate(reversed(read)):
        also = [dice.choice(read)] if dice.random() < 0.2 else []
        d = g.op("mm", d, value, *also, name=f"b{i}", bytes=dice.randint(1, 100), compute_bound=dice.random() < 0.6)
        if dice.random() < 0.3:
            g.gradient(g.op("mm", d, value, name=f"g{i}", bytes=dice.randint(1, 60), compute_bound=True))
    g.gradient(d)
    return g.build()


@cache
def captured(name: str) -> Graph:
    torch.manual_seed(0)
    return remat.capture(CASES[name].build(), *CASES[name].inputs())


@pytest.mark.parametrize(
    ("seed", "smaller", "larger"), [(0, 550, 561), (7, 443, 450), (7, 548, 555), (11, 717, 732), (16, 605, 617)]
)
def test_a_larger_budget_neither_costs_more_nor_peaks_lower(seed: int, smaller: int, larger: int) -> None:
    """Where a search of its own for each budget did one or the other."""
    graph, costs, peaks = network(seed), list[int](), list[int]()
    for limit in (smaller, larger):
        solution = choose(graph, MemoryBudget(f"{limit} B", of="peak", estimator="flops"))
        costs.append(solution.objective)
        peaks.append(simulate(graph, solution.plan).peak_bytes)
        assert peaks[-1] <= limit
    assert costs[0] >= costs[1]
    assert peaks[0] <= peaks[1]


@drawn(50)
@given(graphs(facts=False))
def test_plans_are_legal_simulated_and_unbeaten(graph: Graph) -> None:
    problem = RecomputeTime("flops").pose(graph)
    plans = PeakPlans(graph, problem, find_solver("lagrangian"))
    for plan in (plans.cheapest, *plans.front):
        made = plan.choice.plan(problem)
        assert check_plan(problem, made) == plan.cost >= remat.solve(problem).objective == plans.cheapest.cost
        assert simulate(graph, made).peak_bytes == plan.peak_bytes >= lower_bound(graph).bytes
    for low, high in pairwise(plans.front):
        assert low.peak_bytes < high.peak_bytes
        assert low.cost > high.cost
        assert plans.within(high.peak_bytes - 1) in (low, plans.cheapest)
    assert plans.within(plans.smallest.peak_bytes - 1) is None


@drawn(50)
@given(graphs(facts=False))
def test_moments_are_in_order_and_hold_the_peak_whatever_is_saved(graph: Graph) -> None:
    simulator, n = Simulator(graph), len(graph)
    clock = TimeIndexedPrices(simulator, RecomputeTime("flops").pose(graph))
    for saved in (np.zeros(n, np.bool_), graph.in_forward):
        moments = clock.moments(saved)
        assert moments.alive_bytes.max() == simulator.peak(saved)
        assert (n <= moments.first_read).all()
        assert (moments.first_read <= moments.last_read).all()
        assert (moments.last_read <= 2 * n).all()


@drawn(50)
@given(graphs(facts=False), st.randoms(use_true_random=False))
def test_any_set_of_saved_values_is_completed_to_a_legal_plan(graph: Graph, dice: random.Random) -> None:
    problem = RecomputeTime("flops").pose(graph)
    saved = np.array([dice.random() < 0.5 for _ in range(len(problem))], np.bool_)
    choice = PeakPlans(graph, problem, find_solver("lagrangian")).legal.saving(saved)
    check_plan(problem, choice.plan(problem))
    assert not (choice.saved & ~saved & ~problem.cannot_recompute.mask).any()


def test_moments_of_a_compiled_step_hold_its_peak_and_nothing_is_allocated_between_kernels() -> None:
    graph = remat.Corpus.open().graph("small-bert")
    step = StepMemory(graph).timeline(graph.in_forward)
    clock = TimeIndexedPrices(Simulator(graph), RecomputeTime("flops").pose(graph))
    alive = clock.moments(graph.in_forward, step).alive_bytes
    assert alive.max() == step.peak_bytes
    assert alive[: len(graph)].max() == step.forward_peak_bytes
    assert set(alive.tolist()) <= {0, *step.during_bytes.tolist()}


def test_memory_is_dear_while_most_is_alive() -> None:
    """Both values are as large and as long in the backward pass, but one is made after the peak."""
    g = GraphBuilder()
    early = g.op("mm", g.input("x", bytes=1), name="early", bytes=10, flops=5, compute_bound=True)
    wide = g.op("mm", early, name="wide", bytes=90, flops=1, compute_bound=True)
    late = g.op("mm", wide, name="late", bytes=10, flops=5, compute_bound=True)
    g.output(g.op("mm", late, name="loss", bytes=1, compute_bound=True))
    g.gradient(g.op("mm", g.tangent("d"), early, late, name="dx", bytes=1, compute_bound=True))
    graph = g.build()
    problem = RecomputeTime("flops").pose(graph)
    clock = TimeIndexedPrices(Simulator(graph), problem)
    priced = clock.priced(clock.moments(graph.in_forward), byte=1, focus=20)
    paid = dict(zip(problem.names, priced.save_cost.tolist(), strict=True))
    assert paid["early"] > 10 * paid["late"] > 0


@pytest.mark.parametrize(
    "name", ["pointwise chain", "dropout", "vmap and grad inside", "batch normalization", "embedding with tied weights"]
)
def test_no_budget_holds_more_than_saving_everything(name: str) -> None:
    graph = captured(name)
    everything = Simulator(graph).peak(graph.in_forward)
    for budget in (1.0, "8 GB"):
        plan = choose(graph, MemoryBudget(budget, of="peak")).plan
        assert simulate(graph, plan).peak_bytes <= everything


def test_what_costs_nothing_is_not_recomputed_where_that_takes_memory() -> None:
    """The copies are free to make again: that saves the fewest bytes, but there are the copies beside their source."""
    g = GraphBuilder()
    seed = g.op("mm", g.input("x", bytes=1), name="seed", bytes=10, flops=1, compute_bound=True)
    copies = [g.op("repeat", seed, name=f"copy_{i}", bytes=9, fusible=False) for i in range(2)]
    g.output(g.op("mm", *copies, name="loss", bytes=1, compute_bound=True))
    d = g.op("mm", g.tangent("d"), name="wide", bytes=30, compute_bound=True)
    g.gradient(g.op("mm", d, *copies, name="dx", bytes=1, compute_bound=True))
    graph = g.build()
    fewest, best = (choose(graph, model) for model in (RecomputeTime("flops"), MemoryBudget(1.0, "peak", "flops")))
    assert fewest.objective == best.objective == 0
    assert (fewest.plan.saved, best.plan.saved) == (("seed",), ("copy_0", "copy_1"))
    assert [simulate(graph, found.plan).peak_bytes for found in (fewest, best)] == [59, 50]


@pytest.mark.parametrize("name", ["pointwise chain", "batch normalization", "recurrent cells", "encoder layer"])
def test_the_price_of_a_plan_is_the_time_of_what_both_passes_compute(name: str) -> None:
    """What the backward pass alone needs is computed there, once: it costs nothing, and is not held before."""
    graph, estimator = captured(name), find_estimator("roofline")
    problem, price = RecomputeTime(estimator).pose(graph), estimator.recompute_cost(graph)
    for budget in (0.0, 0.5, 1.0):
        solution = choose(graph, MemoryBudget(budget, estimator=estimator))
        twice = PlanFacts.of(graph, solution.plan).recomputed_ops
        cost = remat.Choice.from_plan(problem, solution.plan).cost(problem)
        assert cost == sum(int(price[graph.index[v]]) for v in twice)


def test_what_the_backward_pass_alone_needs_waits_for_it() -> None:
    g = GraphBuilder()
    saved = g.op("mm", g.input("x", bytes=8), name="saved", bytes=8, flops=100, compute_bound=True)
    g.output(g.op("sin", saved))
    g.gradient(g.op("mul", g.tangent("d"), g.op("cos", saved, flops=100), saved, name="dx"))
    graph = g.build()
    solution = choose(graph, RecomputeTime("flops"))
    assert (solution.plan.saved, solution.plan.recomputed, solution.objective) == (("saved",), ("cos",), 0)


def test_one_choice_takes_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[PeakPlans] = []

    def counted(*args: Any) -> PeakPlans:
        searches.append(PeakPlans(*args))
        return searches[-1]

    monkeypatch.setattr(peak_search, "PeakPlans", counted)
    graph = network(16)
    choose(graph, MemoryBudget(0.3, of="peak", estimator="flops"))
    assert len(searches) == 1
    choose(graph, MemoryBudget("1 GB", of="peak", estimator="flops"))
    assert "front" not in vars(searches[1])  # nothing to search for


def test_of_several_limits_the_tightest_counts() -> None:
    graph = network(16)
    loose, tight = MemoryBudget("1 GB", of="peak", estimator="flops"), MemoryBudget(0, of="peak", estimator="flops")
    assert (loose + tight).peak_limits == (10**9, Fraction(0))
    assert choose(graph, loose + tight).plan == choose(graph, tight + loose).plan
    least, most = (simulate(graph, choose(graph, model).plan).peak_bytes for model in (loose + tight, loose))
    assert least < most


def test_limits_are_whole_numbers_or_fractions_whatever_their_type() -> None:
    graph = network(16)
    problem = RecomputeTime("flops").pose(graph)
    same = [fit_peak(graph, problem, (limit,)).plan for limit in (617, np.int16(617))]
    assert same[0] == same[1]
    with pytest.raises(InvalidOption, match=r"peak_limits must hold whole numbers of bytes, or Fractions .* got 0\.5"):
        fit_peak(graph, problem, (0.5,))  # type: ignore[arg-type]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_progress_counts_every_plan_looked_at(is_compiled: bool) -> None:
    graph, calls = captured("embedding with tied weights") if is_compiled else network(16), list[Any]()
    model = MemoryBudget(0.5, of="peak", estimator="flops")
    solution = choose(graph, model, progress=lambda count, last: calls.append((count, last)))
    assert solution.objective is not None
    assert [count for count, _ in calls] == [*range(1, len(calls) + 1)]
    assert (remat.timeline(graph, solution.plan).peak_bytes, solution.objective) in [last for _, last in calls]
    with pytest.raises(InvalidOption, match="progress must be a function of a count and a score, got 3"):
        choose(graph, model, progress=3)  # type: ignore[arg-type]
