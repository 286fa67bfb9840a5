"""What the device holds under plans that offload: by value, kernel by kernel, and in compiled steps."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from depth import deep, drawn
from examples import SLOW_LINK, library_calls
from hypothesis import given
from hypothesis import strategies as st
from strategies import Dice, DiceWithHost, SaveOnHost, all_on_host
from torch import Tensor

import remat
from experiments.accuracy.compiled_peaks import measured_peak
from experiments.models.cases import CASES
from experiments.models.workloads import KERNEL_ZOO
from remat import Graph, GraphBuilder, InvalidOption, Plan, solve, timeline
from remat.plugin import BoolArray, PlanFacts, cannot_offload
from remat.predict.buffers import StepMemory
from remat.predict.kernels.host_copies import Copy, HostCopies, early_places
from remat.predict.memory import Simulator
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts
from remat.predict.offloading import StepClock
from remat.predict.offloading.offload_timeline import Simulated
from remat.pytorch.inductor.cubins import triton_code
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.seam import offload_operators
from remat.testing import graphs


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose memory torch's allocator does not hand out."""
    memory: dict[int, ctypes.Array[ctypes.c_char]] = {}
    on_device = offload_operators.place_for

    def place_for(tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.data_ptr() in memory:
            return on_device(tensor, device)
        size = tensor.untyped_storage().nbytes()
        block = ctypes.create_string_buffer(size + 63)  # aligned as torch's own is
        skip = -ctypes.addressof(block) % 64
        flat = torch.frombuffer(block, dtype=torch.uint8, count=size, offset=skip).view(tensor.dtype)
        place = flat.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())
        memory[place.data_ptr()] = block
        return place

    monkeypatch.setattr(offload_operators, "place_for", place_for)
    yield
    memory.clear()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("pointwise chain", SaveOnHost()),
        ("LayerNorm-GeLU MLP", SaveOnHost()),
        *(pytest.param(name, SaveOnHost(), marks=deep) for name in ("dropout MLP", "GPT, fused attention")),
        *(pytest.param(name, DiceWithHost(3), marks=deep) for name in ("LayerNorm-GeLU MLP", "MLP-Mixer")),
    ],
)
@pytest.mark.parametrize("copy_stream", [False, True])
@pytest.mark.usefixtures("host")
def test_a_step_allocates_what_is_predicted(name: str, model: remat.CostModel, copy_stream: bool) -> None:
    torch.manual_seed(0)
    zoo = {**KERNEL_ZOO, **{case: lambda case=case: (CASES[case].build(), CASES[case].inputs()) for case in CASES}}
    graph, plan, bytes_ = measured_peak((*zoo[name](), None), model, kernels=False, copy_stream=copy_stream)
    line = timeline(graph, plan, copy_stream=copy_stream)
    assert plan.offloaded
    too_high = 0.07 if copy_stream and name.startswith("GPT") else 0.001  # a loop that writes over what it reads
    assert 0.999 * bytes_ <= line.peak_bytes <= (1 + too_high) * bytes_
    assert line.saved_bytes == PlanFacts.of(graph, plan).saved_bytes


def test_the_peak_is_in_the_report() -> None:
    case = CASES["pointwise chain"]
    model, batch = case.build(), case.inputs()
    step = remat.compile(model, cost_model=SaveOnHost(), codegen=False)
    step(*batch).sum().backward()
    (planned,) = step.report().graphs
    assert planned.plan.offloaded
    assert planned.row["peak_bytes"] == timeline(planned.graph, planned.plan).peak_bytes > 0
    on_device = replace(planned.plan, offloaded=())
    assert timeline(planned.graph, planned.plan).at_forward_end < timeline(planned.graph, on_device).at_forward_end


def test_by_hand() -> None:
    graph = library_calls()
    plain, away = (timeline(graph, Plan(("a", "b"), (), offloaded=names)) for names in ((), ("a",)))
    assert plain.during_bytes.tolist() == [100, 200, 204, 304, 304]
    assert away.during_bytes.tolist() == [100, 200, 104, 204, 304]  # b has read a; db does not; da does
    assert (away.saved_bytes, away.at_forward_end) == (100, 104)
    assert [tensor.why for tensor in away.peak_tensors if tensor.name == "a"] == ["offloaded"]
    assert away.by_why["offloaded"].tolist() == [100, 100, 0, 0, 100]


def test_compiled_steps_name_their_copies() -> None:
    case = CASES["pointwise chain"]
    graph = remat.capture(case.build(), *case.inputs())
    plan = solve(SaveOnHost().pose(graph)).plan
    for device in ("cpu", "h100"):
        line = timeline(graph, plan, device=device)
        out, back = (
            {i for i, op in enumerate(line.ops) if op == copied} for copied in ("copied to the host", "copied back")
        )
        assert len(out) == len(back) == len(plan.offloaded)
        assert max(out) < line.forward_steps <= min(back)
        assert {line.names[i] for i in out} == {line.names[i] for i in back} == set(plan.offloaded)


def test_the_code_for_an_h100_copies_back_in_the_order_that_is_predicted() -> None:
    """Each value comes back right before it is read, so that the peak falls."""
    graph, plan = all_on_host("LayerNorm-GeLU MLP")
    line, on_device = (timeline(graph, one, device="h100") for one in (plan, replace(plan, offloaded=())))
    _, backward = triton_code(Scheduled(graph, device="h100"), plan)
    copied = re.findall(r"remat\.to_device\.default\((\w+),", backward.text)
    steps = itertools.groupby(zip(line.names, line.ops, strict=True), lambda step: step[1] == "copied back")
    for together in [{name for name, _ in group} for is_copy, group in steps if is_copy]:
        found, copied = copied[: len(together)], copied[len(together) :]
        assert set(found) == together
    assert copied == []
    assert line.peak_bytes < 0.5 * on_device.peak_bytes


def copies_of_both(copy_stream: bool) -> Iterator[tuple[list[list[Copy]], list[Copy]]]:
    """Of the forward and the backward pass of `library_calls`, with a and b on the host: copies due, and those left."""
    graph = library_calls()
    hosted = np.isin(graph.names, ["a", "b"])
    for names, backward in ((("a", "b", "loss"), False), (("db", "da"), True)):
        values = np.array([graph.index[name] for name in names])
        copies = HostCopies(graph, values, hosted, backward=backward, copy_stream=copy_stream)
        yield [copies.due_before(v) for v in values.tolist()], copies.remaining()


def test_a_copy_is_due_behind_the_last_reader_and_before_the_first() -> None:
    a, b = (library_calls().index[name] for name in "ab")
    out, back = copies_of_both(copy_stream=False)
    assert out == ([[], [], [Copy("copied to the host", a)]], [Copy("copied to the host", b)])
    assert back == ([[Copy("copied back", v)] for v in (b, a)], [])


def test_beside_the_kernels_a_copy_ends_where_the_next_begins() -> None:
    a, b = (library_calls().index[name] for name in "ab")
    out, back = copies_of_both(copy_stream=True)
    begins, ends = "copy to the host begins", "copy to the host ends"
    # The last readers of both, b and the loss, wait for two products: they are of one stage.
    assert out == ([[], [], [Copy(begins, a)]], [Copy(begins, b), Copy(ends, a), Copy(ends, b)])
    first = [Copy("copy back begins", b), Copy("copy back ends", b), Copy("copy back begins", a, predecessor=b)]
    assert back == ([first, [Copy("copy back ends", a)]], [])


def test_a_copy_to_the_host_ends_when_one_of_the_next_stage_has_begun() -> None:
    g = GraphBuilder()
    a = g.op("exp", g.input("x", bytes=100), name="a", bytes=100)
    b = g.op("mm", a, name="b", bytes=100, compute_bound=True)
    c = g.op("exp", b, name="c", bytes=100)
    g.output(g.op("mm", c, name="y", bytes=100, compute_bound=True))
    late = g.op("exp", a, name="late", bytes=100)  # the last in the order of the graph
    g.gradient(g.op("mm", g.tangent("dy", bytes=100), a, b, c, late, name="dx", bytes=100, compute_bound=True))
    graph = g.build()
    at = graph.index
    values = np.array([at[name] for name in ("a", "b", "c", "y", "late")])
    assert early_places(graph, values).tolist() == [0, 1, 2, 3, 0]
    values = np.array([at[name] for name in ("a", "late", "b", "c", "y")])
    out = HostCopies(graph, values, np.isin(graph.names, ["a", "b", "c", "late"]), backward=False, copy_stream=True)
    begins, ends = "copy to the host begins", "copy to the host ends"
    assert [
        [(copy.step, graph.names[copy.value], copy.predecessor) for copy in out.due_before(v)] for v in values.tolist()
    ] == [[], [], [(begins, "late", None)], [(begins, "a", None), (ends, "late", at["a"])], [(begins, "b", None)]]
    assert [(copy.step, graph.names[copy.value], copy.predecessor) for copy in out.remaining()] == [
        (begins, "c", None),
        (ends, "a", at["c"]),
        (ends, "b", at["c"]),
        (ends, "c", None),
    ]


@given(graphs(max_values=24))
def test_early_places_are_behind_what_is_read(graph: Graph) -> None:
    values = np.flatnonzero(~graph.in_tangents & ~graph.input)
    places = early_places(graph, values)
    own = np.arange(len(values))
    stays = graph.in_forward | graph.random | graph.cannot_recompute.mask
    assert (places <= own).all()
    assert (places[stays[values]] == own[stays[values]]).all()
    computed = {graph.names[v] for v in np.flatnonzero(graph.input)}
    for v in values[np.argsort(places, kind="stable")].tolist():
        assert computed >= {graph.names[u] for u in graph.operands[v]}
        computed.add(graph.names[v])


@pytest.mark.parametrize("name", ["LayerNorm-GeLU MLP", pytest.param("GPT, attention written out", marks=deep)])
def test_the_code_for_an_h100_sends_between_the_products_that_are_predicted(name: str) -> None:
    graph, plan = all_on_host(name)
    forward, _ = triton_code(Scheduled(graph, device="h100", copy_stream=True), plan)
    line = timeline(graph, plan, device="h100", copy_stream=True)
    called = {"copy to the host begins": "send", "copy to the host ends": "sent"}
    steps = zip(line.names[: line.forward_steps], line.ops, strict=False)
    predicted = [called.get(op, "product") for v, op in steps if op in called or graph.compute_bound[graph.index[v]]]
    found = re.findall(r"remat\.(send|sent)\.default\(|extern_kernels\.\w+\(", forward.text)
    assert predicted == [call or "product" for call in found]
    last = predicted[-predicted[::-1].index("product") :]
    assert 0 < last.count("sent") < predicted.count("sent") / 2  # in the order of the graph, half of all come last


def drawn_choice(graph: Graph, seed: int) -> tuple[BoolArray, BoolArray]:
    """What a random legal plan saves, and some of what it could offload."""
    plan = solve(Dice(seed).pose(graph)).plan
    may = ~cannot_offload(graph).mask & (np.random.default_rng(seed).random(len(graph)) < 0.5)
    saved = np.isin(graph.names, plan.saved)
    return saved, saved & may


def test_value_by_value_there_is_no_stream_of_copies() -> None:
    """It would be left out, and the peak too small."""
    graph, plan = library_calls(), Plan(("a", "b"), (), offloaded=("a", "b"))
    with pytest.raises(InvalidOption, match=r"copy_stream=True is for predicted kernels, .* name a device"):
        timeline(graph, plan, copy_stream=True)
    assert timeline(graph, plan, device="h100", copy_stream=True).peak_bytes


def test_what_is_returned_and_read_by_nothing_is_on_the_device_once() -> None:
    """The backward pass has no step; what it returns comes back when all has run."""
    g = GraphBuilder()
    a = g.op("mm", g.input("x", bytes=4), name="a", bytes=4, compute_bound=True)
    g.output(g.op("sum", a, name="loss", bytes=1, fusible=False))
    g.tangent("dloss", bytes=1)
    g.gradient(a)
    graph = g.build()
    saved = np.isin(graph.names, ["a"])
    assert Simulator(graph).timeline(saved, saved).during_bytes.tolist() == [4, 5]
    beside = Simulated.of(StepClock.of(graph, SLOW_LINK), saved, saved).timeline
    assert beside.device_bytes.tolist() == [4, 5]
    assert beside.saved_bytes == 0


@drawn(100)
@given(graphs(max_values=14, facts=False), st.integers(0, 2**32 - 1))
def test_offloading_takes_bytes_off_the_device_and_adds_none(graph: Graph, seed: int) -> None:
    """Copies between kernels are the least, copies beside them keep more, and no copies the most, at every moment."""
    saved, offloaded = drawn_choice(graph, seed)
    simulator = Simulator(graph)
    plain, away = simulator.timeline(saved), simulator.timeline(saved, offloaded)
    beside = Simulated.of(StepClock.of(graph, SLOW_LINK), saved, offloaded).timeline
    assert (away.during_bytes <= beside.device_bytes).all()
    assert (beside.device_bytes <= plain.during_bytes).all()
    hosted = offloaded & Order.of(StorageFacts.of(graph), saved).saved
    assert plain.saved_bytes - away.saved_bytes == graph.storage_bytes[hosted].sum()
    assert away.saved_bytes == beside.saved_bytes
    assert simulator.peak(saved, offloaded) == away.peak_bytes
    nothing = np.zeros(len(graph), np.bool_)
    assert np.array_equal(simulator.timeline(saved, nothing).during_bytes, plain.during_bytes)


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_a_compiled_step_that_offloads_nothing_is_the_same(backend: str) -> None:
    case = CASES["encoder layer"]
    graph = remat.capture(case.build(), *case.inputs())
    saved, _ = drawn_choice(graph, 1)
    memory = StepMemory(graph, backend)
    with_host, without = memory.timeline(saved, np.zeros(len(graph), np.bool_)), memory.timeline(saved)
    assert with_host.names == without.names
    assert np.array_equal(with_host.during_bytes, without.during_bytes)
