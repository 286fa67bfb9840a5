"""Duplicated values in real graphs: the same results, and fewer bytes by TorchInductor's own count."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch._inductor.compile_fx import compile_fx

from experiments.accuracy.live_kernels import visited
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from remat.improve.cross_kernel import Pass, recompute_across
from remat.pytorch.inductor.duplicate import DuplicateAcrossKernels, can_dry_run, copied, duplicate, pass_of
from remat.pytorch.inductor.scheduled import InductorKernel, counting_kernels, scheduled_kernels
from remat.pytorch.seam.torch_settings import fresh_compilation
from remat.testing import dags
from tests.modules import ModuleOf

pytestmark = pytest.mark.filterwarnings("error:DuplicateAcrossKernels leaves")  # what users are warned of is a bug

aten = torch.ops.aten
_PASS = {"post_grad_custom_post_pass": DuplicateAcrossKernels()}
_SIDE = 256
_TENSOR = 4 * _SIDE**2


def figure_4(a: Tensor) -> Tensor:
    """Figure 4 of the paper. On CPU, Inductor writes an exp or a sigmoid with several users to memory."""
    b = a.exp()
    c = b.sigmoid()
    e = (b * c).cumsum(0)
    return b * c + e


def accesses(kernels: Sequence[InductorKernel]) -> tuple[int, int]:
    """(reads, writes) of whole tensors by the kernels that Inductor generates; what is not fusible is left out."""
    made = [kernel for kernel in kernels if kernel.generated]
    sizes = [size for kernel in made for _, size in (*kernel.reads, *kernel.writes)]
    assert set(sizes) == {_TENSOR}
    return sum(len(kernel.reads) for kernel in made), sum(len(kernel.writes) for kernel in made)


def scheduled(model: Callable[..., Any], *args: Tensor, **options: Any) -> list[InductorKernel]:
    """Inductor's kernels of both passes, without compiling them."""
    kernels: list[InductorKernel] = []

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches=options)

    args = tuple(argument.clone().requires_grad_(argument.is_floating_point()) for argument in args)
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))):
        torch.compile(model, backend=backend, dynamic=False)(*args)
    return kernels


def test_figure_4_takes_inductor_three_reads_and_two_writes_instead_of_four_and_four() -> None:
    found: list[tuple[int, int]] = []
    for options in ({}, _PASS):
        with counting_kernels() as kernels, fresh_compilation(), no_cpu_kernels(), torch.no_grad():
            torch.compile(figure_4, options=options, dynamic=False)(torch.rand(_SIDE, _SIDE))
        found.append(accesses(kernels))
    assert found == [(4, 4), (3, 2)]


def moved(kernels: Sequence[InductorKernel]) -> int:
    return sum(kernel.bytes for kernel in kernels)


def inlined(a: Tensor) -> Tensor:
    """As figure 4, of values that Inductor by itself computes in every kernel that reads them."""
    b = a.sin()
    c = b.cos()
    return b * c + (b * c).cumsum(0)


def gate() -> nn.Module:
    """Convolution, swish and a normalization: backward, five kernels read the sigmoid on CPU."""

    def forward(net: Any, x: Tensor) -> Tensor:
        y = net.convolution(x)
        z = y * (net.scale * y).sigmoid()
        return (z / z.std((2, 3), keepdim=True)).mean((2, 3))

    return ModuleOf(forward, convolution=nn.Conv2d(8, 16, 3, padding=1), scale=nn.Parameter(torch.randn(1, 16, 1, 1)))


def normalized() -> nn.Module:
    """Convolution, batch normalization, relu: the gradient of the relu is read by two kernels only."""
    both = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return ModuleOf(lambda net, x: net.both(x).sort(-1).values, both=both)


def attention() -> nn.Module:
    """Written-out attention: all that is large goes to a matrix product."""

    def forward(net: Any, x: Tensor) -> Tensor:
        q, k, v = net.qkv(x).chunk(3, -1)
        return (q @ k.transpose(-2, -1)).softmax(-1) @ v

    return ModuleOf(forward, qkv=nn.Linear(32, 96))


@pytest.mark.parametrize(
    ("model", "shape", "least_gain"),
    [
        (lambda: inlined, (64, 64), 0.0),
        (gate, (4, 8, 32, 32), 0.2),
        (normalized, (4, 8, 32, 32), 0.05),
        (attention, (8, 64, 32), 0.0),
    ],
)
def test_inductors_count_never_rises_and_falls_where_values_are_written_for_several_kernels(
    model: Any, shape: tuple[int, ...], least_gain: float
) -> None:
    """`least_gain` is a share of the bytes of both passes; 0 where Inductor leaves nothing to gain."""
    torch.manual_seed(0)
    function, x = model(), torch.rand(*shape)
    before, after = scheduled(function, x), scheduled(function, x, **_PASS)
    assert len(after) <= len(before)
    assert moved(after) <= moved(before) * (1 - least_gain)
    assert (moved(after) < moved(before)) == (least_gain > 0)


def test_gradients_are_those_of_eager() -> None:
    torch.manual_seed(0)
    model, x = gate().double(), torch.rand(2, 8, 16, 16, dtype=torch.float64, requires_grad=True)
    parameters = (x, *model.parameters())
    expected = torch.autograd.grad(model(x).square().sum(), parameters)
    with counting_kernels() as kernels, fresh_compilation():
        result = torch.compile(model, options=dict(_PASS), dynamic=False)(x)
        found = torch.autograd.grad(result.square().sum(), parameters)
    assert any("sigmoid_1" in kernel.operators for kernel in kernels)  # something was duplicated
    torch.testing.assert_close(found, expected)


_UNARY = (aten.sin.default, aten.sigmoid.default, aten.neg.default, aten.abs.default)
_BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.maximum.default)


@st.composite
def passes(draw: st.DrawFn) -> tuple[fx.GraphModule, list[InductorKernel]]:
    """A graph of pointwise operators, views and the odd scan, cut into kernels of consecutive values."""
    n = draw(st.integers(4, 12))
    graph, nodes = fx.Graph(), list[fx.Node]()
    uses = draw(dags(n, max_arguments=2))
    for v in range(n):
        operands = [nodes[u] for u, w in uses if w == v]
        if not operands:
            nodes.append(graph.placeholder(f"x{v}"))
        elif len(operands) == 2:
            nodes.append(graph.call_function(draw(st.sampled_from(_BINARY)), tuple(operands)))
        elif kind := draw(st.integers(0, 5)):
            target = draw(st.sampled_from(_UNARY)) if kind > 1 else aten.t.default
            nodes.append(graph.call_function(target, tuple(operands)))
        else:
            nodes.append(graph.call_function(aten.cumsum.default, (operands[0], 0)))
    graph.output(tuple(node for node in nodes if not node.users))
    module = fx.GraphModule(nn.Module(), graph)
    run(module, note=True)
    return module, draw_kernels(draw, nodes)


def draw_kernels(draw: st.DrawFn, nodes: list[fx.Node]) -> list[InductorKernel]:
    """Any cut will do. What is not written is inlined by whoever needs it, or written by a call if it is a result."""
    cuts = sorted(draw(st.sets(st.integers(1, len(nodes) - 1), min_size=1, max_size=3)))
    kernels: list[InductorKernel] = []
    for low, high in pairwise([0, *cuts, len(nodes)]):
        made = [node for node in nodes[low:high] if node.op == "call_function" and node.target is not aten.t.default]
        scans = any(node.target is aten.cumsum.default for node in made)
        writes = tuple((node.name, 64) for node in made if draw(st.integers(0, 3)))
        kernels.append(InductorKernel(f"op{low}", False, not scans, tuple(node.name for node in made), 64, (), writes))
    return kernels


def run(module: fx.GraphModule, note: bool = False) -> tuple[Tensor, ...]:
    """The results for arguments that depend on the names of the inputs alone."""
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            value = torch.rand(4, 4, generator=torch.Generator().manual_seed(int(node.target[1:])))
        elif node.op == "output":
            return tuple(values[result] for result in node.args[0])
        else:
            value = node.target(*fx.node.map_arg(node.args, values.__getitem__))
        values[node] = value
        if note:
            node.meta["val"] = value
    raise AssertionError("a graph ends with its output")


@given(passes(), st.data())
def test_the_rewritten_graph_computes_the_same_values(
    drawn: tuple[fx.GraphModule, list[InductorKernel]], data: st.DataObject
) -> None:
    """Whatever is given to whom: what the search chose, and anything else that runs before."""
    module, kernels = drawn
    whole = pass_of(module.graph, kernels)
    expected = run(module)
    chosen = recompute_across(whole).again
    for again in (chosen, anything(whole, data)):
        graph = copied(module.graph)
        duplicate(graph, whole, {k: frozenset(values) for k, values in enumerate(again) if values})
        graph.lint()
        found = run(fx.GraphModule(module, graph))
        assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))


@given(passes(), st.data())
def test_each_kernel_computes_what_it_was_given_for_itself(
    drawn: tuple[fx.GraphModule, list[InductorKernel]], data: st.DataObject
) -> None:
    """Back from what a kernel writes to what others write, there is nothing but its own and its own copies."""
    module, kernels = drawn
    whole = pass_of(module.graph, kernels)
    graph = copied(module.graph)
    originals = list(graph.nodes)[:-1]
    again = {k: frozenset(values) for k, values in enumerate(anything(whole, data)) if values}
    duplicate(graph, whole, again)
    written = {originals[v] for v in whole.writer}
    copies_of: list[set[fx.Node]] = []
    for k, group in enumerate(whole.groups):
        given_again = {originals[v] for v in again.get(k, ())}
        stack, seen = [originals[v] for v in group.writes if originals[v].users], set[fx.Node]()
        while stack:
            operands = set(stack.pop().all_input_nodes)
            assert not operands & given_again
            stack += operands - written - seen
            seen |= operands - written
        copies_of.append(seen - set(originals))
    assert sum(map(len, copies_of)) == len(set().union(*copies_of))


def anything(whole: Pass, data: st.DataObject) -> list[set[int]]:
    """For each kernel, some values that are computed before it, with what of theirs nobody writes."""
    drawn: list[set[int]] = []
    for group in whole.groups:
        earlier = [v for v in sorted(whole.computed_values - group.values) if v < min(group.writes, default=0)]
        todo, values = [v for v in earlier if data.draw(st.booleans())], set[int]()
        while todo:
            values.add(v := todo.pop())
            bases = {whole.bases[u] for u in whole.graph.operands[v]} & whole.computed_values
            todo += bases - values - group.values - whole.writer.keys()
        drawn.append(values)
    return drawn


def traced(function: Callable[..., Any], *args: Tensor) -> fx.Graph:
    """A function's graph as Inductor's passes see it, with values for `pass_of`."""
    module = torch.fx.experimental.proxy_tensor.make_fx(function)(*args)
    return module.graph


def one_kernel_a_value(graph: fx.Graph) -> list[InductorKernel]:
    made = [node for node in graph.nodes if node.op == "call_function"]
    return [InductorKernel(node.name, False, True, (node.name,), 1, (), ((node.name, 1),)) for node in made]


def mutating(a: Tensor) -> tuple[Tensor]:
    b = a.exp()
    c = b.sort(0).values
    d = c + b + a
    a.add_(1)
    return (d,)


def drawing(a: Tensor) -> tuple[Tensor]:
    b = torch.rand_like(a)
    return (b.sort(0).values + b + a,)


def pure(a: Tensor) -> tuple[Tensor]:
    b = a.exp()
    return (b.sort(0).values + b + a,)


@pytest.mark.parametrize(("function", "gains"), [(mutating, False), (drawing, False), (pure, True)])
def test_neither_random_numbers_nor_what_reads_overwritten_memory_is_computed_again(
    function: Callable[[Tensor], tuple[Tensor]], gains: bool
) -> None:
    graph = traced(torch.func.functionalize(function), torch.rand(8, 8))
    whole = pass_of(graph, one_kernel_a_value(graph))
    again = {whole.graph.ops[v] for values in recompute_across(whole).again for v in values}
    assert ({"aten.exp.default", "aten.rand_like.default"} & again != set()) == gains


def watched(function: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> list[tuple[bool, int]]:
    """For each graph of a function outside of training, whether the pass looks at it, and how many nodes it adds."""
    graphs: list[tuple[bool, int]] = []

    class Watched(DuplicateAcrossKernels):
        def __call__(self, graph: fx.Graph) -> None:
            before = len(graph.nodes)
            super().__call__(graph)
            graphs.append((can_dry_run(graph), len(graph.nodes) - before))

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches={"post_grad_custom_post_pass": Watched()})

    dynamo: Any = import_module("torch._dynamo.config")
    with (
        visited(),
        torch.no_grad(),
        dynamo.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True),
    ):
        torch.compile(function, backend=backend, dynamic=dynamic)(*args)
    return graphs


def test_graphs_with_symbolic_sizes_are_left_as_they_are() -> None:
    def selected(x: Tensor) -> Tensor:
        return x[x > 0.5].sin()

    def counted_out(x: Tensor) -> Tensor:
        size = int(x.sum().item())
        torch._check(size >= 0)
        return torch.zeros(size, 8) + x[0]

    x = torch.rand(8, 8)
    assert watched(torch.sin, x) == [(True, 0)]
    assert watched(torch.sin, x, dynamic=True) == [(False, 0)]
    assert watched(selected, x) == [(False, 0)]
    assert watched(counted_out, x) == [(False, 0)]


def test_bodies_of_operators_are_left_as_they_are() -> None:
    """The condition of a loop is a graph whose result is no tuple."""

    def loop(x: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64)
        _, y = torch._higher_order_ops.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x.sin()), (start, x))
        return figure_4(y)

    assert [looked for looked, _ in watched(loop, torch.rand(8, 8))] == [False, True, False]


def test_collectives_write_over_buffers_and_the_rest_is_computed_again() -> None:
    """Inductor has them write to what an operator before them made: such a buffer has no origins of its own."""
    distributed: Any = import_module("torch.distributed")
    functional: Any = import_module("torch.distributed._functional_collectives")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()

    def summed(x: Tensor) -> Tensor:
        return figure_4(x) + functional.all_reduce(x.exp(), "sum", distributed.group.WORLD)

    distributed.init_process_group("fake", rank=0, world_size=2, store=store)
    try:
        ((looked, more),) = watched(summed, torch.rand(64, 64))
    finally:
        distributed.destroy_process_group()
    assert looked
    assert more > 0


def test_a_chain_may_be_longer_than_pythons_stack_is_deep() -> None:
    def long(a: Tensor) -> tuple[Tensor]:
        b = a
        for _ in range(1500):
            b = b.sin()
        return (b.cumsum(0) + b,)

    graph = traced(long, torch.rand(2, 2))
    sines = [node.name for node in graph.nodes if node.target is aten.sin.default]
    whole = pass_of(graph, one_kernel_a_value(graph))
    reader = whole.writer[whole.graph.index["add"]]
    duplicate(graph, whole, {reader: frozenset(whole.graph.index[name] for name in sines)})
    graph.lint()
    assert sum(node.target is aten.sin.default for node in graph.nodes) == 2 * len(sines)


def test_where_inductor_is_not_as_expected_the_graph_is_left_as_it_is_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: fx.Graph) -> list[InductorKernel]:
        raise AttributeError("no such thing in this torch")

    monkeypatch.setattr("remat.pytorch.inductor.duplicate.dry_run", broken)
    with pytest.warns(RuntimeWarning, match="leaves a graph as it is: AttributeError: no such thing"):
        assert watched(figure_4, torch.rand(8, 8)) == [(True, 0)]


def test_caches_know_the_pass_by_its_sources() -> None:
    """Inductor pickles its settings for a cache's key, and asks the pass who it is."""
    one, other = DuplicateAcrossKernels(), pickle.loads(pickle.dumps(DuplicateAcrossKernels()))
    assert one == other
    assert one.uuid() == other.uuid()
    assert one.uuid() is not None


def test_a_copy_of_what_reads_copies_reads_its_own() -> None:
    """Two readers of one copy would make Inductor write it to memory."""

    def steps(a: Tensor) -> tuple[Tensor, Tensor]:
        middle = a.exp().sin()
        return middle, middle.cos()

    graph = traced(steps, torch.rand(4, 4))
    whole = pass_of(graph, one_kernel_a_value(graph))
    exp, sin, cos = (whole.graph.index[name] for name in ("exp", "sin", "cos"))
    groups = {v: whole.writer[v] for v in (sin, cos)}
    duplicate(graph, whole, {groups[sin]: frozenset([exp]), groups[cos]: frozenset([exp, sin])})
    copies = [node for node in graph.nodes if node.target is aten.exp.default]
    assert [len(copy.users) for copy in copies] == [1, 1]
