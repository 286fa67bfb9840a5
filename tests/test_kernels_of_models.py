"""Predicted kernels of images and of rotary positions are Inductor's, and peaks those of the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from depth import deep, deep_except
from kernel_facts import assert_as_inductor, best_plan
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.models.save_everything import SaveEverything, plan_of
from remat.predict.kernels import Fuser
from remat.predict.kernels.recorded_calls import calls_of
from remat.predict.kernels.strides import eager_strides
from remat.problem.costmodel import CostModel
from remat.proof.validate import legal_choice
from remat.pytorch import capture_all, virtual_gpu
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans
from tests.modules import ModuleOf


class Normalized(nn.Module):
    """Convolutions with group norms, whose scales go through as_strided, and a short cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (8, 16, 16))
        self.short, self.last = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(nn.functional.silu(self.norms[0](x)))
        h = self.second(nn.functional.silu(self.norms[1](h)))
        return self.last(nn.functional.silu(self.norms[2](h + self.short(x)))).square().mean()


class Attending(nn.Module):
    """Images that become rows of a matrix, and images again."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.behind = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.norm, self.into, self.out = nn.GroupNorm(4, 16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ahead(x)
        rows = self.norm(h).flatten(2).transpose(1, 2)
        q, k, v = self.into(rows).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.behind(h + self.out(mixed).transpose(1, 2).unflatten(2, h.shape[2:])).square().mean()


class Joined(nn.Module):
    """Images side by side: a gradient is cut, and its parts go to convolutions and past them."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(n, 8, 3, padding=1) for n in (4, 8, 16, 8))
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (8, 16))

    def forward(self, x: Tensor) -> Tensor:
        a = self.convolutions[0](x)
        b = self.convolutions[1](nn.functional.silu(self.norms[0](a)))
        c = self.convolutions[2](nn.functional.silu(self.norms[1](torch.cat([a, b], 1))))
        return self.convolutions[3](c + a).square().mean()


PLANS = {"default": ByteTraffic(), "half": MemoryBudget(0.5), "least": MemoryBudget(0)}


@cache
def captured(make: type[nn.Module], channels: int) -> remat.Graph:
    return remat.capture(make(), torch.randn(2, channels, 8, 8))


@pytest.mark.parametrize(
    ("make", "channels", "plan"),
    [
        *((Normalized, 8, "least"), (Attending, 4, "half"), (Joined, 4, "default")),
        pytest.param(Normalized, 8, "default", marks=deep),
        pytest.param(Attending, 4, "least", marks=deep),
        pytest.param(Joined, 4, "half", marks=deep),
    ],
)
def test_kernels_and_peaks_of_images_are_inductors(
    make: type[nn.Module], channels: int, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = captured(make, channels)
    # What libraries take is left to the statement of `workspaces`, which both ask then: it differs by processor.
    monkeypatch.setattr("remat.pytorch.inductor.rehearsed.measured_bytes", lambda *_: None)
    assert_as_inductor(graph, remat.solve(PLANS[plan].pose(graph)).plan, peak=True)


def test_a_copy_of_what_is_given_is_returned_as_one() -> None:
    """Inductor removes clones, but none that would make what a pass returns a view of what it is given or returns."""
    x = torch.randn(4, 6, 8, requires_grad=True)
    for f in (lambda x: x.view(4, 48).clone(), lambda x: (y := x.sin(), y.view(4, 48).clone())):
        graph = remat.capture(f, x)
        plan = best_plan(graph)
        assert_as_inductor(graph, plan)
        assert remat.timeline(graph, plan).peak_bytes >= 4 * 48 * 4


def rotary(x: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    """The gradient is put together of slices; where angles are computed again, each slice reads the same positions."""
    y, angles = x * weight, positions.sin().repeat(1, 2)
    return y * angles + torch.cat([-y[..., 8:], y[..., :8]], -1) * (1 - angles)


def next_word() -> nn.Module:
    """The last logits of each text say nothing: the gradient of the others is put into a tensor of zeros."""

    def forward(net: Any, words: Tensor) -> Tensor:
        logits = net.last(net.words(words))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    return ModuleOf(forward, words=nn.Embedding(512, 8), last=nn.Linear(8, 512, bias=False))


# With one text, Inductor writes the gradient over the logits. With several, the flattened index has a division.
@pytest.mark.parametrize(
    ("texts", "device"),
    [(1, None), (3, "h200"), *(pytest.param(*of, marks=deep) for of in ((3, None), (1, "h200")))],
)
def test_a_gradient_that_is_put_into_zeros_is_written_over_what_it_is_of_as_by_inductor(
    texts: int, device: str | None
) -> None:
    ((graph, plans),) = torchs_plans(next_word(), torch.randint(512, (texts, 64)), budgets=[1.0], device=device)
    plan = plans[1.0]
    peak = remat.timeline(graph, plan).peak_bytes
    with virtual_gpu(device) if device else nullcontext():
        assert peak == rehearsed_peak(graph, plan)
    logits = texts * 64 * 512 * 4
    assert (peak < 2 * logits) == (texts == 1)


@pytest.mark.parametrize("start", [1, -99])
def test_rows_that_are_put_at_the_end_of_others_are_written_over_as_by_inductor(start: int) -> None:
    x, base, w = torch.randn(100, 10), torch.randn(100, 10), torch.randn(10, 10, requires_grad=True)
    graph = remat.capture(lambda x, base, w: torch.slice_scatter(base, (x @ w)[start:], 0, start) @ w, x, base, w)
    plan = best_plan(graph)
    assert remat.timeline(graph, plan).peak_bytes == rehearsed_peak(graph, plan)


def test_kernels_of_a_gradient_that_is_put_into_the_last_dimension_are_inductors() -> None:
    x = torch.randn(4, 6, 8, requires_grad=True)
    graph = remat.capture(lambda x: x.sin().select(2, 1).exp().sum(), x)
    assert any(op.startswith("aten.select_scatter") for op in graph.ops)
    assert_as_inductor(graph, best_plan(graph))


def put_first(*rows: Tensor) -> Tensor:
    """The first columns are read where they are written: four reads of four tensors, which two sums compute."""
    both = sum(torch.slice_scatter(torch.zeros_like(x), x[..., :16], 2, 0, 16) + x for x in rows)
    return both.sum(0).sin().sum() + both.sum((1, 2)).cos().sum()  # type: ignore


def running_sums(x: Tensor, y: Tensor, *_: Tensor) -> Tensor:
    """Kernels of their own on a GPU, which elementwise operators share, also along a dimension that is not the last."""
    return ((x * y).cumsum(2) + y).sin().cumsum(1).cos().mean() + (x > 0).cumsum(-1).float().mul(y).sum()


@pytest.mark.parametrize("f", [put_first, running_sums])
def test_kernels_for_a_gpu_are_inductors(f: Callable[..., Tensor]) -> None:
    (graph,) = capture_all(f, *(torch.randn(4, 6, 32, requires_grad=True) for _ in range(4)), device="h100")
    assert_as_inductor(graph, plan_of(graph, MemoryBudget(0.0)))


def attending(x: Tensor) -> Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x).square().sum()


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_results_of_calls_are_aligned_on_a_gpu(device: str) -> None:
    """Only there are inputs aligned. Kernels that read aligned memory of one size are kept apart, to reuse it."""
    (graph,) = capture_all(attending, torch.randn(2, 4, 64, 64, requires_grad=True), device=device)
    plan = plan_of(graph, SaveEverything())
    theirs: list[bool] = []

    def visit(lowering: Any, *_: object) -> None:
        theirs.append(any(name.startswith("buf") for name in lowering.unaligned_buffers))

    with virtual_gpu(device) if device != "cpu" else nullcontext():
        Scheduled(graph).visit(plan, visit)
    passes = Fuser(graph).passes(legal_choice(graph, plan).saved)
    assert [any(loop.unaligned for loop in one.loops) for one in passes] == theirs


def matrices(x: Tensor, w: Tensor) -> Tensor:
    """The gradient of a sum is one number, which a product reads in place of a matrix."""
    return (x.sin() @ w).sum()


def every_other_column(x: Tensor, w: Tensor) -> Tensor:
    return (x[..., ::2] @ w[..., ::2, ::2]).sin().mean()


@pytest.mark.parametrize("device", ["cpu", "h100"])
@pytest.mark.parametrize("batch", deep_except([(3,)], [(), (3,)]))
@pytest.mark.parametrize("f", [matrices, every_other_column])
def test_products_read_copies_of_matrices_without_a_stride_of_one(
    f: Callable[[Tensor, Tensor], Tensor], batch: tuple[int, ...], device: str
) -> None:
    graph = remat.capture(f, *(torch.zeros(*batch, n, 16, requires_grad=True) for n in (64, 16)))
    assert_as_inductor(graph, best_plan(graph), device=device, peak=device == "cpu")


def test_products_read_diagonals_where_they_lie() -> None:
    """As in Longformer: rows of 24 elements lie in a padded matrix whose rows have 25."""

    def diagonals(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        padded = nn.functional.pad(x @ w, (0, 9)).flatten(1)[:, :192].unflatten(1, (8, 24))[..., :23]
        return (padded @ y).square().mean()

    x, w, y = torch.randn(4, 8, 16), torch.randn(16, 16, requires_grad=True), torch.randn(4, 23, 16)
    graph = remat.capture(diagonals, x, w, y)
    assert_as_inductor(graph, best_plan(graph), peak=True)


def test_gradients_lie_in_memory_as_what_is_returned() -> None:
    """Heads come before rows in the shape, but not in memory: a product reads their gradient without a copy."""
    x, w = torch.randn(32, 32), torch.randn(32, 32, requires_grad=True)
    graph = remat.capture(lambda x, w: (x @ w).view(2, 16, 4, 8).transpose(1, 2), x, w)
    assert_as_inductor(graph, best_plan(graph), peak=True)


def test_a_view_of_positions_that_is_returned_is_read_from_memory() -> None:
    """Other expressions that read nothing are computed again by each reader."""

    def rows(x: Tensor, w: Tensor, columns: Tensor) -> Tensor:
        return ((x @ w)[torch.arange(4)[:, None], columns].square() @ w[:3]).sin().mean()

    x, w = (torch.randn(n, 16, requires_grad=True) for n in (4, 16))
    graph = remat.capture(rows, x, w, torch.randint(16, (4, 3)))
    plan = plan_of(graph, SaveEverything())
    assert "unsqueeze" in plan.saved
    assert_as_inductor(graph, plan)


@pytest.mark.parametrize("device", ["cpu", "h100"])
@pytest.mark.parametrize("mode", ["conservative", "aggressive"])
def test_kernels_of_rotary_positions_are_inductors(mode: str, device: str) -> None:
    inputs = torch.zeros(2, 4, 32, 16), torch.zeros(16), torch.zeros(32, 8)
    graph = remat.capture(rotary, *(tensor.requires_grad_(i < 2) for i, tensor in enumerate(inputs)))
    plan = best_plan(graph, mode)
    assert ("repeat" in plan.saved) == (mode == "conservative")
    assert_as_inductor(graph, plan, device=device)


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 1, 4, 8, 8)])
def test_computed_images_of_one_channel_lie_side_by_side_as_channels_last_ones(shape: tuple[int, ...]) -> None:
    """So do values that are stacked along their second dimension. What is saved is a copy in eager's order."""

    def joined(x: Tensor) -> Tensor:
        y = x.sin()
        return torch.cat([y, 1 - y], 1).log().square().sum()

    graph = remat.capture(joined, torch.rand(shape, requires_grad=True))
    plan = plan_of(graph, SaveEverything())
    assert "cat" in plan.saved
    assert_as_inductor(graph, plan, peak=True)


def stem() -> nn.Module:
    """The first layers of many networks of images: a padded maximum of what no batch norm stores."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return ModuleOf(lambda net, x: net.first(x).sin().square().mean(), first=first)


@pytest.mark.parametrize("plan", ["everything", "least"])
def test_a_padded_maximum_shares_a_kernel_with_its_places_as_in_inductor(plan: str) -> None:
    """Both are walked in the order in which the image lies in memory, also at windows that begin outside of it."""
    graph = remat.capture(stem(), torch.randn(2, 3, 16, 16))
    chosen = plan_of(graph, SaveEverything()) if plan == "everything" else remat.solve(MemoryBudget(0).pose(graph)).plan
    assert_as_inductor(graph, chosen)


def gated() -> nn.Module:
    """Convolutions of sequences, gated by a half of their channels."""

    def forward(net: Any, x: Tensor) -> Tensor:
        for convolution in net.convolutions:
            x = x + nn.functional.glu(convolution(x), 1)
        return x.exp().mean()

    return ModuleOf(forward, convolutions=nn.ModuleList(nn.Conv1d(8, 16, 3, padding=1) for _ in range(2)))


@pytest.mark.parametrize("device", ["cpu", "h100"])
@pytest.mark.parametrize("plan", deep_except(["half"], PLANS))
def test_kernels_of_gates_are_inductors(plan: str, device: str) -> None:
    graph = remat.capture(gated(), torch.randn(4, 8, 64))
    chosen = remat.solve(PLANS[plan].pose(graph)).plan
    assert_as_inductor(graph, chosen, device=device)


class Rows(nn.Module):
    """Attention whose queries lie in memory in this order of batch, heads, rows and features."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.into, self.out, self.order = nn.Linear(32, 32), nn.Linear(32, 32), order

    def forward(self, x: Tensor) -> Tensor:
        heads = self.into(x).unflatten(-1, (4, 8)).transpose(1, 2)  # of each batch
        back = [self.order.index(i) for i in range(4)]
        q = heads.permute(self.order).contiguous().permute(back)
        y = nn.functional.scaled_dot_product_attention(q, heads, heads.sin())
        return self.out(y.permute(2, 0, 1, 3).flatten(2)).float().square().sum()


@pytest.mark.parametrize("device", [None, "h100"])
@pytest.mark.parametrize("order", deep_except([(2, 0, 1, 3)], [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)]))
def test_results_of_attention_lie_in_memory_as_queries_do(order: tuple[int, ...], device: str | None) -> None:
    """As in `nn.TransformerEncoder`, where positions come first: then no copy follows."""
    x = torch.randn(2, 16, 32, dtype=torch.bfloat16 if device else torch.float32)
    ((graph, plans),) = torchs_plans(Rows(order).to(x.dtype), x, budgets=[1.0, 0.0], device=device)
    for plan in plans.values():
        assert_as_inductor(graph, plan, peak=True)


def test_sums_of_cudnns_attention_lie_in_rows_whatever_the_order_of_queries() -> None:
    """They have four dimensions, as the result has, which lies in memory as the queries do."""

    def attending(q: Tensor) -> Tensor:
        result, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*[q.transpose(1, 2)] * 3, None, True)
        return result.sum()

    graph = remat.capture(attending, torch.randn(2, 8, 4, 16, dtype=torch.bfloat16, requires_grad=True), device="h100")
    calls = calls_of(graph)
    strides = dict(zip(graph.names, eager_strides(calls), strict=True))
    sums = next(name for name, call in zip(graph.names, calls, strict=True) if call.shape == (2, 4, 8, 1))
    assert strides["getitem"] == (512, 16, 64, 1)
    assert strides[sums] == (32, 8, 1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_parts_of_a_sum_over_rows_are_in_single_precision(dtype: torch.dtype) -> None:
    """A GPU sums the rows of a weight's gradient in parts, and then adds the parts."""

    def scaled(x: Tensor, weight: Tensor) -> Tensor:
        return (x * weight).float().square().sum()

    rows, weight = torch.randn(512, 256, dtype=dtype), torch.randn(256, dtype=dtype, requires_grad=True)
    graph = remat.capture(scaled, rows, weight, device="h100")
    assert_as_inductor(graph, plan_of(graph, SaveEverything()))


def squares(x: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.layer_norm(x @ weight, (256,)).sub(x).square().mean()


def divergence(x: Tensor, weight: Tensor) -> Tensor:
    """Two normalizations of rows come before it."""
    return nn.functional.kl_div((x @ weight).log_softmax(-1), x.softmax(-1), reduction="batchmean")


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the scale is a sum of rows that were normalized; where they are saved, of a product's result."""
    rows = x @ weight / (x @ weight).norm(dim=-1, keepdim=True) * weight[0, 0]
    return (rows @ weight).square().sum()


@pytest.mark.parametrize("loss", [squares, divergence, scaled])
def test_a_sum_of_all_that_follows_sums_of_rows_has_the_same_rows(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A GPU would sum that many elements in other parts, but then the two could not share a kernel."""
    rows, weight = torch.randn(4, 128, 256), torch.randn(256, 256, requires_grad=True)
    graph = remat.capture(loss, rows, weight, device="h100")
    for plan in (plan_of(graph, SaveEverything()), best_plan(graph, "aggressive")):
        assert_as_inductor(graph, plan, peak=True)


def test_an_image_whose_elements_lie_in_the_same_place_is_not_laid_out_channels_last() -> None:
    """The divisor of a normalization is one number for a whole row. Where it is saved, it is not copied."""
    ahead, behind = nn.Conv2d(3, 96, 3), nn.Conv2d(96, 96, 3)

    def normalized(x: Tensor) -> Tensor:
        return behind(nn.functional.normalize(ahead(x), dim=3)).square().mean()

    graph = remat.capture(normalized, torch.randn(2, 3, 12, 12), device="h100")
    assert_as_inductor(graph, plan_of(graph, SaveEverything()), peak=True)


def test_a_sum_of_all_pixels_runs_along_memory() -> None:
    """Its parts are then rows of channels-last images, which are not split again."""
    graph = remat.capture(
        ModuleOf(lambda net, x: net.first(x).square().mean(), first=nn.Conv2d(3, 96, 3)),
        torch.randn(2, 3, 12, 12),
        device="h100",
    )
    assert_as_inductor(graph, plan_of(graph, SaveEverything()))


@pytest.mark.parametrize("reshaped_copy", [False, True])
def test_what_is_reshaped_before_a_convolution_is_stored_as_by_inductor(reshaped_copy: bool) -> None:
    """A maximum over windows is laid out as an image. A permuted image is copied twice: into rows, and as an image."""
    ahead, behind = nn.Conv2d(3, 96, 3), nn.Conv2d(96, 96, 3)

    def pooled(x: Tensor) -> Tensor:
        h = ahead(x)
        if reshaped_copy:
            h = h.unflatten(1, (2, 48)).permute(0, 1, 2, 4, 3).reshape(h.shape)
        else:
            h = nn.functional.max_pool2d(h, 3, 2, 1).flatten(2).unflatten(2, (9, 9))
            h = h - h.mean(1, keepdim=True)
        return behind(h).square().mean()

    graph = remat.capture(pooled, torch.randn(2, 3, 20, 20), device="h100")
    plan = remat.solve(MemoryBudget(0.0).pose(graph)).plan
    assert plan is not None
    assert_as_inductor(graph, plan, peak=True)


class Turned(nn.Module):
    """Four heads of queries and two of keys and values, in half precision; the angles are in single precision."""

    def __init__(self, *, normalized: bool) -> None:
        super().__init__()
        sizes = (64, 32, 32, 64)
        self.linear = nn.ModuleList(nn.Linear(64, n, bias=False, dtype=torch.bfloat16) for n in sizes)
        norms = [nn.RMSNorm(n, dtype=torch.bfloat16) if normalized else nn.Identity() for n in sizes[:2]]
        self.norms, self.frequencies = nn.ModuleList(norms), nn.Parameter(torch.rand(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None, :, None].float()
        angles = (positions * self.frequencies).repeat(1, 1, 2)
        cos, sin = angles.cos() * 1.0, angles.sin() * 1.0
        if isinstance(self.norms[0], nn.Identity):
            cos, sin = cos.bfloat16(), sin.bfloat16()

        def turned(y: Tensor) -> Tensor:
            other = torch.cat([-y[..., 8:], y[..., :8]], -1)
            return (y * cos[:, None] + other * sin[:, None]).bfloat16()

        q, k, v = (linear(x) for linear in self.linear[:3])
        q, k, v = (y.unflatten(-1, (-1, 16)).transpose(1, 2) for y in (self.norms[0](q), self.norms[1](k), v))
        k, v = (y[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for y in (turned(k), v))
        mixed = nn.functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        return self.linear[3](mixed.transpose(1, 2).flatten(2)).float().square().mean()


@pytest.mark.parametrize(
    ("normalized", "cost_model"),
    [
        # The gradient of a key computes the same sine for two slices, which counts as one operation.
        (False, ByteTraffic(mode="aggressive")),
        # A query that two calls read is laid out as the loop that writes it reads.
        (False, MemoryBudget(0.0)),
        # A query is laid out otherwise than in eager mode, and so is the result of attention.
        (True, MemoryBudget(0.0)),
    ],
    ids=str,
)
def test_queries_that_are_turned_by_position(normalized: bool, cost_model: CostModel) -> None:
    x = torch.randn(2, 256, 64, dtype=torch.bfloat16)
    graph = remat.capture(Turned(normalized=normalized), x, device="h100")
    assert_as_inductor(graph, remat.solve(cost_model.pose(graph)).plan, peak=True)


def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, z = x[:-1], x[1:]
    return y * 3 + z * 2, y * 5, (y.t() + 3.0).contiguous()


def test_groups_are_compared_by_the_last_access_of_what_they_read_first() -> None:
    """A group reads one part of a buffer, another part, and the first one again: the second counts as the last."""
    graph = remat.capture(halves, torch.randn(257, 128, requires_grad=True), device="h100")
    plan = remat.solve(ByteTraffic().pose(graph)).plan
    assert plan is not None
    assert_as_inductor(graph, plan)
