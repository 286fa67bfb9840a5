"""Kernels that users write: Triton kernels, attention with a function of scores, and calls with strange arguments.

No GPU is needed: models are captured for one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from depth import deep_except
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import remat
from costmodels import MemoryBudget
from experiments.accuracy.live_kernels import visited
from experiments.models.save_everything import SaveEverything, SaveLeast, plan_of
from remat.errors import CaptureError
from remat.plugin import Region
from remat.predict.kernels.recorded_calls import calls_of
from remat.pytorch.inductor.rehearsed import WrittenPass, peak_of_passes
from remat.pytorch.read.call_text import call_of
from remat.pytorch.read.other_device import arguments_on
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam.inductor_lowering import compile_fx
from remat.pytorch.seam.torch_names import tree_leaves

WRAPPER = "triton_kernel_wrapper_functional"
BLOCK = 1024


@triton.jit
def exp_and_square(x, bias, y, z, n, block: tl.constexpr, biased: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < n)
    if biased:
        value += tl.load(bias + at, mask=at < n)
    tl.store(y + at, tl.exp(value), mask=at < n)
    tl.store(z + at, value * value, mask=at < n)


@triton.jit
def sine(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def dropped(x, y, seed, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(tl.rand(tl.load(seed), at) > 0.5, 2 * value, 0.0), mask=at < n)


def grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


class ExpAndSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y, z = torch.empty_like(x), torch.empty_like(x)
        with torch.cuda.device(x.device):  # as libraries of kernels do, so that the kernel runs where its arguments are
            exp_and_square[grid(x)](x, None, y, z, x.numel(), block=BLOCK, biased=False)
        ctx.save_for_backward(x, y)
        return y, z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return gradients[0] * y + 2 * gradients[1] * x


@triton_op("kernels_of_users::sine", mutates_args={})
def sine_by_triton(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    wrap_triton(sine)[grid(x)](x, y, x.numel(), block=BLOCK)
    return y


def keeps_argument(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


# Its backward pass runs the kernel again, on another argument.
sine_by_triton.register_autograd(
    lambda ctx, gradient: gradient * sine_by_triton(ctx.saved_tensors[0] + torch.pi / 2), setup_context=keeps_argument
)


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        seed = torch.randint(0, 2**31, (1,), device=x.device)
        ctx.save_for_backward(seed)
        return Dropped.run(x, seed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return Dropped.run(gradients[0], ctx.saved_tensors[0])

    @staticmethod
    def run(x: Tensor, seed: Tensor) -> Tensor:
        y = torch.empty_like(x)
        dropped[grid(x)](x, y, seed, x.numel(), block=BLOCK)
        return y


class Layers(nn.Module):
    """A kernel after each linear layer."""

    def __init__(self, kernel: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.kernel, self.layers = kernel, nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.kernel(layer(x)).sin()
        return x.mean()


class Attention(nn.Module):
    """Attention of which a function changes the scores by a learned number; it may have a mask of blocks, too."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked, self.qkv, self.bias = masked, nn.Linear(32, 96), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 128, 3, 2, 16).permute(2, 0, 3, 1, 4)
        bias = self.bias

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias[h]

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return i >= j

        mask = create_block_mask(seen, None, None, 128, 128, device=str(x.device)) if self.masked else None
        return flex_attention(q, k, v, score_mod=score, block_mask=mask).sin().square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "autograd function": (lambda: Layers(lambda x: sum(ExpAndSquare.apply(x))), (128, 64), WRAPPER),
    "triton_op": (lambda: Layers(sine_by_triton), (128, 64), WRAPPER),
    "a function of scores": (lambda: Attention(masked=False), (2, 128, 32), "flex_attention"),
    "a mask of blocks": (lambda: Attention(masked=True), (2, 128, 32), "flex_attention"),
}
"""Makes a model; the shape of its input; and the operator that it is about."""

each_case = pytest.mark.parametrize("case", CASES)


def captured(case: str) -> remat.Graph:
    make, shape, _ = CASES[case]
    return remat.capture(make(), torch.zeros(shape), device="h100")


graph_of = cache(captured)


def calls_in(graph: remat.Graph, op: str, region: Region) -> set[str]:
    return {
        name
        for name, of, where in zip(graph.names, graph.ops, graph.region, strict=True)
        if (of, where) == (op, region)
    }


@each_case
def test_every_recorded_call_refers_to_each_of_its_producers(case: str) -> None:
    graph = graph_of(case)
    assert CASES[case][2] in graph.ops
    for v, call in enumerate(calls_of(graph)):
        producers = [graph.names[u] for u in graph.operands[v]]
        assert {graph.names[u] for u in call.refs} == {*producers}
        if graph.arguments[v] and "unknown" not in graph.arguments[v]:
            read = tree_leaves(call_of(graph.arguments[v], producers, torch.device("cuda")))
            assert {*producers} <= {leaf for leaf in read if isinstance(leaf, str)}


@each_case
def test_a_file_holds_the_same_graph(case: str, tmp_path: Path) -> None:
    graph = graph_of(case)
    graph.save(tmp_path / "graph.json")
    assert remat.Graph.load(tmp_path / "graph.json") == graph


def test_a_second_capture_is_the_same_graph() -> None:
    """Torch numbers the calls of Triton kernels in a process; a graph does not depend on such numbers."""
    assert captured("triton_op").arguments == captured("triton_op").arguments


BUDGETS = [MemoryBudget(0.0), MemoryBudget(0.3), MemoryBudget(1.0), MemoryBudget(0.5, of="peak")]


@pytest.mark.parametrize("budget", BUDGETS, ids=["0.0", "0.3", "1.0", "half of the peak"])
@each_case
def test_plans_within_budgets(case: str, budget: MemoryBudget) -> None:
    graph = graph_of(case)
    plan = plan_of(graph, budget)
    remat.check_plan((SaveLeast() if budget.of == "peak" else budget).pose(graph), plan)
    peaks = [remat.timeline(graph, one).peak_bytes for one in (plan, plan_of(graph, MemoryBudget(1.0)))]
    if budget.of == "peak":
        assert peaks[0] <= peaks[1]
    kernels = calls_in(graph, CASES[case][2], Region.FORWARD)
    assert kernels.isdisjoint(plan.saved)  # each has several results, and those can be saved
    if budget.budget == 0.0:
        assert kernels
        assert kernels <= {*plan.recomputed}
    launched = remat.predict_traffic(graph, plan).kernels
    again = {graph.names[v] for kernel in launched if kernel.backward for v in kernel.values}
    assert kernels & again == kernels & {*plan.recomputed}


def test_a_tensor_that_a_triton_kernel_writes_can_be_saved() -> None:
    graph = graph_of("autograd function")
    saved = {graph.index[name] for name in plan_of(graph, SaveEverything()).saved}
    elements = [v for v, of in enumerate(graph.operands) if any(graph.ops[u] == WRAPPER for u in of)]
    assert len([v for v in elements if v in saved and '"y"' in graph.arguments[v]]) == 2  # one of each layer


@triton.jit
def sine_in_place(y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.sin(tl.load(y + at, mask=at < n)), mask=at < n)


def sine_into(x: Tensor, y: Tensor) -> Tensor:
    sine[grid(x)](x, y, x.numel(), block=BLOCK)
    return y


def in_place(y: Tensor) -> Tensor:
    sine_in_place[grid(y)](y, y.numel(), block=BLOCK)
    return y


def into_halves(x: Tensor) -> Tensor:
    y = x.new_empty(2, *x.shape)
    for half in y:
        sine_into(x, half)
    return y.sum(0)


def into_the_last_eighths(x: Tensor) -> Tensor:
    y = x.new_empty(8, *x.shape)
    return sine_into(x, y[7]) + sine_into(x, y[6])


def into_columns(x: Tensor) -> Tensor:
    y = x.new_empty(x.shape[0], 3, x.shape[1])
    exp_and_square[grid(x)](x, None, y[:, 1], y[:, 2], x.numel(), block=BLOCK, biased=False)
    return y[:, 1] + y[:, 2]


def into_scratch_memory(x: Tensor) -> Tensor:
    y, scratch = torch.empty_like(x), x.new_empty(8 * x.numel())
    exp_and_square[grid(x)](x, None, y, scratch, x.numel(), block=BLOCK, biased=False)
    return y


def on_a_copy(x: Tensor) -> Tensor:
    return in_place(x.clone())


def on_what_is_read_before(x: Tensor) -> Tensor:
    y = x * 2
    mean = y.mean()
    return in_place(y) * mean


def twice(x: Tensor) -> Tensor:
    y = sine_into(x, torch.empty_like(x))
    z = y.exp()
    return z + sine_into(z, y)


def again_and_again(x: Tensor) -> Tensor:
    return in_place(in_place(sine_into(x, torch.empty_like(x))))


def through_a_view(x: Tensor) -> Tensor:
    return sine_into(x, x.new_empty(x.numel()).view(x.shape)).view(x.shape)


def transposed(x: Tensor) -> Tensor:
    return sine_into(x, x.new_empty(x.shape[::-1]).t()) * 2


def differentiated_as_a_product(run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return run(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * ctx.saved_tensors[0]

    return Product.apply


def written_peak(model: nn.Module, x: Tensor, plan: remat.Plan) -> int:
    """The peak of the code that Inductor writes for an H100 under a plan, from the model itself."""
    passes: list[WrittenPass] = []

    def visit(lowering: Any) -> None:
        inputs = {node.name: node.name for node in lowering.module.graph.find_nodes(op="placeholder")}
        results = [str(i) for i in range(len(lowering.graph_outputs))]
        passes.append(WrittenPass.of(lowering, inputs, results))
        if len(passes) == 2:
            raise InterruptedError  # fake tensors cannot run the kernels

    settings = {"custom_partitioner_fn": Partitioner.of(plan=plan)}
    compiled = torch.compile(model, backend=partial(compile_fx, options=settings), dynamic=False)
    with arguments_on("h100", model, (x,), {}) as (args, _), visited(visit):
        with pytest.raises(Exception, match="Interrupted"):
            compiled(*args)
        first, second = passes
        saved = [name for name in second.inputs if not name.startswith("tangents")]
        (fake, *_) = first.inputs.values()
        return peak_of_passes([first._replace(outputs=["loss", *saved]), second], fake.fake_mode, returned=1)


WRITERS = [
    *(into_halves, into_the_last_eighths, into_columns, into_scratch_memory, on_a_copy, on_what_is_read_before),
    *(twice, again_and_again, through_a_view, transposed),
]


@pytest.mark.parametrize("budget", deep_except([0.0], [0.0, 1.0]))
@pytest.mark.parametrize(
    "kernel", deep_except([into_halves, on_what_is_read_before, twice], [sine_by_triton, *WRITERS])
)
def test_the_predicted_peak_is_that_of_the_written_code(kernel: Callable[[Tensor], Tensor], budget: float) -> None:
    """What a kernel writes is new memory, its argument's, or a copy of the argument's memory: as Inductor decides."""
    run = differentiated_as_a_product(kernel) if kernel in WRITERS else kernel
    model, x = Layers(run), torch.zeros(128, 64)
    graph = remat.capture(model, x, device="h100")
    plan = plan_of(graph, MemoryBudget(budget))
    assert remat.timeline(graph, plan).peak_bytes == written_peak(model, x, plan)


def test_a_seed_of_a_kernel_is_drawn_once() -> None:
    graph = remat.capture(Layers(Dropped.apply), torch.zeros(128, 64), device="h100")
    plan = plan_of(graph, MemoryBudget(0.0))
    assert calls_in(graph, WRAPPER, Region.FORWARD) <= {*plan.recomputed}
    drawn = {name for name, op in zip(graph.names, graph.ops, strict=True) if "randint" in op or "random" in op}
    assert drawn
    assert drawn.isdisjoint(plan.recomputed)


def test_the_error_of_a_capture_says_what_torch_found() -> None:
    def loss(x: Tensor) -> Tensor:
        y = x.exp()  # its gradient needs the result
        return y.mul_(2).sum()

    with pytest.raises(CaptureError, match="modified by an inplace operation"):
        remat.capture(loss, torch.zeros(4, requires_grad=True), device="h100")


@torch.library.custom_op("kernels_of_users::sines_into", mutates_args={"ys"})
def sines_into(xs: list[Tensor], ys: list[Tensor], scale: float | None) -> None:
    for x, y in zip(xs, ys, strict=True):
        y.copy_(x.sin() * (scale or 1))


class SinesInto(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made = [torch.empty_like(x), torch.empty_like(y)]
        sines_into([x, y], made, None)
        ctx.save_for_backward(x, y)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient * x.cos() for gradient, x in zip(gradients, ctx.saved_tensors, strict=True))


def test_an_operator_that_writes_into_lists_of_tensors() -> None:
    torch.manual_seed(0)
    model, x = Layers(lambda x: sum(SinesInto.apply(x, x.exp()))), torch.randn(8, 64)
    model(x).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    remat.compile(model, cost_model=MemoryBudget(0.0), codegen=False)(x).backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], gradients)
