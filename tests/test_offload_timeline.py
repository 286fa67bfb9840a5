"""Copies to the host beside kernels: the simulated timeline of a step, and the search for what to offload."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from depth import drawn
from examples import SLOW_LINK, library_calls
from helpers import every_plan
from hypothesis import given
from hypothesis import strategies as st
from test_compile import gradients

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import (
    Choice,
    Corpus,
    Frontier,
    Graph,
    GraphBuilder,
    Infeasible,
    InvalidOption,
    Plan,
    Problem,
    UnsupportedProblem,
)
from remat.errors import InvalidGraph
from remat.improve.offload_search import Delays, fit_offload
from remat.plugin import Bans
from remat.predict.offloading import OffloadTimeline, StepClock, offload_timeline
from remat.predict.offloading.offload_timeline import Simulated
from remat.testing import graphs


def check_consistent(line: OffloadTimeline, clock: StepClock) -> None:
    """What holds of any timeline: nothing runs twice at once, and nothing before what it waits for."""
    for start, end in ((line.start_ns, line.end_ns), *((c.start_ns, c.end_ns) for c in (line.out, line.back))):
        assert (start <= end).all()
        assert (start[1:] >= end[:-1]).all()
    assert (line.out.start_ns >= clock.written_ns[line.out.values]).all()
    assert line.forward_ns == max(clock.forward_end_ns, line.out.end_ns.max(initial=0))
    assert (line.back.start_ns >= line.forward_ns).all()
    place = {name: step for step, name in enumerate(line.names) if line.backward[step]}
    uses = list(zip(clock.graph.producers.tolist(), clock.graph.consumers.tolist(), strict=True))
    reads = {v: [w for u, w in uses if u == v] for v in line.back.values.tolist()}
    for v, end in zip(line.back.values.tolist(), line.back.end_ns.tolist(), strict=True):
        readers = [place[clock.graph.names[w]] for w in reads[v] if clock.graph.names[w] in place]
        assert all(line.start_ns[step] >= end for step in readers)
    assert 0 <= line.exposed_ns <= line.copied_ns
    assert line.ns == clock.compute_ns + line.recomputed_ns + line.exposed_ns
    assert line.ns == max(line.forward_ns, line.end_ns.max(initial=0), line.back.end_ns.max(initial=0))
    assert (line.device_bytes >= 0).all()


def legal(problem: Problem) -> list[Choice]:
    """All plans that offload nothing, whatever they save."""
    plans = every_plan(replace(problem, budget_bytes=None, offload=None))
    return [
        Choice(*(np.isin(np.arange(len(problem)), list(which)) for which in (p.saved, p.recomputed))) for p in plans
    ]


def test_a_timeline_by_hand() -> None:
    """Each matrix product reads and writes: a 200 ns (and 1,000 until it has run), b as long, the sum 104 ns."""
    graph = library_calls()
    plain = offload_timeline(graph, Plan(("a", "b"), ()), SLOW_LINK)
    assert (plain.forward_ns, plain.exposed_ns, plain.recomputed_ns) == (3504, 0, 0)
    assert plain.ns == 3504 + 1204 + 1300
    away = offload_timeline(graph, Plan(("a", "b"), (), offloaded=("a",)), SLOW_LINK)
    assert away.out.start_ns.tolist() == [1200]  # written; 100 bytes take 1,000 ns, and 50
    assert away.out.end_ns.tolist() == [2250]
    assert away.back.end_ns.tolist() == [3504 + 1204]  # as late as delays nothing
    assert (away.exposed_ns, away.hidden_ns, away.saved_bytes, away.host_bytes) == (0, 2100, 100, 100)
    both = offload_timeline(graph, Plan(("a", "b"), (), offloaded=("a", "b")), SLOW_LINK)
    assert both.out.start_ns.tolist() == [1200, 2400]
    assert both.forward_ns == 3504  # 2400 + 1050 is earlier
    assert both.back.end_ns.tolist() == [3504 + 1050, 3504 + 1050 + 1204]
    assert both.exposed_ns == 1050  # what reads b waits for its copy; that of a hides
    assert plain.device_bytes.tolist() == [100, 200, 204, 304, 304]
    assert both.device_bytes.tolist() == [100, 200, 104, 304, 304]  # a is away when the loss is computed


def test_a_short_prefetch_distance_exposes_more() -> None:
    plan = Plan(("a", "b"), (), offloaded=("a",))
    assert offload_timeline(library_calls(), plan, SLOW_LINK, prefetch_ns=1204).exposed_ns == 0
    assert offload_timeline(library_calls(), plan, SLOW_LINK, prefetch_ns=0).exposed_ns == 1050
    with pytest.raises(InvalidOption, match="prefetch_ns must be whole nanoseconds from 0 on, or None, got -1"):
        offload_timeline(library_calls(), plan, SLOW_LINK, prefetch_ns=-1)


def test_a_device_without_a_host_is_refused() -> None:
    graph = library_calls()
    for ask in (
        lambda: offload_timeline(graph, Plan(("a", "b"), ()), "cpu"),
        lambda: remat.frontier(graph, offload="cpu"),
        lambda: MemoryBudget(0.5, offload="cpu"),
        lambda: MemoryBudget(0.5, estimator="roofline:device=cpu", offload=True),
    ):
        with pytest.raises(InvalidOption, match=r"no link to a host .* name a GPU, such as 'h100'"):
            ask()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"estimator": "flops", "offload": True}, "name one, such as 'h100', and an estimator in ns, got True and "),
        ({"estimator": "flops", "offload": "h100"}, "and an estimator in ns, got 'h100'"),
        ({"offload": 1}, "MemoryBudget.offload weighs copies against times on a device: .* got 1 and "),
        ({"of": "peak", "offload": True}, 'MemoryBudget.offload needs of="saved"'),
    ],
)
def test_budgets_that_cannot_offload_are_refused(said: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        MemoryBudget(0.5, **said)  # type: ignore[arg-type]


@drawn(60)
@given(graphs(max_values=10), st.data())
def test_timelines_are_consistent_and_no_shorter_than_what_the_bound_counts(graph: Graph, data: st.DataObject) -> None:
    clock = StepClock.of(graph, SLOW_LINK)
    problem = MemoryBudget(0.0, offload=SLOW_LINK).pose(graph)
    choice = data.draw(st.sampled_from(legal(problem)))
    may = choice.saved & ~problem.offload.banned.mask  # type: ignore[union-attr]
    flags = data.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem)))
    saved, offloaded = graph.for_all_values(choice.saved), graph.for_all_values(may & np.array(flags))
    prefetch = data.draw(st.one_of(st.none(), st.integers(0, 5000)))
    seen = Simulated.of(clock, saved, offloaded, prefetch)
    check_consistent(seen.timeline, clock)
    assert seen.timeline.ns >= Simulated.of(clock, saved, offloaded).timeline.ns
    line = seen.timeline
    again = {name for name, later in zip(line.names, line.backward, strict=True) if later}
    redone = np.isin(graph.names, list(again)) & ~graph.in_tangents
    moved = np.isin(np.arange(len(graph)), line.out.values)
    forward, backward = Delays.of(clock).with_delays_of(seen).of_plan(redone, moved)
    assert forward.max() == line.forward_ns
    assert backward.max() <= line.ns - line.forward_ns


@st.composite
def priced_with_constants(draw: st.DrawFn) -> tuple[Graph, Problem]:
    """Some inputs become constants, which may have to be saved; and a user may price whatever there is."""
    graph = draw(graphs(max_values=7))
    constant, kept = graph.input.copy(), np.zeros(len(graph), np.bool_)
    for v in np.flatnonzero(graph.input).tolist():
        constant[v], kept[v] = draw(st.booleans()), draw(st.booleans())
    ops = tuple("get_attr" if constant[v] else op for v, op in enumerate(graph.ops))
    free = ~graph.must_recompute & ~graph.cannot_save.mask
    graph = replace(graph, ops=ops, input=graph.input & ~constant, must_save=graph.must_save | (constant & kept & free))
    problem = MemoryBudget(0.0, estimator="roofline", offload=SLOW_LINK).pose(graph)
    if draw(st.booleans()):
        prices = st.lists(st.integers(0, 3000), min_size=len(problem), max_size=len(problem))
        problem = replace(problem, recompute_cost=draw(prices))
    return graph, problem


def reads_a_constant(**told: bool) -> Graph:
    """Only a value that must be recomputed reads it."""
    g = GraphBuilder()
    c = g.op("get_attr", name="c", bytes=100, **told)
    a = g.op("mul", g.input("x", bytes=10), c, name="a", bytes=100, must_recompute=True)
    g.output(g.op("sum", a, name="y", bytes=4, fusible=False))
    g.gradient(g.op("mm", g.tangent("dy", bytes=4), a, name="dx", bytes=10, compute_bound=True))
    return g.build()


def test_a_constant_that_must_be_saved_is_not_copied() -> None:
    graph = reads_a_constant(must_save=True)
    problem = MemoryBudget(0.0, estimator="roofline", offload=SLOW_LINK).pose(graph)
    anything = replace(problem, offload=replace(problem.offload, banned=Bans.none(len(problem))))
    found = fit_offload(anything, StepClock.of(graph, SLOW_LINK))
    assert (found.plan.saved, found.plan.offloaded) == (("c", "x"), ())
    remat.check_plan(problem, found.plan)


def test_a_price_on_having_a_constant_again_adds_nothing() -> None:
    graph = reads_a_constant()
    problem = MemoryBudget(0.0, estimator="roofline", offload=SLOW_LINK).pose(graph)
    priced = replace(problem, recompute_cost=problem.recompute_cost + 1000)
    found = fit_offload(priced, StepClock.of(graph, SLOW_LINK))
    assert found.objective == found.bound == priced.recompute_cost[problem.index["a"]]


@drawn(150)
@given(priced_with_constants(), st.integers(0, 40))
def test_no_plan_adds_less_than_the_bound(posed: tuple[Graph, Problem], budget: int) -> None:
    graph, problem = posed
    clock = StepClock.of(graph, SLOW_LINK)
    problem = replace(problem, budget_bytes=budget)
    host = problem.offload
    least = None
    for choice in legal(problem):
        may = np.flatnonzero(choice.saved & ~host.banned.mask).tolist()
        for away in product((False, True), repeat=len(may)):
            offloaded = np.zeros(len(problem), np.bool_)
            offloaded[may] = away
            plan = Choice(choice.saved, choice.recomputed, offloaded)
            if not plan.keeps_budget(problem):
                continue
            priced = clock.priced(problem.recompute_cost)
            line = Simulated.of(priced, graph.for_all_values(plan.saved), graph.for_all_values(offloaded)).timeline
            least = line.added_ns if least is None else min(least, line.added_ns)
    if least is None:
        with pytest.raises(Infeasible):
            fit_offload(problem, clock, "cpsat")
        return
    found = fit_offload(problem, clock, "lagrangian")
    assert (found.bound or 0) <= least <= (found.objective or 0)
    remat.check_plan(problem, found.plan)
    assert found.is_proven == (found.objective == found.bound)


def test_offloading_beats_recomputing_alone_and_copies_that_nothing_hides() -> None:
    graph = Corpus.open().graph("small-gpt-fused-attention")
    model = MemoryBudget(0.3, estimator="roofline:device=h100", offload=True)
    found, alone = remat.choose(graph, model), remat.choose(graph, replace(model, offload=False))
    assert found.plan.offloaded
    assert (found.bound or 0) <= (found.objective or 0) < (alone.objective or 0)
    line = offload_timeline(graph, found.plan, "h100")
    assert line.added_ns == found.objective
    assert Choice.from_plan(model.pose(graph), found.plan).saved_bytes(model.pose(graph)) == line.saved_bytes
    assert "wait on the host" in str(line)
    assert len(line.as_frame()) == len(line.names)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Corpus.open().graph("small-dropout-mlp")


@pytest.fixture(scope="module")
def curve(graph: Graph) -> Frontier:
    return remat.frontier(graph, estimator="roofline:device=a100", offload="h100")


def test_the_frontier_with_a_host_lies_below_the_one_without(graph: Graph, curve: Frontier, tmp_path: Path) -> None:
    alone = remat.frontier(graph, estimator="roofline:device=a100")
    without = alone.refine([point.budget_bytes for point in curve.points if point.saved_bytes])
    for point in curve.points:
        assert point.bound <= point.cost
        assert (curve.bound(point.budget_bytes) or 0) <= point.cost
        if point.budget_bytes >= without.points[0].saved_bytes:
            assert point.cost <= without.at(point.budget_bytes).cost
    assert curve.at(curve.points[-1].budget_bytes).cost == min(point.cost for point in curve.points)
    assert any(point.plan.offloaded for point in curve.points)
    assert len(curve.refine(2).points) == len(curve.points) + 2
    assert curve.references
    curve.plot(f"{tmp_path}/curve.svg")
    offload_timeline(graph, curve.points[0].plan, "h100").show(f"{tmp_path}/line.svg")


def test_a_frontier_prices_its_own_plans_as_they_were_found(curve: Frontier) -> None:
    """Whatever the estimator; the landmarks are priced so, too."""
    assert [curve.price(point.plan) for point in curve.points] == [point.point for point in curve.points]


@pytest.mark.parametrize("link", [{"host_bytes_per_s": 1e-30}, {"host_latency_ns": 1e299}])
def test_copies_that_take_longer_than_can_be_counted_are_refused(link: dict[str, float]) -> None:
    slow = replace(SLOW_LINK, **link)
    with pytest.raises(InvalidGraph, match=r"copies between toy and its host: the prices .* less than 2\*\*62"):
        remat.choose(library_calls(), MemoryBudget(0.5, offload=slow))
    with pytest.raises(InvalidGraph, match="copies between toy and its host"):
        offload_timeline(library_calls(), Plan(("a", "b"), ()), slow)


def test_the_search_says_what_it_takes() -> None:
    graph = library_calls()
    clock = StepClock.of(graph, SLOW_LINK)
    for model in (MemoryBudget(0.5), ByteTraffic()):
        with pytest.raises(UnsupportedProblem, match=r"needs a problem with Problem\.offload"):
            fit_offload(model.pose(graph), clock)
    with pytest.raises(InvalidOption, match=r"offload must be left out where the first argument is a problem"):
        remat.frontier(graph, cost_model="byte-traffic", offload=True)


@pytest.mark.parametrize("copy_stream", [False, True])
def test_a_budget_with_a_host_runs(copy_stream: bool) -> None:
    """Choosing, compiling and the report, as a user would: gradients are those of eager mode."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)))
    x = torch.randn(256, 64)
    fast = replace(SLOW_LINK, host_bytes_per_s=1e15, host_latency_ns=0)  # nothing hides copies there
    step = remat.compile(model, cost_model=MemoryBudget("64KiB", offload=fast), codegen=False, copy_stream=copy_stream)
    torch.testing.assert_close(gradients(step, model, x), gradients(model, model, x))
    (row,) = step.report().as_frame().to_dict("records")
    assert row["offloaded_bytes"] > 0
    assert (row["chosen_by"] == "offload-search") == copy_stream
    assert row["saved_bytes"] <= 64 * 1024
