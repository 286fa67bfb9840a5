"""Copies in float8 and int8 beside values of a model: their bytes, their products, and plans that save a copy alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from depth import deep
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import remat
from costmodels import ByteTraffic, MemoryBudget, RecomputeTime, StepTime
from experiments.models.setups import Float8Product
from remat import Graph
from tests.modules import ModuleOf

WIDTH = 64


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().clamp(min=1e-12) / 127
    return (x / scale).round().to(torch.int8), scale


class Int8Product(torch.autograd.Function):
    """Multiplies in int8 in the forward pass, and saves the copies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (x8, x_scale), (w8, w_scale) = to_int8(x), to_int8(weight)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return (torch._int_mm(x8, w8.t()) * (x_scale * w_scale)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        return gradient @ (w8 * w_scale).to(gradient.dtype), gradient.t() @ (x8 * x_scale).to(gradient.dtype)


def linear(product: Any, width: int, out: int) -> nn.Module:
    weight = nn.Parameter((torch.randn(out, width) / width**0.5).bfloat16())
    return ModuleOf(lambda net, x: product.apply(x, net.weight), weight=weight)


def block(product: Any) -> nn.Module:
    parts = {"norm": nn.RMSNorm(WIDTH, dtype=torch.bfloat16)}
    parts |= {"up": linear(product, WIDTH, 4 * WIDTH), "down": linear(product, 4 * WIDTH, WIDTH)}
    return ModuleOf(lambda net, x: x + net.down(nn.functional.gelu(net.up(net.norm(x)))), **parts)


def model(product: Any, blocks: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(block(product) for _ in range(blocks)))


def batch() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(128, WIDTH, dtype=torch.bfloat16)


def gradients(model: nn.Module, step: Any) -> list[Tensor]:
    model.zero_grad()
    step(batch()).float().square().mean().backward()
    return [parameter.grad.float().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("product", "cost_model"),
    [(Float8Product, MemoryBudget(0.5)), pytest.param(Int8Product, StepTime(), marks=deep)],
)
def test_gradients_are_as_near_to_eager_as_those_of_torchs_plan(product: Any, cost_model: remat.CostModel) -> None:
    """None is equal to eager: fused kernels do not round to bfloat16, and quantizing enlarges the difference."""
    layers = model(product, blocks=1)
    exact = gradients(layers, layers)

    def error(step: Any) -> float:
        pairs = zip(gradients(layers, step), exact, strict=True)
        return max(float((one - other).norm() / other.norm()) for one, other in pairs)

    torch_error = error(torch.compile(layers))  # pyright: ignore[reportUnknownMemberType]
    torch.compiler.reset()
    assert torch_error < 0.15
    assert error(remat.compile(layers, cost_model=cost_model)) < 1.5 * torch_error


@pytest.mark.parametrize("product", [Float8Product, Int8Product])
def test_a_copy_counts_a_byte_for_each_element(product: Any) -> None:
    graph = remat.capture(model(product), batch())
    name = {Float8Product: "float8_e4m3fn", Int8Product: "int8"}[product]
    copies = [i for i, dtype in enumerate(graph.dtypes) if dtype == name and graph.in_forward[i]]
    assert {int(graph.bytes[i]) for i in copies} == {128 * WIDTH, 128 * 4 * WIDTH, 4 * WIDTH * WIDTH}


@pytest.mark.parametrize(("product", "op"), [(Float8Product, "aten._scaled_mm"), (Int8Product, "aten._int_mm")])
def test_products_of_copies_are_arithmetic_at_the_rate_of_their_type(product: Any, op: str) -> None:
    """A product of integers was priced like an element-wise operator, and the aggressive mode recomputed it."""
    width = 4096

    def cost(call: Any, op: str, device: str = "h100") -> int:
        with FakeTensorMode():
            args = [torch.empty(width, width, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]
            graph = remat.capture(lambda x, w: call(x, w).sin(), *args, device="h100")
        (found,) = [i for i in range(len(graph)) if op in graph.ops[i] and graph.in_forward[i]]
        assert graph.flops[found] == 2 * width**3
        assert graph.compute_bound[found]
        problem = RecomputeTime(f"roofline:device={device}").pose(graph)
        aggressive = ByteTraffic(mode="aggressive").pose(graph)
        at = problem.index[graph.names[found]]
        assert aggressive.cannot_recompute.mask[at]
        return int(problem.recompute_cost[at])

    halves = cost(torch.matmul, "aten.mm.")
    assert cost(product.apply, op) == pytest.approx(halves / 2, rel=0.1)
    if product is Float8Product:  # an A100 has no float8: the rate is that of the result, not that of the scales
        assert cost(product.apply, op, "a100") == pytest.approx(cost(torch.matmul, "aten.mm.", "a100"), rel=0.1)


class RoundTrip(torch.autograd.Function):
    """Goes on with what an int8 copy says; the gradient passes straight through, as in quantization-aware training."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        copy, scale = to_int8(x)
        return copy * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def saved_dtypes(graph: Graph, plan: remat.Plan) -> set[str]:
    """Returns the types of what a plan saves, without inputs, their views, and single numbers."""
    at = [graph.index[name] for name in plan.saved]
    return {graph.dtypes[i] for i in at if not graph.input[graph.base[i]] and graph.bytes[i] > 4}


def test_a_plan_saves_the_copy_alone_where_the_model_goes_on_with_it() -> None:
    def layer(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
        return torch.tanh(RoundTrip.apply(x @ weight)) @ other

    weights = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)]
    graph = remat.capture(layer, batch().float().requires_grad_(), *weights)
    for cost_model in ByteTraffic(mode="aggressive"), MemoryBudget(0.5), StepTime():
        plan = remat.choose(graph, cost_model).plan
        assert plan is not None
        assert saved_dtypes(graph, plan) == {"int8"}
