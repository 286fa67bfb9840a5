"""Rows of tensors that TorchInductor pads on GPUs, and what follows for kernels and peaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.models.save_everything import SaveEverything, plan_of
from remat.predict.kernels import kernels
from remat.predict.kernels.padding import padded_strides
from remat.predict.kernels.strides import channels_last
from remat.problem.costmodel import CostModel
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.inductor.scheduled import Scheduled
from tests.depth import deep_except
from tests.modules import ModuleOf


class Block(nn.Module):
    """Attention that is written out, then a perceptron, each after a normalization."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(2, (self.heads, -1)).transpose(1, 2) for y in self.mixed(self.norms[0](x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


def class_token(classes: int = 10, width: int = 128) -> nn.Module:
    """Classifies 64 patches by one more token, so that rows of attention have 65 numbers."""

    def forward(net: Any, patches: Tensor, labels: Tensor) -> Tensor:
        x = net.blocks(torch.cat([net.token.expand(len(patches), -1, -1), patches], 1))
        return nn.functional.cross_entropy(net.head(x[:, 0]), labels)

    token, blocks = nn.Parameter(torch.randn(1, 1, width)), nn.Sequential(*(Block(width, 4),) * 2)
    return ModuleOf(forward, token=token, blocks=blocks, head=nn.Linear(width, classes))


@pytest.mark.parametrize(
    "cost_model",
    deep_except([MemoryBudget(0.0)], [SaveEverything(), MemoryBudget(0.0), ByteTraffic(mode="aggressive")]),
    ids=str,
)
def test_attention_with_a_class_token_has_the_kernels_and_the_peak_of_inductors_code(cost_model: CostModel) -> None:
    step = class_token()
    graph = remat.capture(step, torch.randn(2, 64, 128), torch.zeros(2, dtype=torch.long), device="h200")
    plan = remat.solve(cost_model.pose(graph)).plan
    assert plan is not None
    with virtual_gpu("h200"):
        written = Scheduled(graph).kernels(plan)
        assert remat.timeline(graph, plan).peak_bytes == rehearsed_peak(graph, plan)
    assert len(kernels(graph, plan)) == len(written)
    assert sum(k.bytes for k in kernels(graph, plan)) == sum(k.bytes for k in written)


@pytest.mark.parametrize("saved", ["bmm", "cos"])
def test_a_saved_product_of_batches_has_no_gaps_and_is_not_copied(saved: str) -> None:
    """Inductor fixes its layout when it is lowered; the layout of the cosine, and of the gradient, stays open."""

    def step(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).sin().sum()

    factors = (torch.randn(8, 65, 65, requires_grad=True) for _ in range(2))
    graph = remat.capture(step, *factors, device="h200")
    everything = plan_of(graph, SaveEverything())
    others = tuple(name for name in everything.saved if name != "cos")
    plan = everything if saved == "cos" else remat.Plan(saved=("bmm", *others), recomputed=("cos",))
    with virtual_gpu("h200"):
        assert len(kernels(graph, plan)) == len(Scheduled(graph).kernels(plan))
        assert remat.timeline(graph, plan).peak_bytes == rehearsed_peak(graph, plan)


def row(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


# Steps with rows of more than 1,024 elements that are no multiple of 128 bytes, and what they read.
STEPS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "no elements": (lambda a: a.sin().softmax(-1).sum() + a[:0].exp().sum(), ((64, 1025),)),
    "mean of everything": (lambda a: a.sin().exp().mean(), ((32, 2049),)),
    "scan": (lambda a: a.sin().cumsum(-1).exp().sum(), ((32, 2049),)),
    "gradient of long rows": (lambda a, b: (a @ b).exp().sum(), ((64, 16), (16, 1025))),
    "loss that reads two products": (
        lambda a, b, c, w: ((a @ b + c @ b) * w).sum(),
        ((64, 16), (16, 1025), (64, 16), (1025,)),
    ),
    "transposed and saved": (
        lambda a: (a.sin() @ a.transpose(-1, -2).cos()).exp().sum(),
        ((64, 1, 1025),),
    ),
}


@pytest.mark.parametrize("name", deep_except(["no elements", "gradient of long rows"], STEPS))
@pytest.mark.parametrize("cost_model", [SaveEverything(), MemoryBudget(0.0)], ids=["everything", "least"])
def test_long_rows_have_the_gaps_of_inductors_code(name: str, cost_model: CostModel) -> None:
    step, shapes = STEPS[name]
    graph = remat.capture(step, *(row(*shape) for shape in shapes), device="h200")
    plan = remat.solve(cost_model.pose(graph)).plan
    assert plan is not None
    with virtual_gpu("h200"):
        assert len(kernels(graph, plan)) == len(Scheduled(graph).kernels(plan))
        assert remat.timeline(graph, plan).peak_bytes == rehearsed_peak(graph, plan)


def test_rows_up_to_1024_numbers_and_channels_last_images_are_not_padded() -> None:
    assert padded_strides((2, 4, 65, 65), (16900, 4225, 65, 1), 4) == (17024, 4256, 65, 1)
    assert padded_strides((2, 4, 65, 65), (16900, 4225, 65, 1), 2) == (17152, 4288, 65, 1)
    assert padded_strides((8, 1025), (1025, 1), 4) == (1056, 1)
    assert padded_strides((1025, 8), (1, 1025), 4) == (1, 1056)
    assert padded_strides((8, 1023), (1023, 1), 4) == (1023, 1)
    assert padded_strides((8, 1056), (1056, 1), 4) == (1056, 1), "33 times 128 bytes"
    images = (2, 33, 65, 65)
    assert padded_strides(images, channels_last(images), 4) == channels_last(images)
