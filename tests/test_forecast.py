"""`remat.forecast`: what training will hold, before it runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import answer
from depth import deep
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import remat
from costmodels import MemoryBudget
from experiments.accuracy.forecast_error import BUDGET, MODELS, budgets_kept, errors
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from remat import CaptureError, Infeasible, InvalidOption, Plan, Timeline
from remat.predict.whole_step import FixedMemory, Forecast, OptimizerMemory
from remat.pytorch.ahead.forecasting import NOTHING_RECOMPUTED, PYTORCH
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.read.optimizer_memory import optimizer_from, optimizer_memory
from remat.pytorch.seam.reachable import reachable_tensors
from tests.results_pages import rows_of, section, sentences

CPU = torch.device("cpu")


class Perceptron(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(torch.tanh(self.first(x)).exp()) * self.scale).square().mean()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


@pytest.mark.parametrize(
    "make",
    [torch.optim.AdamW, fused, torch.optim.SGD, momentum, torch.optim.RMSprop, torch.optim.Adagrad],
    ids=lambda make: make.__name__,
)
def test_an_optimizer_takes_what_it_takes_for_real(make: Callable[..., torch.optim.Optimizer]) -> None:
    parameters = [nn.Parameter(torch.randn(shape)) for shape in ((300, 100), (100,), (50, 300))]
    told = optimizer_memory(make, parameters, gpu=False)
    optimizer = make(parameters)
    before = sum(_state_bytes(optimizer))
    for peak in (told.first_bytes - before, told.workspace_bytes):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        held = peak_bytes(optimizer.step, CPU)
        assert peak - 16 <= held <= peak  # numbers that are tensors for a moment
    assert sum(_state_bytes(optimizer)) == told.state_bytes
    assert told.initial_bytes == before


def _state_bytes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [leaf.nbytes for state in optimizer.state.values() for leaf in state.values() if isinstance(leaf, Tensor)]


def test_an_optimizer_takes_the_same_while_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of the device asks while a step is compiled, and was told some bytes more than a forecast."""
    parameters = [torch.empty(1000) for _ in range(8)]
    told = optimizer_memory(torch.optim.AdamW, parameters, gpu=False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert optimizer_memory(torch.optim.AdamW, parameters, gpu=False) == told


def test_on_a_gpu_all_parameters_are_updated_at_once() -> None:
    parameters = [torch.empty(1000) for _ in range(8)]
    one, all_ = (optimizer_memory(torch.optim.AdamW, parameters, gpu=gpu).workspace_bytes for gpu in (False, True))
    assert one < all_ / 2
    assert all_ >= 8 * 4000


def test_steps_add_up() -> None:
    optimizer = OptimizerMemory(state_bytes=20, first_bytes=25, workspace_bytes=4)
    fixed = FixedMemory(own_bytes=100, gradient_bytes=8, output_bytes=2, tangent_bytes=3, optimizer=optimizer)
    found = fixed.forecast("a", Plan((), ()), line(forward=30, backward=20))
    assert (found.saved_bytes, found.passes_bytes) == (7, 30)
    assert (found.first_bytes, found.later_bytes, found.peak_bytes) == (135, 150, 150)
    light = fixed.forecast("b", Plan((), ()), line(forward=12, backward=9))
    assert light.passes_bytes == 12  # what the backward pass is given is alive beside it
    assert (light.first_bytes, light.later_bytes, light.peak_bytes) == (135, 134, 135)
    early = replace(fixed, optimizer=replace(optimizer, initial_bytes=20))
    assert early.forecast("c", Plan((), ()), line(forward=30, backward=20)).first_bytes == 150
    forecast = Forecast(60, 10, 30, 10, optimizer, (found, light))
    assert forecast.fitting(140) == ["b"]
    assert forecast.fitting("1KB") == ["a", "b"]
    assert forecast["b"] is light
    assert [row.split() for row in str(forecast).splitlines()][-1][0] == "b"
    with pytest.raises(InvalidOption, match=r"no plan named 'c'; there are: 'a', 'b'"):
        forecast["c"]
    with pytest.raises(
        InvalidOption, match=r'memory must be a whole number of bytes, or a size such as "80GB", got 1.5'
    ):
        forecast.fitting(1.5)  # type: ignore[arg-type]


def line(forward: int, backward: int) -> Timeline:
    during = np.array([forward, backward])
    return Timeline(("a", "b"), ("", ""), np.array([False, True]), during, during, {}, 7, 7, 0, ())


def test_what_a_device_leaves_for_the_passes() -> None:
    optimizer = OptimizerMemory(state_bytes=20, first_bytes=25, workspace_bytes=4)
    fixed = FixedMemory(own_bytes=100, gradient_bytes=8, output_bytes=2, tangent_bytes=3, optimizer=optimizer)
    assert fixed.available_for_passes(150) == 27
    assert fixed.available_for_passes(135) == 12  # what the optimizer's first step holds
    with pytest.raises(Infeasible, match=r"does not fit into 134 bytes .*buffers and inputs: 100 B, gradients: 8 B"):
        fixed.available_for_passes(134)


def test_what_a_model_returns_is_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 128))
    told = remat.forecast(model, torch.randn(512, 64), optimizer=momentum)
    assert told.gradient_bytes == told.parameter_bytes
    logits = 4 * 512 * 128
    # Beside them there is their gradient, which the backward pass is given, and the saved tanh.
    assert told[PYTORCH].passes_bytes >= 2 * logits + 4 * 512 * 64
    assert told[PYTORCH].later_bytes >= 3 * told.parameter_bytes + told.input_bytes + 2 * logits + 4 * 512 * 64


def test_a_forecast_is_what_a_compiled_step_holds() -> None:
    """Both steps within a tenth; `experiments.accuracy.forecast_error` has the models that people train."""
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(64, 64)
    told = remat.forecast(model, x, optimizer=torch.optim.AdamW)
    own = told.parameter_bytes + told.buffer_bytes + told.input_bytes
    assert own == sum(t.nbytes for t in (*model.parameters(), *model.buffers(), x))
    assert told.optimizer.state_bytes == 2 * told.parameter_bytes + 4 * 4  # four counts of steps
    step = remat.compile(model)
    with no_cpu_kernels():
        step(x).backward()
    model.zero_grad()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        step(x).backward()
        optimizer.step()

    first = own + peak_bytes(train, CPU)
    model.zero_grad()
    later = own + told.optimizer.state_bytes + peak_bytes(train, CPU)
    assert told[PYTORCH].first_bytes == pytest.approx(first, rel=0.1)
    assert told[PYTORCH].later_bytes == pytest.approx(later, rel=0.1)


def test_fake_tensors_of_any_size_take_no_memory() -> None:
    with FakeTensorMode():
        model, x = Perceptron(32_768), torch.empty(16, 32_768)
    told = remat.forecast(model, x, optimizer=torch.optim.AdamW, cost_models=[MemoryBudget(0.5)])
    weights = 2 * 4 * 32_768**2 * 4
    assert weights < told.parameter_bytes < 1.001 * weights
    assert told.optimizer.state_bytes > 2 * weights
    assert told.gradient_bytes >= weights
    names = [NOTHING_RECOMPUTED, PYTORCH, "MemoryBudget()"]
    assert [found.name for found in told.plans][:2] == names[:2]
    assert len(told.plans) == 3
    assert told.plans[0].saved_bytes >= told[PYTORCH].saved_bytes >= told.plans[2].saved_bytes
    assert told[PYTORCH].later_bytes >= 4 * weights  # parameters, gradients, two states


def test_the_results_say_how_far_forecasts_are_off() -> None:
    rows = rows_of("forecast_error")
    models = {row["case"] for row in rows}
    assert models <= {*MODELS}
    stated = sentences(section("Forecasts of training"))
    assert f"{len(models)} models" in stated
    assert budgets_kept(rows) == len(models), "as stated in docs/theory/whole_run.md"
    assert f"All {len(models)} budgets of the device were kept" in stated
    for plan in (PYTORCH, BUDGET):
        off = np.abs([*errors(rows, plan).values()])
        assert np.median(off) < 0.03
        assert off.max() < 0.1
        assert f"| {off.max():.1%} (" in stated


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    def step(batch: int) -> tuple[Any, ...]:
        with FakeTensorMode():
            return Perceptron(16), (torch.empty(batch, 16),)

    def held(batch: int) -> int:
        model, args = step(batch)
        return remat.forecast(model, *args, optimizer=momentum)[PYTORCH].peak_bytes

    most = held(3)
    best = remat.largest_batch(step, most, optimizer=momentum)
    assert best >= 3
    assert held(best) <= most < held(best + 1)
    assert remat.largest_batch(step, 1000, optimizer=momentum) == 0


@deep
def test_with_a_budget_of_the_device_a_larger_batch_fits() -> None:
    """What is wide can be computed again from what is narrow."""

    def step(batch: int) -> tuple[Any, ...]:
        with FakeTensorMode():
            layers = [layer for _ in range(4) for layer in (nn.Linear(8, 128), nn.Tanh(), nn.Linear(128, 8))]
            return nn.Sequential(*layers), (torch.empty(batch, 8),)

    best = remat.largest_batch(step, "140KB", optimizer=torch.optim.SGD)
    budget = MemoryBudget("140KB", of="device", optimizer="sgd")
    assert remat.largest_batch(step, "140KB", optimizer=torch.optim.SGD, cost_model=budget) > 1.2 * best > 10


def test_what_is_no_optimizer_is_refused() -> None:
    x = torch.randn(4, 64)
    with pytest.raises(InvalidOption, match="optimizer must make an optimizer of these parameters"):
        remat.forecast(Perceptron(), x, optimizer=len)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"without reading tensors.*Adafactor does not"):
        remat.forecast(Perceptron(), x, optimizer=torch.optim.Adafactor)
    with pytest.raises(InvalidOption, match=r"torch.optim has no optimizer 'adamv'; did you mean 'adamw?'\?"):
        optimizer_from("adamv")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("lbfgs", r"without a closure, .* LBFGS does not"),
        ("muon", r"Muon only supports 2D parameters"),
        ("sgd:lr=-1", r"Invalid learning rate: -1"),
        ("sgd:momentums=1", r"unexpected keyword argument 'momentums'"),
        ("sgd:momentum=foo", r"must be KEY=VALUE with a value in JSON, .* got 'momentum=foo'"),
        ("sgd:nesterov=True", r"must be KEY=VALUE with a value in JSON, .* got 'nesterov=True'"),
    ],
)
def test_optimizers_that_a_forecast_cannot_run_say_why(name: str, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        optimizer_memory(optimizer_from(name), [torch.empty(4)], gpu=False)


def test_without_parameters_an_optimizer_holds_nothing() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    told = remat.forecast(nn.Tanh(), x, optimizer=torch.optim.AdamW)
    assert told.optimizer == OptimizerMemory()


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x)


def test_the_parameters_of_a_function_count() -> None:
    model, x = Perceptron(), torch.randn(8, 64)
    told = remat.forecast(model, x, optimizer=momentum)
    assert told.parameter_bytes

    def loss(x: Tensor) -> Tensor:
        return model(x)

    for function in (loss, Trainer(model).loss, functools.partial(lambda m, x: m(x), model)):
        found = remat.forecast(function, x, optimizer=momentum)
        assert (found.parameter_bytes, found.buffer_bytes) == (told.parameter_bytes, told.buffer_bytes)
        assert found.optimizer == told.optimizer
        assert found[PYTORCH].peak_bytes == told[PYTORCH].peak_bytes


def test_all_modules_that_python_code_holds_are_found() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [nn.Linear(4, 4)]  # not registered

    blocks = [Listed() for _ in range(8)]
    found = reachable_tensors(lambda x: [block.parts[0](x) for block in blocks], ())
    assert len(found) == 2 * len(blocks)


def test_a_function_whose_parameters_are_not_found_is_refused() -> None:
    trainer = Trainer(Perceptron())
    with pytest.raises(InvalidOption, match=r"model must be a torch.nn.Module, .* bytes .* but only 0 were found"):
        remat.forecast(lambda x: trainer.loss(x).exp(), torch.randn(8, 64))


def test_where_a_batch_of_one_cannot_be_captured_the_search_begins_at_two() -> None:
    def step(batch: int) -> tuple[Any, ...]:
        with FakeTensorMode():
            return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), (torch.empty(batch, 8),)

    assert remat.largest_batch(step, "2KB") >= 2
    assert remat.largest_batch(step, 100) == 0


def test_steps_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"step must be a function that can be called with a batch size"):
        remat.largest_batch(lambda: (Perceptron(), (torch.randn(4, 64),)), "1MB")  # type: ignore[arg-type, misc]
    with pytest.raises(CaptureError, match=r"step must return \(model, tuple of args\) .* got \(Perceptron\)"):
        remat.largest_batch(lambda batch: Perceptron(), "1MB")  # type: ignore[arg-type, return-value]


def test_the_optimizer_of_the_caller_counts_for_a_budget_of_the_device() -> None:
    """Where its own AdamW leaves no room for any plan."""
    model, x = Perceptron(), torch.randn(4, 64)
    limit = remat.forecast(model, x, optimizer=torch.optim.SGD)[PYTORCH].peak_bytes
    budget = MemoryBudget(limit, of="device")
    found = remat.forecast(model, x, optimizer=torch.optim.SGD, cost_models=[budget])
    assert found.plans[-1].peak_bytes <= limit
    with pytest.raises(Infeasible):
        remat.forecast(model, x, cost_models=[budget])


@pytest.fixture
def imports_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command makes the current folder importable; the path is what it was before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("imports_from_here")
def test_the_command_says_what_fits(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Loss(nn.Linear):\n"
        "    def forward(self, x):\n        return super().forward(x).tanh().mean()\n\n"
        "def small():\n    return Loss(64, 64), (torch.randn(8, 64),)\n"
    )
    found = answer("forecast", "made:small", "--optimizer", "sgd:momentum=0.9", "--memory", "1KB")
    assert found["parameter_bytes"] == found["optimizer"]["state_bytes"] == (64 * 64 + 64) * 4
    assert [plan["plan"] for plan in found["plans"]] == [NOTHING_RECOMPUTED, PYTORCH]
    assert found["fitting"] == []


@pytest.mark.usefixtures("imports_from_here")
def test_the_command_says_how_large_a_batch_fits(tmp_path: Path) -> None:
    (tmp_path / "sized.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch._subclasses import FakeTensorMode\n\nclass Loss(nn.Linear):\n"
        "    def forward(self, *, x):\n        return super().forward(x).tanh().mean()\n\n"
        "def loss(batch):\n    with FakeTensorMode():\n        return Loss(64, 64), (), {'x': torch.randn(batch, 64)}\n"
    )
    found = answer("forecast", "sized:loss", "--memory", "200KB", "--largest-batch")
    assert found["plan"] == PYTORCH
    # A row takes its input, and what tanh returns; parameters, gradients and AdamW's state four times 16 KiB.
    assert 0.9 < found["batch"] * 2 * 64 * 4 / (200_000 - 4 * 4 * 65 * 64) < 1.1
