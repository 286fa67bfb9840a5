"""Predicted kernels: what runs them one by one finds all that it reads, and reads and writes no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from depth import deep_except, drawn
from examples import chain, cosines
from hypothesis import given
from hypothesis import strategies as st
from kernel_facts import best_plan, facts
from torch import Tensor, nn
from torch.nn import functional as F

import remat
from experiments.models.save_everything import SaveEverything, plan_of
from experiments.models.workloads import Mixer
from remat import Graph, GraphBuilder, InvalidPlan, Plan
from remat.errors import InvalidGraph
from remat.facts.columns import BoolArray
from remat.predict.kernels import Fuser, Kernel, kernels
from remat.predict.kernels.index import composed, contiguous_strides, identity, reshaped, strided
from remat.predict.kernels.realize import Stores
from remat.testing.strategies import graphs

BYTES = 64
_KINDS: dict[str, dict[str, Any]] = {
    "add": {},
    "mm": {"compute_bound": True},
    "view": {"view": True},
    "aten.exp.default": {},
}


@st.composite
def same_sized_graphs(draw: st.DrawFn) -> Graph:
    """Joint graphs whose values all have `BYTES` bytes: elementwise operators, calls, views; no argument twice."""
    g = GraphBuilder()
    forward = [g.input(f"x{i}", bytes=BYTES) for i in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 7))):
        forward.append(_operator(draw, g, forward))
    outputs = draw(st.lists(st.sampled_from(forward), min_size=1, max_size=2, unique=True))
    g.output(*outputs)
    tangents = [g.tangent(f"d_{name}", bytes=BYTES) for name in outputs]
    backward = list(tangents)
    for _ in range(draw(st.integers(1, 7))):
        backward.append(_operator(draw, g, forward + backward))
    g.gradient(*draw(st.lists(st.sampled_from(backward[len(tangents) :]), min_size=1, max_size=3, unique=True)))
    return g.build()


def _operator(draw: st.DrawFn, g: GraphBuilder, values: list[str]) -> str:
    kind = draw(st.sampled_from(tuple(_KINDS)))
    most = 1 if kind == "view" else 3
    arguments = draw(st.lists(st.sampled_from(values[::-1]), min_size=1, max_size=most, unique=True))
    return g.op(kind, *arguments, bytes=BYTES, **_KINDS[kind])


def drawn_saves(draw: st.DataObject, graph: Graph) -> BoolArray:
    """Some legal plan, without what it saves in vain."""
    demands = remat.plugin.base_problem(graph)
    price = draw.draw(st.lists(st.integers(1, 9), min_size=len(demands), max_size=len(demands)))
    problem = demands.priced(
        save_cost=np.array(price, np.int64),
        recompute_cost=np.zeros(len(price), np.int64),
        cannot_save=demands.cannot_save,
        cannot_recompute=demands.cannot_recompute,
        budget_bytes=None,
    )
    plan = remat.solve(problem, "networkx").plan
    return np.isin(graph.names, plan.saved)


class Interpreter:
    """Runs kernels one by one with what is in memory: slow, and obvious.

    It takes from a prediction only which kernel computes which values, and works out the rest.
    """

    def __init__(self, graph: Graph, predicted: Iterable[Kernel]) -> None:
        self.graph, self.kernels = graph, list(predicted)
        self.base: list[int] = graph.base.tolist()
        self.arguments: list[list[int]] = [[] for _ in range(len(graph))]
        for u, v in zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True):
            self.arguments[v].append(u)

    def sources(self, kernel: Kernel) -> set[int]:
        """Storages that a kernel must get from memory: of arguments that it does not compute itself."""
        computed = {self.base[v] for v in kernel.values if not self.graph.view[v]}
        needed = {self.base[u] for v in kernel.values for u in self.arguments[v] if not self.graph.view[v]}
        return needed - computed

    def run(self, backward: bool, memory: set[int], wanted: set[int]) -> tuple[int, int]:
        """Runs one pass; returns how many tensors were read and written.

        Args:
            backward: which.
            memory: storages that are there before it.
            wanted: storages that must be there after it.
        """
        mine = [kernel for kernel in self.kernels if kernel.backward == backward]
        reads = writes = 0
        for i, kernel in enumerate(mine):
            needed = self.sources(kernel)
            assert needed == set(kernel.reads)
            assert needed <= memory, "a kernel reads what nobody has written yet"
            later = wanted.union(*map(self.sources, mine[i + 1 :]))
            computed = {self.base[v] for v in kernel.values if not self.graph.view[v]}
            written = computed & later if kernel.generated else computed
            # What an earlier kernel has written, a later one may compute again, but does not write again.
            assert set(kernel.writes) <= written
            assert written - set(kernel.writes) <= memory
            memory |= set(kernel.writes)
            reads, writes = reads + len(needed), writes + len(kernel.writes)
        assert wanted <= memory
        return reads, writes


def interpreted(graph: Graph, saved: BoolArray, predicted: tuple[Kernel, ...]) -> int:
    """How many tensors the kernels of both passes read and write."""
    machine = Interpreter(graph, predicted)
    inputs = set(graph.base[graph.input].tolist())
    kept = set(graph.base[saved].tolist())
    tangents = np.array([op == "placeholder" for op in graph.ops]) & graph.in_tangents
    forward = machine.run(False, set(inputs), kept | set(graph.base[graph.output].tolist()))
    backward = machine.run(
        True, kept | inputs | set(graph.base[tangents].tolist()), set(graph.base[graph.gradient].tolist())
    )
    return sum(forward) + sum(backward)


@given(data=st.data(), graph=same_sized_graphs())
@drawn(150)
def test_traffic_is_what_running_the_kernels_one_by_one_moves(data: st.DataObject, graph: Graph) -> None:
    """Every read finds its tensor in memory, everything wanted is written, nothing else is; bytes are their sum."""
    saved = drawn_saves(data, graph)
    predicted = Fuser(graph).kernels(saved)
    accesses = interpreted(graph, saved, predicted)
    assert sum(len(k.reads) + len(k.writes) for k in predicted) == accesses
    assert sum(kernel.bytes for kernel in predicted) == BYTES * accesses
    assert predicted == Fuser(graph).kernels(saved)


@given(data=st.data(), graph=same_sized_graphs())
@drawn(60)
def test_every_operator_alone_moves_what_running_them_one_by_one_moves(data: st.DataObject, graph: Graph) -> None:
    saved = drawn_saves(data, graph)
    plan = remat.Choice.from_saved(graph, saved).plan(graph)
    alone = kernels(graph, plan, fused=False)
    assert all(len(kernel.values) == 1 for kernel in alone)
    moved = sum(kernel.bytes for kernel in alone)
    assert moved == BYTES * sum(len(k.reads) + len(k.writes) for k in alone)
    machine = Interpreter(graph, alone)
    assert all(machine.sources(kernel) == set(kernel.reads) for kernel in alone)


@given(data=st.data(), graph=graphs(facts=False, max_values=16))
@drawn(80)
def test_any_graph_made_by_hand_has_kernels_for_all_that_is_wanted(data: st.DataObject, graph: Graph) -> None:
    """Sizes that do not fit together, empty tensors, calls: kernels still run, and move no more than they hold."""
    saved = drawn_saves(data, graph)
    base, size = graph.base, np.zeros(len(graph), np.int64)
    np.add.at(size, base, graph.bytes)  # a call may read a storage, and copies of drawn views of it besides
    inputs = set(base[graph.input | (graph.storage_bytes == 0)].tolist())  # what is empty takes no kernel
    tangents = np.array([op == "placeholder" for op in graph.ops]) & graph.in_tangents
    memory = {False: set(inputs), True: inputs | set(base[saved | tangents].tolist())}
    for kernel in Fuser(graph).kernels(saved):
        assert set(kernel.reads) <= memory[kernel.backward], "a kernel reads what nobody has written yet"
        memory[kernel.backward] |= set(kernel.writes)
        assert kernel.read_bytes <= size[list(kernel.reads)].sum()
        assert kernel.written_bytes <= size[list(kernel.writes)].sum()
    assert set(base[saved | graph.output].tolist()) <= memory[False]
    assert set(base[graph.gradient].tolist()) <= memory[True]


@given(length=st.integers(2, 15), saves=st.booleans())
def test_fusion_of_elementwise_operators_moves_less(length: int, saves: bool) -> None:
    """Chains fuse into a kernel for each pass, which moves less than operators alone."""
    graph = chain(length)
    chosen = graph.names if saves else ("x",)
    plan = remat.Choice.from_saved(graph, np.isin(graph.names, chosen)).plan(graph)
    fused, alone = kernels(graph, plan), kernels(graph, plan, fused=False)
    assert sum(k.bytes for k in fused) < sum(k.bytes for k in alone)
    assert len(fused) == 2


def test_a_value_read_by_two_calls_is_stored_once_and_by_two_loops_of_one_kernel_never() -> None:
    g = GraphBuilder()
    shape = {"bytes": 64, "dtype": "float32", "shape": (4, 4)}
    y = g.op("aten.add.Tensor", g.input("x", **shape), name="y", call='[{"v":0},1]', **shape)
    for name in ("left", "right"):
        g.op("aten.mm.default", y, name=name, call='[{"v":0},{"v":0}]', compute_bound=True, **shape)
    g.op("aten.mul.Tensor", "y", name="twice", call='[{"v":0},2]', **shape)
    g.output("left", "right", "twice")
    g.gradient(g.op("neg", g.tangent("d", bytes=64)))
    graph = g.build()
    forward = [k for k in Fuser(graph).kernels(np.zeros(len(graph), np.bool_)) if not k.backward]
    names = [tuple(graph.names[v] for v in kernel.writes) for kernel in forward]
    assert names == [("y", "twice"), ("left",), ("right",)]
    assert [kernel.bytes for kernel in forward] == [192, 128, 128]


def test_of_saved_views_of_one_storage_the_owner_is_handed_over() -> None:
    g = GraphBuilder()
    y = g.op("cos", g.input("x", bytes=BYTES), name="y")
    views = [g.op("view", y, view=True, name=name) for name in ("v1", "v2")]
    g.output(g.op("mm", y, compute_bound=True, name="z"))
    d = g.tangent("dz", bytes=BYTES)
    g.gradient(*(g.op("mm", d, view, compute_bound=True, name=f"d{view}") for view in views))
    graph = g.build()
    predicted = Fuser(graph).kernels(np.isin(graph.names, views))
    assert [[graph.names[v] for v in k.writes] for k in predicted] == [["y"], ["z"], ["dv1"], ["dv2"]]
    assert all(graph.index["y"] in kernel.reads for kernel in predicted[1:])


@pytest.mark.parametrize("product_is_read_twice", [False, True])
def test_a_product_that_only_a_sum_reads_is_one_call_with_it(product_is_read_twice: bool) -> None:
    g = GraphBuilder()
    shape = {"bytes": 64, "dtype": "float32", "shape": (4, 4)}
    x, w, bias = (g.input(name, **shape) for name in ("x", "w", "bias"))
    product = g.op("aten.mm.default", x, w, name="product", compute_bound=True, **shape)
    g.output(g.op("aten.add.Tensor", product, bias, name="sum", **shape))
    if product_is_read_twice:
        g.output(product)
    g.gradient(g.op("neg", g.tangent("d", bytes=64)))
    graph = g.build()
    forward = [k for k in Fuser(graph).kernels(np.zeros(len(graph), np.bool_)) if not k.backward]
    assert [k.generated for k in forward] == ([False, True] if product_is_read_twice else [False])
    assert sum(k.bytes for k in forward) == 64 * (6 if product_is_read_twice else 4)


def test_two_pairs_that_wait_for_each_other_do_not_both_fuse() -> None:
    """a and d could share a kernel, b and c another; but c needs a, and d needs b: one kernel would never run."""
    g = GraphBuilder()
    p, q = g.input("p", bytes=BYTES), g.input("q", bytes=BYTES)
    a, b = g.op("add", p, name="a"), g.op("add", q, name="b")
    after_a = g.op("mm", a, name="after_a", compute_bound=True)
    after_b = g.op("mm", b, name="after_b", compute_bound=True)
    g.output(g.op("add", after_a, q, name="c"), g.op("add", after_b, p, name="d"))
    g.gradient(g.op("neg", g.tangent("dc", bytes=BYTES)))
    graph = g.build()
    nothing = np.zeros(len(graph), np.bool_)
    predicted = Fuser(graph).kernels(nothing)
    interpreted(graph, nothing, predicted)
    together = [sorted(graph.names[v] for v in k.values) for k in predicted if len(k.values) > 1]
    assert together in ([["a", "d"]], [["b", "c"]])


class Block(nn.Module):
    """Layer norm, attention, dropout, a perceptron: reductions, calls, permutes, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 8, 4, 4).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, -1))
        weights = F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.1)
        return x + F.gelu(self.out((weights @ v).transpose(1, 2).reshape(2, 8, 16)))


class Convolutions(nn.Module):
    """Images: channels last, pooling and its scatter, batch statistics written in place, a lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.table = nn.Embedding(8, 8)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        return (self.two(y).mean((2, 3)) + self.table(rows)).sigmoid().sum()


MODELS = {
    "block": (Block, lambda: (torch.randn(2, 8, 16, requires_grad=True),)),
    "mixer": (lambda: Mixer(2, 8, 16), lambda: (torch.randn(4, 8, 16), torch.randint(10, (4,)))),
    "convolutions": (Convolutions, lambda: (torch.randn(2, 3, 10, 10), torch.randint(8, (2,)))),
}


@pytest.mark.parametrize("name", deep_except(["block", "convolutions"], MODELS))
@pytest.mark.parametrize("mode", deep_except(["aggressive"], ["conservative", "aggressive"]))
def test_kernels_are_those_of_inductors_own_scheduler(name: str, mode: str) -> None:
    """Bytes of each kernel of three models that use most of the rules, under two plans each."""
    from experiments.accuracy.live_kernels import inductor_kernels

    torch.manual_seed(0)
    build, inputs = MODELS[name]
    model, args = build(), inputs()
    graph = remat.capture(model, *args)
    plan = best_plan(graph, mode)
    assert facts(kernels(graph, plan)) == facts(inductor_kernels(model, *args, plans=plan))


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_added_to_places_is_a_loop_where_one_thread_runs(threads: int) -> None:
    from remat.pytorch.inductor.scheduled import Scheduled

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, rows = torch.randn(4, 8, requires_grad=True), torch.randint(8, (4, 3))
        graph = remat.capture(lambda x, rows: x.sin().gather(1, rows).exp().sum(), x, rows)
        plan = best_plan(graph)
        expected = facts(Scheduled(graph).kernels(plan))
    finally:
        torch.set_num_threads(before)
    found = kernels(graph, plan)
    assert facts(found) == expected
    assert all(kernel.generated for kernel in found) == (threads == 1)


def test_gradients_of_convolutions_turn_images_by_the_rules_of_the_torch_that_captured_them() -> None:
    """Since 2.15 a backward pass without convolutions keeps images with channels last, and so copies one less.

    Before 2.13 gradients ask for eager's layouts, which these have.
    """
    graph = remat.capture(Convolutions(), torch.randn(2, 3, 10, 10), torch.randint(8, (2,)))
    plan = best_plan(graph, "aggressive")
    assert graph.meta["torch"] == torch.__version__
    of = {v: kernels(replace(graph, meta=graph.meta | {"torch": v}), plan) for v in ("2.11.0", "2.13.0", "2.15.0")}
    assert len(of["2.11.0"]) == len(of["2.15.0"]) == len(of["2.13.0"]) - 1
    assert sum(k.bytes for k in of["2.11.0"]) < sum(k.bytes for k in of["2.15.0"])


class Parametrized(nn.Module):
    """A function of some inputs and one parameter."""

    def __init__(self, function: Callable[..., Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(shape))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self.weight, *inputs)


class Separable(nn.Module):
    """A depthwise convolution, group normalization, then two paths whose channels are put side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Conv2d(3, 8, 3, padding=1)
        self.depth, self.mix = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.Conv2d(16, 4, 1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rows(x)
        return self.mix(torch.cat([F.relu(self.norm(self.depth(y))), y], 1)).square().mean()


def attended(w: Tensor, x: Tensor) -> Tensor:
    """Attention by einsum-like products of unbound thirds."""
    q, k, v = (x @ w).view(2, 16, 3, 4, 8).unbind(2)
    scores = (q.transpose(1, 2) @ k.transpose(1, 2).transpose(2, 3)).softmax(-1)
    return scores @ v.transpose(1, 2)


def shifted(w: Tensor, x: Tensor) -> Tensor:
    """Swin's window shift, with a border."""
    return F.pad((x * w).roll(1, 0), (1, 2)).exp().sum()


def one_later(w: Tensor, x: Tensor) -> Tensor:
    """Each row beside the one before it, as in RWKV: the padding adds a row and takes one away."""
    y = (x * w).tanh()
    return (y * F.pad(y, (0, 0, 1, -1))).sum()


def filled(w: Tensor, x: Tensor) -> Tensor:
    """Writes one column after the other into a tensor, as RWKV does; what was there before is not read."""
    y = torch.zeros_like(x)
    for i in range(x.shape[1]):
        y[:, i] = (x[:, i] * w[i]).exp()
    return (y * x).sum()


def recurrent(w: Tensor, x: Tensor) -> Tensor:
    """Writes each state beside the next one: how many operations a loop holds decides what is stored."""
    y, state = torch.zeros_like(x), torch.zeros_like(x[:, 0])
    for i in range(x.shape[1]):
        y[:, i] = state + x[:, i] * w[i]
        state = state * w[i] + x[:, i]
    return (y.cos() * x).sum()


def there_and_back(w: Tensor, x: Tensor) -> Tensor:
    """A view that undoes another one is a view still: a concatenation writes a copy, and others compute it again."""
    y = (x * w).sin().unsqueeze(0).squeeze(0)
    return (y * torch.cat([y, x], 1).exp().sum()).exp().sum()


def reused(w: Tensor, x: Tensor) -> Tensor:
    """Two loops read a costly operator: from torch 2.13 on it is not computed twice."""
    y = (x * w).tanh()
    return (y * 2).sum(0).exp().sum() + y.sum(1).exp().sum()


HELD_OUT: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "separable": (Separable, lambda: (torch.randn(4, 3, 10, 10),)),
    "unbind": (lambda: Parametrized(attended, 32, 96), lambda: (torch.randn(2, 16, 32),)),
    "pad": (lambda: Parametrized(shifted, 8), lambda: (torch.randn(4, 8),)),
    "one later": (lambda: Parametrized(one_later, 8), lambda: (torch.randn(4, 8),)),
    "filled": (lambda: Parametrized(filled, 8), lambda: (torch.randn(4, 8),)),
    "recurrent": (lambda: Parametrized(recurrent, 16), lambda: (torch.randn(4, 16),)),
    "there and back": (lambda: Parametrized(there_and_back, 8), lambda: (torch.randn(4, 8),)),
    "scan": (lambda: Parametrized(lambda w, x: (x * w).cumsum(1).exp().sum(), 8), lambda: (torch.randn(4, 8),)),
    "repeat": (lambda: Parametrized(lambda w, x: (x * w).repeat(2, 3).tanh().sum(), 8), lambda: (torch.randn(4, 8),)),
    "top": (lambda: Parametrized(lambda w, x: (x * w).topk(3).values.exp().sum(), 8), lambda: (torch.randn(4, 8),)),
    "max": (lambda: Parametrized(lambda w, x: (x * w).max(1)[0].exp().sum(), 8), lambda: (torch.randn(4, 8),)),
    "many": (lambda: Parametrized(lambda w, *x: sum(x, w).exp().sum(), 8), lambda: (*torch.randn(10, 4, 8),)),
    "reused": (lambda: Parametrized(reused, 8), lambda: (torch.randn(4, 8),)),
}


@pytest.mark.parametrize("name", deep_except([name for name in HELD_OUT if name != "recurrent"], HELD_OUT))
def test_operators_of_other_models_have_inductors_kernels_too(name: str) -> None:
    """Layouts of convolutions' gradients and of concatenations; shifts, scans, scatters, maxima with their places."""
    from remat.pytorch.inductor.scheduled import Scheduled

    torch.manual_seed(0)
    build, inputs = HELD_OUT[name]
    graph = remat.capture(build(), *inputs())
    scheduled = Scheduled(graph)
    for mode in ("conservative", "aggressive"):
        plan = best_plan(graph, mode)
        assert facts(kernels(graph, plan)) == facts(scheduled.kernels(plan))


@pytest.mark.parametrize(
    ("name", "torch_version", "expected"),
    [
        ("separable", "2.11.0", [431504, 520656]),  # short variances and gradients take fewer kernels
        ("separable", "2.13.0", [495632, 597712]),
        ("repeat", "2.11.0", [2888, 360]),  # a sum of six terms is stored, unless they are one and the same
        ("repeat", "2.13.0", [2632, 360]),
    ],
)
def test_rules_are_those_of_the_torch_that_captured_the_graph(
    name: str, torch_version: str, expected: list[int]
) -> None:
    """The bytes that the test above finds on each."""
    build, inputs = HELD_OUT[name]
    graph = remat.capture(build(), *inputs())
    plans = [best_plan(graph, mode) for mode in ("conservative", "aggressive")]
    graph = replace(graph, meta=graph.meta | {"torch": torch_version})
    assert [sum(k.bytes for k in kernels(graph, plan)) for plan in plans] == expected


Counts = dict[frozenset[str], tuple[int, int]]


def counts(graph: Graph, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[Counts, Counts]:
    """The operations and the reads of expressions, as we count them and as Inductor does, by what they compute."""
    from torch._inductor import ir

    from remat.pytorch import virtual_gpu
    from remat.pytorch.inductor.scheduled import Scheduled

    theirs: Counts = {}
    ours: Counts = {}
    decide, limited = ir.StorageBox.has_exceeded_max_reads, Stores.has_many_reads
    seen = {name for name, view in zip(graph.names, graph.view, strict=True) if not view}

    def noted(box: Any) -> bool:
        if isinstance(box.data, ir.Pointwise):
            count = box.data.inner_fn_opcount()
            names = frozenset(node.name for node in box.data.origins)
            if names <= graph.index.keys():  # not of operators that Inductor adds
                theirs[names & seen] = count.num_ops, len(count.read_buffers)
        return decide(box)

    def counted(stores: Stores, box: Any) -> bool:
        if box.buffer is None:
            ours[frozenset(graph.names[v] for v in box.ops)] = stores.size(box), len(box.reads)
        return limited(stores, box)

    monkeypatch.setattr(ir.StorageBox, "has_exceeded_max_reads", noted)
    monkeypatch.setattr(Stores, "has_many_reads", counted)
    with virtual_gpu("h100") if graph.meta.get("gpu") else nullcontext():
        Scheduled(graph).kernels(plan)
    kernels(graph, plan)
    both = ours.keys() & theirs.keys()
    return {ops: ours[ops] for ops in both}, {ops: theirs[ops] for ops in both}


@pytest.mark.parametrize("width", [256, 1032])
def test_an_expression_has_as_many_operations_as_inductor_counts(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number counts once, however often it is needed. The wider variance is Welford's."""
    torch.manual_seed(0)
    graph = remat.capture(nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.LayerNorm(width)), torch.randn(16, 4))
    ours, theirs = counts(graph, best_plan(graph, "aggressive"), monkeypatch)
    assert max(map(len, ours)) > 16
    assert ours == theirs


class Turned(nn.Module):
    """Rows that are normalized and turned by their positions: each element meets another one of its row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(512, 64, dtype=torch.bfloat16), nn.Parameter(torch.randn(64))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        x = self.scale * (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
        places = torch.arange(words.shape[1], device=words.device)[:, None]
        angles = torch.cat((places * self.scale[:32], places * self.scale[32:]), -1)
        left, right = x.chunk(2, -1)
        return (x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()).pow(3).sum()


def test_what_an_expression_needs_at_several_positions_counts_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from remat.pytorch import capture_all

    (graph,) = capture_all(Turned(), torch.randint(512, (4, 128)), device="h100")
    ours, theirs = counts(graph, plan_of(graph, SaveEverything()), monkeypatch)
    assert max(count for count, _ in ours.values()) > 20
    assert ours == theirs


def test_the_gradient_of_a_maximum_over_windows_is_a_kernel() -> None:
    """Before torch 2.13 always; since then a scatter takes its place, unless algorithms are to be deterministic."""
    from experiments.accuracy.live_kernels import inductor_kernels

    model, args = Convolutions(), MODELS["convolutions"][1]()
    torch.use_deterministic_algorithms(True)
    try:
        graph = remat.capture(model, *args)
        plan = best_plan(graph, "aggressive")
        theirs = inductor_kernels(model, *args, plans=plan)
    finally:
        torch.use_deterministic_algorithms(False)
    name = "max_pool2d_with_indices_backward"
    expected = [(k.generated, k.bytes) for k in theirs if name in k.operators and name in dict(k.writes)]
    found = [(k.generated, k.bytes) for k in kernels(graph, plan) if graph.index[name] in k.writes]
    assert found == expected
    assert [generated for generated, _ in found] == [True]


def test_elements_of_a_tuple_are_written_each_by_itself() -> None:
    """Variance and mean are two tensors in memory, though one operator returns both."""
    graph = remat.capture(Parametrized(lambda w, x: torch.var_mean(x * w, 1), 8), torch.randn(4, 8))  # type: ignore
    forward = [k for k in Fuser(graph).kernels(graph.input.copy()) if not k.backward]
    elements = {i for i, op in enumerate(graph.ops) if op == "getitem" and not graph.in_tangents[i]}
    assert len(elements) == 2
    assert elements <= {v for k in forward for v in k.writes}


@pytest.mark.parametrize("shape", [(0, 8), (4, 0, 8)])
def test_empty_tensors_take_no_kernel(shape: tuple[int, ...]) -> None:
    model = Parametrized(lambda w, x: F.layer_norm((x * w).sigmoid()[..., 2:], (6,)).transpose(0, 1).flatten(), 8)
    graph = remat.capture(model, torch.randn(shape))
    for fused in (True, False):
        predicted = kernels(graph, best_plan(graph), fused=fused)
        assert any(k.backward for k in predicted)
        assert all(any(graph.bytes[v] for v in k.writes) for k in predicted if fused)


@given(data=st.data())
@drawn(60)
def test_shapes_that_do_not_fit_together_are_read_somehow(data: st.DataObject) -> None:
    """A graph made by hand may know some shapes and not others: each kernel still moves what it holds, and no more."""
    g, names = GraphBuilder(), list[str]()
    shapes = st.sampled_from([(), (4,), (1,), (2, 4), (4, 2), (0, 4), (2, 1, 4)])

    def facts() -> dict[str, Any]:
        shape = data.draw(shapes)
        known = {"bytes": 4 * int(np.prod(shape)), "dtype": "float32", "shape": shape}
        return known if data.draw(st.booleans()) else {}

    names.append(g.input("x", **{"bytes": 32, **facts()}))
    for _ in range(data.draw(st.integers(1, 5))):
        op = data.draw(st.sampled_from(["aten.add.Tensor", "aten.exp.default", "aten.mm.default", "cos"]))
        names.append(g.op(op, *data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)), **facts()))
    g.output(names[-1])
    g.gradient(g.op("aten.mul.Tensor", g.tangent("dy", bytes=16), *names[-2:]))
    graph = g.build()
    predicted = Fuser(graph).kernels(drawn_saves(data, graph))
    assert all(k.read_bytes <= graph.bytes[list(k.reads)].sum() for k in predicted)


@pytest.mark.parametrize(("saved", "message"), [([True], "shape"), (["dy"], "depends on a tangent")])
def test_what_cannot_be_saved_is_refused(saved: list[Any], message: str) -> None:
    graph = cosines()
    mask = np.array(saved) if saved == [True] else np.isin(graph.names, ["grad_out"])
    with pytest.raises(InvalidPlan, match=message):
        Fuser(graph).kernels(mask)


@pytest.mark.parametrize("call", ["", '[{"v":0}]', '[{"v":9}]', "{", '[{"what":1}]'])
def test_a_call_that_does_not_say_what_it_does_is_refused(call: str) -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=24, dtype="float32", shape=(2, 3))
    g.output(g.op("aten.permute.default", x, bytes=24, dtype="float32", shape=(3, 2), view=True, call=call))
    g.gradient(g.op("neg", g.tangent("d", bytes=24)))
    graph = g.build()
    with pytest.raises(InvalidGraph, match=r"Graph\.arguments"):
        Fuser(graph).kernels(np.zeros(len(graph), np.bool_))


_SIZES = st.sampled_from((1, 2, 3, 4, 6, 8))


def places(dims: tuple[tuple[tuple[int, int], ...], ...], start: int = 0) -> list[int]:
    """All positions that a map leads to, in row-major order of its shape."""
    found = [start]
    for n, s in (digit for digits in dims for digit in digits):
        found = [at + i * s for at in found for i in range(n)]
    return found


def test_a_digit_of_unknown_steps_that_is_read_whole_leaves_the_other_steps_known() -> None:
    """As pairs of features that exchange places in rotary positions: the order of loops depends on the known steps."""
    pairs = ((((4, 8),), ((4, 2), (2, -7))), 1)
    heads = strided((2, 2, 8), (16, 8, 1))
    assert composed((heads, 0), pairs) == ((((2, 16),), ((2, 8),), ((4, 2), (2, -7))), 1)


@given(data=st.data(), shape=st.lists(_SIZES, min_size=1, max_size=4))
def test_reading_one_index_map_through_another_composes_them(data: st.DataObject, shape: list[int]) -> None:
    """Permuted, then reshaped, then read in a layout of its own: element by element, or said to be unknown."""
    order = data.draw(st.permutations(range(len(shape))))
    permuted = tuple(identity(tuple(shape))[i] for i in order)
    sizes = tuple(shape[i] for i in order)
    split = data.draw(st.sampled_from([sizes, sizes[::-1], (int(np.prod(sizes)),), (*sizes, 1)]))
    dims = reshaped(permuted, split)
    strides = contiguous_strides(tuple(shape)[::-1])[::-1]
    seen, start = composed((dims, 0), (strided(tuple(shape), strides), 0))
    if any(s < 0 for digits in (*dims, *seen) for _, s in digits):
        return
    rows = np.arange(int(np.prod(shape))).reshape(shape)
    memory = np.add.reduce(np.meshgrid(*(np.arange(n) * s for n, s in zip(shape, strides, strict=True)), indexing="ij"))
    assert places(dims) == rows.transpose(order).reshape(-1).tolist()
    assert places(seen, start) == memory.transpose(order).reshape(-1).tolist()
