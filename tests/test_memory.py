"""Simulated live bytes equal those of an interpreter that counts references; no plan beats the lower bound."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import answer, run
from depth import deep_except
from examples import cosines
from hypothesis import given
from hypothesis import strategies as st
from strategies import Dice, every_legal_mask, late_views, planned, training_steps
from torch import fx

import remat
from costmodels import MemoryBudget
from experiments.accuracy.compiled_peaks import measured_peak
from experiments.models.cases import CASES
from experiments.models.save_everything import SaveEverything, SaveLeast
from remat import CostModel, Graph, GraphBuilder, InvalidPlan, Plan, RematError
from remat.plugin import BoolArray, PlanFacts, Region
from remat.predict.memory import Simulator, Timeline, lower_bound, simulate
from remat.predict.memory.bound import Necessary
from remat.predict.memory.registers import fusion
from remat.predict.memory.storages import StorageFacts
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam.inductor_lowering import run_uncompiled
from remat.testing import graphs

MIB = 2**20


class Interpreter:
    """Runs both passes value by value, and counts references: a storage lives as long as somebody refers to it.

    A value refers to its arguments until it is done. One in registers is done when all its consumers
    are; one that is written when it has run, and so have the consumers that belong to its kernel.
    """

    def __init__(self, graph: Graph, saved: BoolArray, holds_outputs: bool) -> None:
        self.graph = graph
        order = np.argsort(graph.consumers, kind="stable")
        producers, readers = graph.producers[order], graph.consumers[order]
        self.fusible, uses = fusion(graph, producers, readers, graph.fusible_uses[order])
        self.arguments: dict[int, list[int]] = {v: [] for v in range(len(graph))}
        self.fused: dict[tuple[int, int], bool] = {}
        for u, v, fused in zip(producers.tolist(), readers.tolist(), uses.tolist(), strict=True):
            self.arguments[v].append(u)
            self.fused[u, v] = fused
        self.given = {v for v in range(len(graph)) if graph.input[v] or graph.ops[v] in ("placeholder", "get_attr")}
        needed = self.closure(np.flatnonzero(graph.gradient).tolist(), stop=set(np.flatnonzero(saved).tolist()))
        self.saved = {v for v in needed if saved[v]} - self.given
        outputs = {v for v in range(len(graph)) if graph.output[v]}
        ends = [v for v in range(len(graph)) if graph.region[v] == Region.FORWARD]
        self.forward = sorted(self.closure([*ends, *self.saved], stop=set()) - self.given)
        self.backward = self.on_demand(sorted(needed - self.given - self.saved))
        self.references: Counter[tuple[str, int]] = Counter()
        self.allocated: dict[tuple[str, int], int] = {}
        self.live, self.during, self.after = 0, list[int](), list[int]()
        for v in [*outputs, *self.saved]:  # the caller holds the one, autograd the other
            self.references[self.place(v, False)] += 1
        for v in np.flatnonzero(graph.gradient).tolist():
            self.references[self.place(v, True)] += 1
        for w in self.backward:  # before the forward pass drops what the backward pass will read
            for u in self.arguments[w]:
                self.references[self.place(u, True)] += 1
        self.run(self.forward, backward=False)
        for v in self.saved:
            self.drop(self.place(v, False))
        for v in outputs if not holds_outputs else ():
            self.drop(self.place(v, False))
        if self.forward:
            self.after[-1] = self.live
        self.run(self.backward, backward=True)

    def closure(self, ends: list[int], stop: set[int]) -> set[int]:
        found, stack = set(), list(ends)
        while stack:
            v = stack.pop()
            if v not in found:
                found.add(v)
                if v not in stop:
                    stack += self.arguments[v]
        return found

    def on_demand(self, values: list[int]) -> list[int]:
        """torch's `reordering_to_mimic_autograd_engine`, as it is written there."""
        tangents = {v for v in self.given if self.graph.region[v] == Region.TANGENTS}
        firsts = [v for v in values if tangents & set(self.arguments[v])]
        done: list[int] = []
        for v in values[values.index(firsts[0]) :] if firsts else values:
            missing, stack = set(), [v]
            while stack:
                w = stack.pop()
                if w in values and w not in done and w not in missing:
                    missing.add(w)
                    stack += self.arguments[w]
            done += sorted(missing)
        return done + [v for v in values if v not in done]  # the output node asks for the rest

    def place(self, v: int, backward: bool) -> tuple[str, int]:
        """The storage that a value lives in: where it was allocated, and its base."""
        base = int(self.graph.base[v])
        if base in self.given:
            return "given", base
        if not backward or v in self.saved:
            return "forward", base
        for u in self.arguments[v]:
            if self.graph.storage[u] == self.graph.storage[v]:
                return self.place(u, backward)
        return "backward", base

    def in_memory(self, values: list[int], backward: bool) -> set[tuple[str, int]]:
        graph, found = self.graph, {("given", v) for v in self.given}
        for v in values:
            if not self.fusible[v] and graph.base[v] == v:
                found.add(self.place(v, backward))
            if (graph.gradient[v] and backward) or (graph.output[v] and not backward):
                found.add(self.place(v, backward))
            found |= {self.place(u, backward) for u in self.arguments[v] if not self.fused[u, v]}
        return found | {self.place(v, backward) for v in self.saved}

    def run(self, values: list[int], backward: bool) -> None:
        written = self.in_memory(values, backward)
        homes = {v: self.place(v, backward) for v in values}
        is_written = {v: homes[v] in written for v in values}
        waits_for = self.kernels(values, is_written)
        for v in values:
            self.references[homes[v]] += 1
            if not backward:
                for u in self.arguments[v]:
                    self.references[self.place(u, backward)] += 1
        here: set[tuple[str, int]] = set()
        done: set[int] = set()
        for i, v in enumerate(values):
            for w in [v, *(w for w in values if self.maker(w, values) == v)]:
                if (
                    homes[w] in written
                    and homes[w] not in here
                    and homes[w][0] == ("backward" if backward else "forward")
                ):
                    here.add(homes[w])
                    self.allocated[homes[w]] = int(self.graph.storage_bytes[w])
                    self.live += self.allocated[homes[w]]
            self.during.append(self.live)
            self.drop(homes[v])
            self.finish(values[: i + 1], waits_for, done, backward)
            self.after.append(self.live)

    def kernels(self, values: list[int], is_written: dict[int, bool]) -> dict[int, set[int]]:
        """What must have run before each value lets go of its arguments."""
        launches = dict[int, int]()
        count = 0
        for v in values:
            count += not (self.fusible[v] or self.graph.view[v] or self.graph.ops[v] == "getitem")
            launches[v] = count
        near, far = dict[int, set[int]](), dict[int, set[int]]()
        for v in reversed(values):
            users = [w for w in values if self.fused.get((v, w))] if self.fusible[v] else []
            near[v] = ({v} if is_written[v] else set()).union(*(near[w] for w in users if launches[w] == launches[v]))
            far[v] = near[v] | {v} if is_written[v] else {v}.union(near[v], *(far[w] for w in users))
        return far

    def finish(self, ran: list[int], waits_for: dict[int, set[int]], done: set[int], backward: bool) -> None:
        for v in ran:
            if v not in done and waits_for[v] <= set(ran):
                done.add(v)
                for u in self.arguments[v]:
                    self.drop(self.place(u, backward))

    def maker(self, v: int, values: list[int]) -> int:
        while self.graph.ops[v] == "getitem" and self.arguments[v] and self.arguments[v][0] in values:
            v = self.arguments[v][0]
        return v

    def drop(self, home: tuple[str, int]) -> None:
        self.references[home] -= 1
        if not self.references[home] and home in self.allocated:
            self.live -= self.allocated.pop(home)


def assert_equal_to_interpreter(graph: Graph, saved: BoolArray, holds_outputs: bool) -> Timeline:
    simulator = Simulator(graph, holds_outputs=holds_outputs)
    timeline, expected = simulator.timeline(saved), Interpreter(graph, saved, holds_outputs)
    assert list(timeline.names) == [graph.names[v] for v in (*expected.forward, *expected.backward)]
    assert timeline.during_bytes.tolist() == expected.during
    assert timeline.after_bytes.tolist() == expected.after
    assert timeline.peak_bytes == simulator.peak(saved) == max(expected.during, default=0)
    return timeline


@given(planned(), st.booleans())
def test_live_bytes_are_those_of_counted_references(drawn: tuple[Graph, BoolArray], holds_outputs: bool) -> None:
    timeline = assert_equal_to_interpreter(*drawn, holds_outputs)
    assert np.array_equal(sum(timeline.by_why.values()), timeline.during_bytes)
    assert sum(tensor.bytes for tensor in timeline.peak_tensors) == timeline.peak_bytes


@pytest.mark.parametrize("name", ["attention with dropout", "noise by hand", "batch normalization"])
def test_captured_models_agree_with_the_interpreter_under_any_plan(name: str) -> None:
    torch.manual_seed(0)
    graph = remat.capture(CASES[name].build(), *CASES[name].inputs())
    for cost_model in (SaveEverything(), Dice(0), Dice(1), SaveLeast()):
        plan = remat.solve(cost_model.pose(graph)).plan
        timeline = assert_equal_to_interpreter(graph, remat.Choice.from_plan(graph, plan).saved, holds_outputs=True)
        assert timeline.saved_bytes == PlanFacts.of(graph, plan).saved_bytes
        assert timeline.peak_bytes >= lower_bound(graph).bytes


@given(graphs(max_values=8) | training_steps() | late_views(), st.booleans())
def test_no_legal_plan_has_a_smaller_peak_than_the_lower_bound(graph: Graph, holds_outputs: bool) -> None:
    bound = lower_bound(graph, holds_outputs=holds_outputs)
    simulator = Simulator(graph, holds_outputs=holds_outputs)
    assert all(simulator.peak(mask) >= bound.bytes for mask in every_legal_mask(graph))
    assert bound.bytes == sum(tensor.bytes for tensor in bound.tensors)


@given(planned())
def test_every_operator_that_always_runs_finds_its_working_set(drawn: tuple[Graph, BoolArray]) -> None:
    """Not only the largest one."""
    graph, saved = drawn
    timeline = Simulator(graph, holds_outputs=True).timeline(saved)
    floor = Necessary.of(StorageFacts.of(graph), holds_outputs=True).alive_bytes(len(graph))
    for name, backward, alive in zip(timeline.names, timeline.backward, timeline.during_bytes, strict=True):
        v = graph.index[name]
        if backward == (graph.region[v] == Region.TANGENTS):
            assert alive >= floor[len(graph) + v if backward else v]


def timeline_of(graph: Graph, *saved: str, holds_outputs: bool = True) -> Timeline:
    return Simulator(graph, holds_outputs=holds_outputs).timeline(np.isin(graph.names, saved))


def products(count: int) -> GraphBuilder:
    """x -> mm_1 -> ... -> mm_count: 10, 20, 30, ... bytes, nothing fusible."""
    g = GraphBuilder()
    last = g.input("x", bytes=10)
    for i in range(1, count + 1):
        last = g.op("mm", last, name=f"mm_{i}", bytes=10 * i, compute_bound=True)
    g.output(last)
    return g


def test_what_is_saved_lives_until_the_backward_pass_has_read_it() -> None:
    g = products(3)
    first = g.op("mm", g.tangent("dy", bytes=30), "mm_2", name="d2", bytes=7, compute_bound=True)
    g.gradient(g.op("mm", first, "mm_1", name="d1", bytes=5, compute_bound=True))
    timeline = timeline_of(g.build(), "mm_1", "mm_2")
    assert timeline.during_bytes.tolist() == [10, 30, 60, 67, 52]
    assert timeline.after_bytes.tolist() == [10, 30, 60, 47, 35]
    assert (timeline.saved_bytes, timeline.at_forward_end) == (30, 60)
    assert timeline.by_why["saved"].tolist() == [10, 30, 30, 30, 10]
    assert timeline.by_why["output"].tolist() == [0, 0, 30, 30, 30]
    assert timeline.by_why["gradient"].tolist() == [0, 0, 0, 0, 5]
    assert timeline.by_why["transient"].tolist() == [0, 0, 0, 7, 7]


def test_elements_of_a_tuple_are_allocated_with_the_tuple() -> None:
    g = GraphBuilder()
    pair = g.op("split_with_copy", g.input("x"), name="pair", bytes=0, compute_bound=True, cannot_save="a tuple")
    parts = [g.op("getitem", pair, name=f"part_{i}", bytes=10, fusible=False) for i in range(2)]
    g.output(g.op("mm", *parts, name="last", bytes=1, compute_bound=True))
    g.gradient(g.op("neg", g.tangent("dy")))
    assert timeline_of(g.build()).during_bytes.tolist() == [20, 20, 20, 21, 2]


def test_a_product_that_is_added_to_something_is_never_in_memory() -> None:
    g = GraphBuilder()
    bias = g.op("mm", g.input("x"), name="bias", bytes=8, compute_bound=True)
    product_ = g.op("aten.mm.default", "x", name="product", bytes=8, compute_bound=True)
    g.output(g.op("aten.add.Tensor", bias, product_, name="sum"))
    g.gradient(g.op("neg", g.tangent("dy")))
    assert timeline_of(g.build()).during_bytes.tolist() == [8, 8, 16, 9]


def test_recomputing_everything_can_exceed_saving_everything() -> None:
    """What the forward pass had let go of before the backward pass began is back, beside the gradients."""
    g = GraphBuilder()
    stem = g.op("mm", g.input("x"), name="stem", bytes=10, compute_bound=True)
    broad = g.op("mm", stem, name="broad", bytes=1000, compute_bound=True)
    narrow = g.op("mm", broad, name="narrow", bytes=20, compute_bound=True)
    g.output(g.op("mm", narrow, name="loss", bytes=1, compute_bound=True))
    early = g.op("mm", g.tangent("dy"), name="early", bytes=500, compute_bound=True)
    g.gradient(g.op("mm", early, narrow, name="dx", bytes=30, compute_bound=True))
    graph = g.build()
    assert timeline_of(graph, "narrow").peak_bytes == 1000 + 20
    assert timeline_of(graph).peak_bytes == 1 + 500 + 1000 + 20
    assert timeline_of(graph).saved_bytes == 0
    assert lower_bound(graph).bytes == 1000 + 20


class Split(Partitioner):
    """Notes the two graphs that torch makes of a plan."""

    made: list[fx.GraphModule] = []  # noqa: RUF012  # one for all: the instances are frozen

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = super().__call__(*args, **kwargs)
        self.made[:] = forward, backward
        return forward, backward


def operators(module: fx.GraphModule) -> list[str]:
    """torch moves `getitem` right behind the tuple."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    return [node.name for node in calls if "getitem" not in str(node.target)]


@pytest.mark.parametrize("cost_model", deep_except([Dice(0)], [SaveEverything(), Dice(0), SaveLeast()]), ids=repr)
@pytest.mark.parametrize("name", ["recurrent cells", "encoder layer"])
def test_steps_are_the_nodes_of_torchs_two_graphs_in_order(name: str, cost_model: CostModel) -> None:
    torch.manual_seed(0)
    model, args = CASES[name].build(), CASES[name].inputs()
    graph = remat.capture(model, *args)
    plan = remat.solve(cost_model.pose(graph)).plan
    torch.compile(model, backend=partial(run_uncompiled, partitioner=Split.of(plan=plan)), dynamic=False)(*args)
    timeline = simulate(graph, plan)
    steps = [
        [
            n
            for n, op, b in zip(timeline.names, timeline.ops, timeline.backward, strict=True)
            if b == part and op != "getitem"
        ]
        for part in (False, True)
    ]
    assert [operators(module) for module in Split.made] == steps


def test_a_step_holds_what_is_simulated_of_a_small_model() -> None:
    """To the byte: nothing is fused there, and the kernels run in the order of the graph."""
    case = CASES["two calls of one layer"]
    torch.manual_seed(0)
    graph, plan, held = measured_peak((case.build(), case.inputs(), case.dynamic), SaveLeast(), kernels=False)
    assert lower_bound(graph).bytes <= simulate(graph, plan).peak_bytes == held


def test_the_text_names_the_peak_and_what_is_alive() -> None:
    timeline = timeline_of(cosines(), "add3")
    assert repr(timeline) == "<Timeline: 5 forward + 5 backward steps, peak 12.0 MiB, 4.0 MiB saved>"
    lines = str(timeline).splitlines()
    assert "peak: 12.0 MiB at step 9, grad_in (mul) of the backward pass," in lines
    assert "  where 3 storages are alive:" in lines
    assert [(t.name, t.why, t.backward) for t in timeline.peak_tensors] == [
        ("add3", "saved", False),
        ("cos2", "output", False),
        ("grad_in", "gradient", True),
    ]


def test_the_frame_has_a_row_a_step() -> None:
    timeline = timeline_of(cosines(), "add3")
    frame = timeline.as_frame()
    assert tuple(frame["name"]) == timeline.names
    parts = frame[[f"{why}_bytes" for why in timeline.by_why]].sum(axis="columns")
    assert parts.tolist() == frame["during_bytes"].tolist() == timeline.during_bytes.tolist()


def test_the_picture_has_a_band_for_each_reason_and_marks_peak_and_boundary(tmp_path: Path) -> None:
    timeline = timeline_of(cosines(), "add3")
    axes = timeline.show(tmp_path / "timeline.svg").axes[0]
    assert (tmp_path / "timeline.svg").read_text().startswith("<?xml")
    assert [text.get_text().split(":")[0] for text in axes.get_legend().get_texts()] == [
        "outputs",
        "saved for the backward pass",
        "gradients",
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step (a kernel, or one computed value)", "live memory (MiB)")
    boundary, peak = axes.lines
    assert (boundary.get_xdata()[0], peak.get_xdata()[0], peak.get_ydata()[0]) == (5, 9.5, 12)
    top = max(band.get_paths()[0].get_extents().ymax for band in axes.collections)
    assert top == 12
    assert {"forward", "backward", "peak: 12.0 MiB, grad_in"} <= {text.get_text() for text in axes.texts}


def test_a_timeline_of_nothing_cannot_be_drawn() -> None:
    g = GraphBuilder()
    g.output(g.input("x"))
    g.gradient(g.tangent("dx"))
    nothing = timeline_of(g.build())
    assert (len(nothing), nothing.peak_bytes, nothing.peak_step, nothing.peak_tensors) == (0, 0, -1, ())
    with pytest.raises(RematError, match="neither pass computes anything"):
        nothing.show()


def test_what_is_no_plan_of_the_graph_is_refused() -> None:
    graph = cosines()
    with pytest.raises(InvalidPlan, match="neither saved nor recomputed"):
        simulate(graph, Plan(("add3",), ()))
    with pytest.raises(InvalidPlan, match="'cos9'"):
        simulate(graph, Plan(("cos9",), ()))
    with pytest.raises(InvalidPlan, match="made for another graph"):
        simulate(graph, Plan(("add3",), ("cos1", "sin2", "sin1")).for_graph(products(2).build()))
    simulator = Simulator(graph)
    with pytest.raises(InvalidPlan, match=r"saved must be of shape \(14,\), got shape \(3,\)"):
        simulator.peak(np.zeros(3, np.bool_))
    with pytest.raises(InvalidPlan, match="'mul2', which depends on a tangent"):
        simulator.timeline(np.isin(graph.names, ["mul2"]))


def test_what_is_saved_in_vain_is_not_saved() -> None:
    graph = cosines()
    assert timeline_of(graph, "add3", "add1").saved_bytes == timeline_of(graph, "add3").saved_bytes == 4 * MIB


def test_the_command_prints_the_peak_and_draws(tmp_path: Path) -> None:
    cosines().save(tmp_path / "paper.json")
    Plan(("add3",), ("cos1", "sin2", "sin1")).save(tmp_path / "plan.json")
    call = "inspect", "timeline", tmp_path / "paper.json", "--plan", tmp_path / "plan.json"
    assert "no plan has a smaller peak than 8.0 MiB" in run(*call, "-o", tmp_path / "paper.svg").output
    assert (tmp_path / "paper.svg").exists()
    found = answer(*call)
    assert (found["peak_bytes"], found["lower_bound_bytes"], found["saved_bytes"]) == (12 * MIB, 8 * MIB, 4 * MIB)
    assert answer(*call, "--no-holds-outputs")["backward_peak_bytes"] == 8 * MIB


@pytest.mark.parametrize("budget", ["budget=0.5", "budget=0.5,of=peak"])
def test_the_command_solves_for_a_budget(budget: str, tmp_path: Path) -> None:
    graph = cosines()
    graph.save(tmp_path / "paper.json")
    found = answer("inspect", "timeline", tmp_path / "paper.json", "-m", f"memory-budget:{budget}")
    model = MemoryBudget(0.5, of="peak" if "peak" in budget else "saved")
    plan = remat.choose(graph, model).plan
    assert found["peak_bytes"] == simulate(graph, plan).peak_bytes
