"""PyTorch's own memory budget is honoured where no cost model is given, and warned about where one is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat.pytorch import Partitioner
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.seam.step_allocations import no_cpu_kernels
from remat.pytorch.seam.torch_settings import partitioner_settings
from tests.depth import deep
from tests.test_compile import gradients
from tests.test_whole_run import WIDTH, Model

Step = Callable[..., Any]


def kept(step: Step, model: nn.Module) -> int:
    torch.manual_seed(0)
    return saved_activations(step, model, torch.randn(64, WIDTH))[1].bytes


def by_default(model: nn.Module) -> Step:
    return remat.compile(model, codegen=False)


def by_name(model: nn.Module) -> Step:
    return no_cpu_kernels()(torch.compile(model, backend="remat"))


@pytest.mark.parametrize("compile", [by_default, pytest.param(by_name, marks=deep)])
def test_torchs_budget_becomes_ours(compile: Callable[[nn.Module], Step]) -> None:
    model, theirs = Model(2), 0
    for budget in (0.5, 0):
        torch.compiler.reset()
        with partitioner_settings(activation_memory_budget=budget):
            theirs = kept(compile(model), model)
        torch.compiler.reset()
        assert theirs == kept(remat.compile(model, cost_model=MemoryBudget(float(budget)), codegen=False), model)
    assert kept(compile(model), model) > theirs, "without the setting, the default cost model"


class InRegion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model(2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.region_activation_memory_budget(0.0):
            return self.model(x)


def test_the_budget_of_a_region_becomes_ours() -> None:
    model = InRegion()
    step = by_default(model)
    x = torch.randn(64, WIDTH)
    least = kept(remat.compile(model.model, cost_model=MemoryBudget(0.0), codegen=False), model)
    assert kept(step, model) == least < kept(by_default(model.model), model)
    expected = gradients(model.model, model, x)
    torch.testing.assert_close(gradients(step, model, x), expected)


def test_a_setting_that_is_ignored_is_warned_about_also_from_a_warm_cache() -> None:
    model = Model()
    with partitioner_settings(activation_memory_budget=0.3):
        for given in ({"cost_model": ByteTraffic()}, {"cost_model": MemoryBudget(0.5)}):
            torch.compiler.reset()
            with pytest.warns(UserWarning, match=r"budget of 0.3 .* is ignored.*or take MemoryBudget\(0.3\)"):
                kept(remat.compile(model, codegen=False, **given), model)  # type: ignore[arg-type]
        assert Partitioner.of(ByteTraffic()).uuid() != Partitioner.of(ByteTraffic()).uuid()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept(remat.compile(model, cost_model=ByteTraffic(), codegen=False), model)
