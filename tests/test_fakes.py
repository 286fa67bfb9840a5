"""Capturing fake tensors: the same graph as that of real ones, without their memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from depth import deep
from strategies import flat
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import remat
from experiments.models import workloads
from experiments.models.recipe import fake
from remat import CaptureError

GIB = 2**30


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: workloads.perceptron(dropout=0.1),
        lambda: workloads.resnet(blocks=(1,), width=8, batch=2),
        lambda: workloads.gpt_small(layers=1, fused=True),
        pytest.param(lambda: workloads.recurrent(steps=3), marks=deep),
        pytest.param(workloads.bert, marks=deep),
    ],
    ids=["dropout", "buffers", "fused attention", "recurrent", "expanded argument"],
)
def test_fake_and_real_tensors_have_one_graph(make: Callable[[], workloads.Sample]) -> None:
    torch.manual_seed(0)
    model, args = make()
    real = remat.capture(model, *args)
    assert replace(remat.capture(*flat(fake(copy.deepcopy(model), args))), meta=real.meta) == real


def test_inside_and_outside_the_mode_is_the_same() -> None:
    with FakeTensorMode():
        model, x = mlp(), torch.empty(3, 4)
        inside = remat.capture(model, x)
    assert remat.capture(model, x) == inside


def test_a_model_too_large_for_any_memory() -> None:
    with FakeTensorMode():
        model, x = nn.Sequential(nn.Linear(2**20, 2**20), nn.GELU(), nn.Linear(2**20, 8)), torch.empty(64, 2**20)
        graph = remat.capture(model, x)
    assert graph.bytes.max() == 4096 * GIB
    assert remat.solve(remat.plugin.base_problem(graph)).is_proven


def test_constants_that_the_model_makes_are_fake_too() -> None:
    with FakeTensorMode():
        model, x = mlp(), torch.empty(3, 4)
    graph = remat.capture(lambda x: model(x) * torch.tensor(3.0), x)
    assert "aten.mul.Tensor" in graph.ops


def test_random_numbers_are_put_back() -> None:
    with FakeTensorMode():
        model, x = mlp(), torch.empty(3, 4)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    remat.capture(lambda x: nn.functional.dropout(model(x)), x)
    assert torch.equal(torch.get_rng_state(), before)


def test_mixtures_are_refused_and_the_way_out_is_named() -> None:
    with (mode := FakeTensorMode()):
        fakes, x = mlp(), torch.empty(3, 4)
    with FakeTensorMode():
        other = torch.empty(3, 4)
    real, y = mlp(), torch.randn(3, 4)
    for model, arg, message in [
        (real, x, "1 fake of 5"),
        (fakes, y, "4 fake of 5"),
        (fakes, other, "several modes"),
        (lambda z: fakes(z) * y, x, "a real tensor beside fake ones"),
        (lambda z: fakes(z) * z.sum().item(), x, "reads the contents"),
        (nn.Linear(4, 4, device="meta"), torch.empty(3, 4, device="meta"), "meta device"),
    ]:
        with pytest.raises(CaptureError, match=message):
            remat.capture(model, arg)
    with mode, pytest.raises(CaptureError, match="0 fake of 5"):
        remat.capture(real, y)


def test_an_assertion_of_the_model_stays_its_own() -> None:
    with FakeTensorMode():
        model, x = mlp(), torch.empty(3, 4)

    @torch._dynamo.disable
    def refuses(x: Tensor) -> Tensor:
        raise AssertionError("three rows are too many")

    with pytest.raises(AssertionError, match="three rows"):
        remat.capture(lambda x: refuses(model(x)), x)
