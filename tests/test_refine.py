"""Refinement: legal plans, never worse than the starts, local optima, equal layers decided as one."""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from commands import answer
from depth import drawn
from examples import cosines, impossible
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import feasible
from torch import nn

import remat
from experiments.models.workloads import perceptron
from remat import Choice, Graph, GraphBuilder, InvalidOption, InvalidPlan, Plan
from remat.answer.plan_facts import PlanFacts
from remat.facts.columns import BoolArray
from remat.improve.refine import Objective, Peak, Time, Traffic
from remat.improve.refine.equivalence_classes import equivalence_classes
from remat.improve.refine.objectives import Score, Scorer
from remat.improve.refine.oracles import BatchScorer, Oracle
from remat.improve.refine.repeated_layers import shorten
from remat.improve.refine.states import Space, State
from remat.predict.memory import simulate
from remat.predict.time.device import DeviceProfile
from remat.pytorch.inductor.scheduled import Scheduled
from remat.testing.strategies import graphs


@dataclass(frozen=True)
class Anything(Objective):
    """An objective with no structure at all: what no search can foresee."""

    name: ClassVar[str] = "anything"
    terms: ClassVar[tuple[str, ...]] = ("luck", "saved_bytes")
    salt: int = 0

    def scorer(self, graph: Graph) -> Scorer:
        return lambda state: (zlib.crc32(state.choice.key, self.salt) % 1000, state.saved_bytes)


@dataclass(frozen=True)
class Bytes(Objective):
    """Four times what is saved, and once what is recomputed: a sum over values."""

    name: ClassVar[str] = "bytes"
    terms: ClassVar[tuple[str, ...]] = ("cost", "saved_bytes")

    def scorer(self, graph: Graph) -> Scorer:
        def score(state: State) -> Score:
            again = int(graph.bytes[state.choice.recomputed & ~graph.view].sum())
            return 4 * state.saved_bytes + again, state.saved_bytes

        return score


def saves_all(graph: Graph) -> Plan:
    """What autograd would do: save whatever can be saved."""
    problem = remat.plugin.base_problem(graph)
    return Choice.from_saved(problem, ~problem.cannot_save.mask).plan(problem)


def legal_states(graph: Graph) -> list[State]:
    """Every legal choice of a small graph, by trying every set of values to save."""
    space, found = Space(graph), dict[Choice, State]()
    open_ = np.flatnonzero(space.saveable & ~space.not_recomputable).tolist()
    for chosen in itertools.product((False, True), repeat=len(open_)):
        wanted = np.zeros(len(graph), np.bool_)
        wanted[[v for v, on in zip(open_, chosen, strict=True) if on]] = True
        state = space.state(wanted)
        found[state.choice] = state
    return list(found.values())


@given(graphs(), st.data())
def test_whatever_is_wanted_becomes_a_legal_plan_and_a_legal_plan_stays_what_it_is(
    graph: Graph, data: st.DataObject
) -> None:
    assume(feasible(graph))
    space = Space(graph)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))), np.bool_)
    state = space.state(wanted)
    plan = state.choice.plan(graph)
    remat.check_plan(remat.plugin.base_problem(graph), plan)
    assert state.saved_bytes == PlanFacts.of(graph, plan).saved_bytes
    assert space.state(state.choice.saved).choice.plan(graph) == plan


@drawn(60)
@given(graphs(max_values=16), st.integers(0, 5), st.sampled_from((0, 3, 1000)))
def test_the_answer_is_legal_allowed_and_no_worse_than_any_start(graph: Graph, salt: int, extra_bytes: int) -> None:
    assume(feasible(graph))
    plan, objective = saves_all(graph), Anything(salt)
    others = [state.choice.plan(graph) for state in (Space(graph).state(np.zeros(len(graph), np.bool_)),)]
    found = remat.refine(graph, plan, objective, extra_bytes=extra_bytes, starts=others)
    remat.check_plan(remat.plugin.base_problem(graph), found.plan)
    limit = PlanFacts.of(graph, plan).saved_bytes + extra_bytes
    assert PlanFacts.of(graph, found.plan).saved_bytes <= limit
    assert found.after == min([found.after, *(start.score for start in found.starts if start.allowed)])
    assert [start.saved_bytes <= limit for start in found.starts] == [start.allowed for start in found.starts]
    assert {start.plan for start in found.starts} >= {Space(graph).state(mask_of(graph, plan)).choice.plan(graph)}


def mask_of(graph: Graph, plan: Plan) -> BoolArray:
    mask = np.zeros(len(graph), np.bool_)
    mask[[graph.index[name] for name in plan.saved]] = True
    return mask


@drawn(60)
@given(graphs(max_values=16), st.integers(0, 5))
def test_no_single_save_or_drop_improves_the_answer(graph: Graph, salt: int) -> None:
    assume(feasible(graph))
    objective = Anything(salt)
    found = remat.refine(graph, saves_all(graph), objective)
    space, score, saved = Space(graph), objective.scorer(graph), mask_of(graph, found.plan)
    limit = found.starts[0].saved_bytes
    kept = graph.compute_bound & ~graph.view
    views = (graph.base != np.arange(len(graph))) & ~graph.cannot_save.mask[graph.base]
    constant = ~np.isin(np.arange(len(graph)), graph.consumers) & ~graph.random
    for v in np.flatnonzero(~graph.in_tangents & ~graph.input[graph.base]).tolist():
        if not saved[v] and (views[v] or constant[v]):
            continue
        wanted = saved.copy()
        wanted[v] = not saved[v]
        state = space.state(wanted)
        if state.saved_bytes <= limit and not (state.choice.recomputed & kept).any():
            assert not score(state) < found.after, f"{'drop' if saved[v] else 'save'} {graph.names[v]}"


@drawn(40)
@given(graphs(max_values=14), st.integers(0, 3))
def test_the_same_seed_gives_the_same_answer(graph: Graph, seed: int) -> None:
    assume(feasible(graph))
    first, again = (remat.refine(graph, saves_all(graph), Anything(), seed=seed) for _ in range(2))
    assert (first.plan, first.history, first.evaluated) == (again.plan, again.history, again.evaluated)


@drawn(60)
@given(graphs(max_values=14, facts=False))
def test_what_multiplies_matrices_is_run_again_only_where_a_start_does_so(graph: Graph) -> None:
    found = remat.refine(graph, saves_all(graph), Anything())
    allowed = {name for start in found.starts for name in start.plan.recomputed}
    products = {name for name, heavy in zip(graph.names, graph.compute_bound, strict=True) if heavy}
    assert set(found.plan.recomputed) & products <= allowed


def layer(g: GraphBuilder, x: str, i: int, residual: str) -> str:
    """A perceptron with a residual: x + gelu(x @ w) @ v."""
    up = g.op("mm", x, g.input(f"w{i}", bytes=9, parameter=True), bytes=40, name=f"up{i}", compute_bound=True)
    act = g.op("mul", up, g.op("tanh", up, name=f"tanh{i}"), name=f"act{i}")
    down = g.op("mm", act, g.input(f"v{i}", bytes=9, parameter=True), bytes=10, name=f"down{i}", compute_bound=True)
    return g.op("add", residual, down, name=f"x{i + 1}")


def deep(layers: int, skip: bool = False, far: bool = False) -> Graph:
    """Perceptrons in a row; `skip` adds the input to one in the middle, `far` takes its residual from further back."""
    g = GraphBuilder()
    x = g.op("sin", g.input("tokens", bytes=10), name="x0")
    for i in range(layers):
        odd = i == layers // 2
        x = layer(g, g.op("add", x, "tokens", name="skip") if skip and odd else x, i, f"x{i - 1}" if far and odd else x)
    g.output(g.op("cos", x, name="loss"))
    back = g.op("mul", g.tangent("d", bytes=10), g.op("sin", x, name="dcos"), name="dx")
    for i in reversed(range(layers)):
        dact = g.op("mm", back, f"v{i}", bytes=40, compute_bound=True, name=f"dact{i}")
        g.gradient(g.op("mm", back, f"act{i}", bytes=9, compute_bound=True, name=f"dv{i}"))
        slope = g.op("mul", f"up{i}", f"tanh{i}", name=f"slope{i}")
        dup = g.op("mul", dact, slope, name=f"dup{i}")
        g.gradient(g.op("mm", dup, f"x{i}", bytes=9, compute_bound=True, name=f"dw{i}"))
        inner = g.op("mm", dup, f"w{i}", bytes=10, compute_bound=True, name=f"dinner{i}")
        back = g.op("add", back, inner, name=f"dx{i}")
    g.gradient(g.op("mul", back, g.op("cos", "tokens", name="dsin"), name="dtokens"))
    return g.build()


def test_equal_values_of_equal_layers_have_one_colour() -> None:
    graph = deep(9)
    colour = dict(zip(graph.names, equivalence_classes(graph, 2).tolist(), strict=True))
    for name in ("up", "tanh", "act", "down", "slope", "dup", "dw"):
        assert len({colour[f"{name}{i}"] for i in range(2, 7)}) == 1
    assert len({colour[name] for name in ("up4", "tanh4", "act4", "down4", "x4", "slope4", "dup4")}) == 7
    # As far as the ends, nothing is equal.
    assert len(set(equivalence_classes(graph, len(graph)).tolist())) == len(graph)


def test_dropouts_of_equal_layers_have_one_colour_though_each_has_its_own_seed() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = torch.nn.functional.dropout((x @ w).relu(), 0.1)
        return x

    graph = remat.capture(layers, torch.randn(8, 8), torch.randn(8, 8, requires_grad=True))
    colours = equivalence_classes(graph, 2)[[v for v, op in enumerate(graph.ops) if op.startswith("aten.gt")]]
    assert len(colours) == 9
    assert len(set(colours[3:6].tolist())) == 1


@pytest.mark.parametrize("layers", [6, 9, 20])
def test_a_deep_graph_is_shortened_to_the_same_graph_whatever_its_depth(layers: int) -> None:
    short, reference = shorten(deep(layers)).graph, shorten(deep(8)).graph
    assert len(short) < len(deep(4))
    for column in ("ops", "bytes", "region", "producers", "consumers", "fusible_uses", "output", "gradient"):
        assert np.array_equal(getattr(short, column), getattr(reference, column)), column
    assert np.array_equal(short.base, reference.base)


@drawn(40)
@given(st.integers(6, 12), st.data())
def test_what_is_decided_in_the_short_graph_is_decided_in_every_layer(layers: int, data: st.DataObject) -> None:
    graph = deep(layers)
    short = shorten(graph)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(short.graph), max_size=len(short.graph))), bool)
    lifted = short.lift(wanted)
    assert np.array_equal(short.project(lifted), wanted)
    for op in ("tanh", "add"):
        assert sum(short.copies[i] for i, other in enumerate(short.graph.ops) if other == op) == graph.ops.count(op)
    small, large = Space(short.graph, copies=short.copies).state(wanted), Space(graph).state(lifted)
    assert small.saved_bytes == large.saved_bytes
    assert np.array_equal(short.lift(small.choice.recomputed), large.choice.recomputed)
    for name in ("up", "tanh", "act", "down", "slope"):
        assert len({bool(lifted[graph.index[f"{name}{i}"]]) for i in range(2, layers - 2)}) == 1


def test_a_graph_whose_layers_differ_is_not_cut() -> None:
    assert shorten(deep(9)).layers > 1
    assert shorten(deep(9, skip=True)).layers < shorten(deep(9)).layers
    assert shorten(deep(3)).layers == 1
    assert shorten(deep(9, far=True)).layers == 1  # every layer by itself looks like the others


def test_a_deep_model_is_refined_in_all_layers_for_the_price_of_two() -> None:
    shallow, far = (remat.refine(deep(layers), saves_all(deep(layers)), Bytes()) for layers in (7, 30))
    assert far.evaluated == shallow.evaluated
    assert far.layers == shallow.layers + 23
    assert {f"tanh{i}" for i in range(30)} <= set(far.plan.recomputed)
    assert far.after[0] < far.before[0]


def test_repeated_layers_are_solved_to_the_optimum_at_every_allowance() -> None:
    graph, score = deep(2), Bytes().scorer(deep(2))
    everything = [state for state in legal_states(graph) if not (state.choice.recomputed & graph.compute_bound).any()]
    for plan in (saves_all(graph), min(everything, key=lambda state: state.saved_bytes).choice.plan(graph)):
        for extra_bytes in range(0, 120, 8):
            found = remat.refine(graph, plan, Bytes(), extra_bytes=extra_bytes)
            limit = found.starts[0].saved_bytes + extra_bytes
            assert found.after == min(score(state) for state in everything if state.saved_bytes <= limit)


def test_room_for_a_save_is_made_by_a_drop_elsewhere() -> None:
    """Two values that no use connects: only one fits, and the search begins with the wrong one."""
    g = GraphBuilder()
    for name, size in (("a", 10), ("b", 10)):
        g.output(g.op("mul", g.op("sin", g.input(f"in_{name}", bytes=size), name=name), name=f"out_{name}"))
    for name in "ab":
        g.gradient(g.op("mul", g.tangent(f"d_{name}", bytes=10), name, name=f"grad_{name}"))
    graph = g.build()

    @dataclass(frozen=True)
    class SavesA(Anything):
        """`a` is worth saving most, then `b`."""

        def scorer(self, graph: Graph) -> Scorer:
            a, b = graph.index["a"], graph.index["b"]
            return lambda state: (
                10 - 3 * int(state.choice.saved[a]) - 2 * int(state.choice.saved[b]),
                state.saved_bytes,
            )

    start = Plan(("in_a", "b"), ("a",))
    found = remat.refine(graph, start, SavesA())
    assert set(found.plan.saved) == {"a", "in_b"}
    assert "save a" in found.history[-1].move
    assert "drop b" in found.history[-1].move


def test_a_start_beyond_the_allowance_is_begun_from_but_never_the_answer() -> None:
    graph = cosines(4)
    lean = Plan(("add3",), ("cos1", "sin1", "sin2"))
    found = remat.refine(graph, lean, Bytes(), starts=[saves_all(graph)])
    beyond = [start for start in found.starts if not start.allowed]
    assert beyond
    assert beyond[0].saved_bytes > 4
    assert PlanFacts.of(graph, found.plan).saved_bytes <= 4


def test_the_time_limit_leaves_the_best_start() -> None:
    graph = deep(8)
    found = remat.refine(graph, saves_all(graph), Bytes(), time_limit_s=1e-9)
    assert found.termination.limit == "time"
    assert (found.evaluated, found.history) == (0, ())
    assert found.after == min(start.score for start in found.starts if start.allowed)
    assert remat.refine(graph, saves_all(graph), Bytes(), time_limit_s=1e6).termination.limit is None


def test_out_of_time_nothing_is_scored_but_the_starts_and_each_once() -> None:
    graph, scored = deep(8), list[Choice]()

    class Counting(Bytes):
        def scorer(self, graph: Graph) -> Scorer:
            score = super().scorer(graph)

            def counted(state: State) -> Score:
                scored.append(state.choice)
                return score(state)

            return counted

    found = remat.refine(graph, saves_all(graph), Counting(), time_limit_s=1e-9)
    assert len(scored) == len(set(scored)) == len(found.starts)


class Clock:
    """Stands in for `time.monotonic`, and runs only while somebody works."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Slow(Oracle):
    """Takes five seconds for a choice that it has not seen before."""

    name: ClassVar[str] = "slow"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.seen = clock, list[Choice]()

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        score = objective.scorer(graph)

        def opinion(states: Sequence[State]) -> list[Score]:
            for state in states:
                if state.choice not in self.seen:
                    self.seen.append(state.choice)
                    self.clock.now_s += 5
            return [score(state) for state in states]

        return opinion


@pytest.mark.parametrize(("limit_s", "starts"), [(1, 1), (9, 1), (11, 2), (16, 3), (1000, 3)])
def test_a_slow_oracle_keeps_the_time_limit(limit_s: float, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, clock = deep(8), Clock()
    monkeypatch.setattr("time.monotonic", clock)
    oracle = Slow(clock)
    found = remat.refine(graph, saves_all(graph), Bytes(), oracle, time_limit_s=limit_s)
    assert found.time_s == clock.now_s - 100 <= max(limit_s, 5)
    assert len(found.starts) == starts
    assert found.starts[0].name == "given"
    assert found.after == min(start.score for start in found.starts if start.allowed) or limit_s == 1000
    scored = [Bytes().scorer(graph)(Space(graph).state(choice.saved)) for choice in oracle.seen[1:starts]]
    assert scored == sorted(scored), "in the order of promise"


def test_progress_counts_every_plan_evaluated() -> None:
    calls: list[tuple[int, Score]] = []
    found = remat.refine(deep(3), saves_all(deep(3)), Bytes(), progress=lambda n, best: calls.append((n, best)))
    assert [n for n, _ in calls] == list(range(1, found.evaluated + 1))
    assert calls[-1][1] == found.after
    assert all(later <= earlier for (_, earlier), (_, later) in itertools.pairwise(calls))


@drawn(60)
@given(graphs(max_values=12, facts=False))
def test_traffic_is_what_is_predicted_for_the_plan(graph: Graph) -> None:
    found = remat.refine(graph, saves_all(graph), "traffic")
    predicted = remat.predict_traffic(graph, found.plan)
    assert found.after == (predicted.bytes, len(predicted.kernels), PlanFacts.of(graph, found.plan).saved_bytes)


def test_the_cosines_of_the_paper_are_refined_to_the_optimum() -> None:
    """Figure 2: 11 accesses for both naive strategies, 9 for the optimum."""
    graph = cosines(4)
    found = remat.refine(graph, saves_all(graph), "traffic")
    score, limit = Traffic().scorer(graph), found.starts[0].saved_bytes
    assert found.after == min(score(state) for state in legal_states(graph) if state.saved_bytes <= limit)
    assert remat.predict_traffic(graph, found.plan).accesses == 9
    assert found.plan.saved == ("add3",)


@drawn(60)
@given(graphs(max_values=16), st.integers(-2, 2))
def test_an_answer_has_no_more_kernels_than_the_objective_allows(graph: Graph, more: int) -> None:
    assume(feasible(graph))
    given_plan = saves_all(graph)
    most = max(0, len(remat.predict_traffic(graph, given_plan).kernels) + more)
    # The given plan is within a limit that is not below its own kernels; below, there may be no plan.
    with contextlib.suppress(*[InvalidOption] * (more < 0)):
        found = remat.refine(graph, given_plan, Traffic(most_kernels=most), extra_bytes=50)
        assert len(remat.predict_traffic(graph, found.plan).kernels) <= most
        assert found.after == min([found.after, *(start.score for start in found.starts if start.allowed)])
        assert all(start.score[1] <= most for start in found.starts if start.allowed)


def test_a_limit_of_kernels_that_no_plan_keeps_is_refused() -> None:
    graph = cosines()
    with pytest.raises(
        InvalidOption, match=r"within the limits of Traffic\(most_kernels=0\); the plan to refine has .*'ker"
    ):
        remat.refine(graph, saves_all(graph), Traffic(most_kernels=0))
    with pytest.raises(
        InvalidOption, match=r"Traffic\.most_kernels must be a whole number, not negative, or None, got 1\.5"
    ):
        Traffic(most_kernels=1.5)  # type: ignore[arg-type]


def test_time_counts_arithmetic_traffic_and_launches() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=4_000_000, dtype="float32")
    y = g.op("mm", x, bytes=4_000_000, flops=10**12, compute_bound=True, dtype="float32")
    g.output(g.op("sum", y, bytes=4, fusible=False, dtype="float32"))
    g.gradient(g.op("mul", g.tangent("d", bytes=4), y, bytes=4_000_000, dtype="float32"))
    graph, device = g.build(), DeviceProfile("plain", {"float32": 1e12}, 1e12, 1000.0, "made up")
    plan = Plan(("x",), ("mm",))
    found = remat.refine(graph, plan, Time(device=device), extra_bytes=4_000_000)
    assert set(found.plan.saved) == {"mm"}
    assert found.before[0] - found.after[0] > 10**9  # the product once instead of twice: a second
    kernels = remat.predict_traffic(graph, found.plan).kernels
    slow = [k for k in kernels if graph.index["mm"] in k.values]
    others = sum(k.read_bytes + k.written_bytes for k in kernels if k not in slow) / 1000
    assert found.after[0] == pytest.approx(10**9 + others + 1000 * len(kernels), abs=1)


def test_a_peak_is_lowered_by_simulation() -> None:
    graph = deep(6)
    plan = saves_all(graph)
    found = remat.refine(graph, plan, "peak")
    assert found.before[0] == simulate(graph, plan).peak_bytes
    assert found.after[0] == simulate(graph, found.plan).peak_bytes < found.before[0]


def captured_perceptron(layers: int) -> Graph:
    model, args = perceptron(layers)
    return remat.capture(model, *args)


def test_where_calls_are_known_the_peak_is_that_of_the_compiled_step() -> None:
    graph = captured_perceptron(2)
    plan = saves_all(graph)
    found = remat.refine(graph, plan, "peak")
    assert found.before[0] == remat.timeline(graph, plan).peak_bytes != simulate(graph, plan).peak_bytes
    assert found.after[0] == remat.timeline(graph, found.plan).peak_bytes < found.before[0]


def test_inductor_has_the_last_word_where_it_is_asked() -> None:
    graph = captured_perceptron(1)
    plan = saves_all(graph)
    found = remat.refine(graph, plan, "traffic", "inductor")
    scheduled = Scheduled(graph)
    for claimed, kernels in ((found.after, scheduled.kernels(found.plan)), (found.before, scheduled.kernels(plan))):
        assert claimed[:2] == (sum(kernel.bytes for kernel in kernels), len(kernels))
    assert found.asked > len(found.starts) + 1, "moves are checked"
    assert found.after[0] < found.before[0]
    assert found.after == min([found.after, *(start.score for start in found.starts if start.allowed)])
    with pytest.raises(InvalidOption, match="the oracle 'inductor' counts only the bytes that kernels move"):
        remat.refine(graph, plan, "peak", "inductor")


def test_a_device_times_the_starts_and_what_was_found() -> None:
    graph = remat.capture(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8))  # few plans to compile
    found = remat.refine(graph, saves_all(graph), "time", "device")
    assert found.terms == ("measured_ns", "saved_bytes")
    assert 0 < found.after[0] <= min(start.score[0] for start in found.starts if start.allowed)
    remat.check_plan(remat.plugin.base_problem(graph), found.plan)
    with pytest.raises(InvalidOption, match="the oracle 'device' measures only time"):
        remat.refine(graph, found.plan, "traffic", "device")


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"plan": Plan(("add3",), ())}, InvalidPlan, "plan: the plan is not legal"),
        ({"plan": saves_all(deep(2)).for_graph(deep(2))}, InvalidPlan, "plan: the plan was made for another graph"),
        ({"starts": [saves_all(cosines()), Plan(("no",), ())]}, InvalidPlan, r"starts\[1\]: Plan.saved names 'no'"),
        *(({"starts": it}, InvalidOption, r"starts must be a list of remat\.Plan") for it in (Plan((), ()), None, 3)),
        *(({"objective": it}, InvalidOption, "must be one of traffic, time, peak") for it in ("memory", ["traffic"])),
        ({"oracle": "gpu"}, InvalidOption, "oracle must be one of model, inductor, device"),
        ({"extra_bytes": -1}, InvalidOption, "extra_bytes must be a whole number of at least 0, got -1"),
        ({"time_limit_s": 0}, InvalidOption, "time_limit_s must be a positive number"),
        ({"progress": 3}, InvalidOption, "progress must be a function"),
        ({"seed": -1}, InvalidOption, "seed must be a whole number"),
    ],
)
def test_bad_input_is_refused_with_one_clear_error(
    changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    graph = cosines()
    with pytest.raises(error, match=message):
        remat.refine(**{"graph": graph, "plan": saves_all(graph), "objective": Bytes()} | changed)


def test_a_device_and_a_graph_that_nothing_can_be_made_of_are_refused() -> None:
    with pytest.raises(remat.errors.UnknownName, match="no device is named"):
        Time(device="abacus")
    with pytest.raises((remat.Infeasible, InvalidPlan)):
        remat.refine(impossible(), Plan((), ()), Bytes())


def test_a_result_reads_well() -> None:
    graph = deep(7)
    text = str(remat.refine(graph, saves_all(graph), Peak()))
    for words in ("peak_bytes:", "start: given:", "no move improves the plan"):
        assert words in text


def test_the_command_line_refines_a_file(tmp_path: Path) -> None:
    file, plan = tmp_path / "deep.json", tmp_path / "plan.json"
    deep(6).save(file)
    document = answer("refine", file, "--objective", "peak", "-o", plan)
    assert document["after"][0] <= document["before"][0]
    assert Plan.load(plan).digest == document["plan"]
    assert remat.check_plan(remat.plugin.base_problem(deep(6)), Plan.load(plan)) == 0
