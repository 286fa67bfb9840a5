"""Settings from outside of `remat.compile`: options of a backend by name, the environment, PyTorch's own budget."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.accuracy.live_kernels import visited
from remat.pytorch import Partitioner
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.run.compile import backend
from remat.pytorch.run.planned_graph import PlannedGraph
from remat.pytorch.run.report import Report
from remat.pytorch.seam.torch_settings import partitioner_settings
from tests.depth import deep
from tests.test_compile import gradients
from tests.test_whole_run import WIDTH, Model


def planned(**kwargs: Any) -> PlannedGraph:
    """What a step by the backend's name was planned by; no code is written for it."""
    torch.compiler.reset()
    model = Model()
    with visited():
        torch.compile(model, backend="remat", **kwargs)(torch.randn(64, WIDTH)).sum().backward()
    return remat.last_report().graphs[-1]


def test_options_and_environment_say_what_to_choose_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    half = planned(options={"remat.cost_model": "memory-budget:budget=0.5", "remat.solver": "lagrangian"})
    assert (half.cost_model, half.chosen.by) == ("memory-budget", "lagrangian")
    monkeypatch.setenv("REMAT_COST_MODEL", "memory-budget:budget=0.2")
    fifth = planned()
    assert fifth.cost_model == "MemoryBudget(budget=0.2)"
    assert fifth.facts.saved_bytes < half.facts.saved_bytes
    for value in ("memory-budget:budget=0.2", "no-such-model"):
        monkeypatch.setenv("REMAT_COST_MODEL", value)
        assert planned(options={"remat.cost_model": "byte-traffic"}).cost_model == "byte-traffic", "options come first"
    monkeypatch.delenv("REMAT_COST_MODEL")
    file = tmp_path / "plan.json"
    fifth.plan.save(file)
    monkeypatch.setenv("REMAT_PLAN", str(file))
    replayed = planned()
    assert (replayed.plan, replayed.chosen.by) == (fifth.plan, "replayed")


@pytest.mark.parametrize("way", ["remat.compile", "backend", "environment"])
def test_a_search_ends_at_a_time_limit_with_the_best_so_far(
    way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first plan, and PyTorch's plans that may keep the budget, are predicted however long it takes."""
    caplog.set_level("DEBUG", "remat.improve.step_search")
    budget = MemoryBudget(0.9, of="peak")
    if way == "environment":
        monkeypatch.setenv("REMAT_TIME_LIMIT_S", "1e-9")
    tried: list[int] = []
    for limit in (1e-9, 3600):
        caplog.clear()
        if way == "remat.compile":
            report(cost_model=budget, time_limit_s=limit)
        else:
            options = {} if way == "environment" and limit < 1 else {"remat.time_limit_s": limit}
            planned(options={"remat.cost_model": budget, **options})
        tried.append(sum(record.name == "remat.improve.step_search" for record in caplog.records))
    assert 2 * tried[0] < tried[1]


GRAPH_MODULE = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("remat.costmodel", "byte-traffic", r"got 'remat.costmodel'; did you mean 'remat.cost_model'\?"),
        ("cost_model", "byte-traffic", r"got 'cost_model'; did you mean 'remat.cost_model'\?"),
        ("remat.cost_model", "no-such-model", "no cost model is named 'no-such-model'"),
    ],
)
def test_wrong_options_of_a_backend_are_refused_by_name(name: str, value: str, told: str) -> None:
    with pytest.raises((remat.InvalidOption, remat.errors.UnknownName), match=told):
        backend(GRAPH_MODULE, [], options={name: value})


def report(**kwargs: Any) -> Report:
    """What a step by `remat.compile` was planned by."""
    torch.compiler.reset()
    step = remat.compile(Model(), codegen=False, **kwargs)
    step(torch.randn(64, WIDTH)).sum().backward()
    return step.report()


def test_a_call_that_asks_for_nothing_takes_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_COST_MODEL", "memory-budget:budget=0.2")
    assert report().graphs[0].cost_model == "MemoryBudget(budget=0.2)"
    assert report(cost_model="byte-traffic").graphs[0].cost_model == "byte-traffic"
    assert "MemoryBudget" not in report(solver="networkx").graphs[0].cost_model


def test_either_word_about_errors_in_a_call_comes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "plan.json"
    remat.Plan((), (), ("of another graph",)).save(file)
    monkeypatch.setenv("REMAT_PLAN", str(file))
    monkeypatch.setenv("REMAT_ON_ERROR", "fallback")
    with pytest.warns(UserWarning, match="falls back to PyTorch's partitioner"):
        assert report().graphs == ()
    for on_error in ("raise", "fallback"):
        assert report(on_error=on_error).graphs[0].chosen.by == "ortools"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("REMAT_COST_MODEL", "memory-budgets", "no cost model is named 'memory-budgets'; did you mean"),
        ("REMAT_COST_MODEL", "memory-budget:budget=lots", "budget .* got 'lots'"),
        ("REMAT_SOLVER", "ortols", "no solver is named 'ortols'; did you mean 'ortools'"),
        ("REMAT_ON_ERROR", "ignore", "on_error must be one of raise, fallback, got 'ignore'"),
        ("REMAT_TIME_LIMIT_S", "soon", "time_limit_s must be a positive number of seconds, got 'soon'"),
        ("REMAT_TIME_LIMIT_S", "0", "time_limit_s must be a positive number of seconds, got 0.0"),
        ("REMAT_PLAN", f"plan.json{os.pathsep}", f"a file must be named before and after each '{os.pathsep}', got"),
        ("REMAT_PLAN", "no-such-plan.json", "No such file or directory: 'no-such-plan.json'"),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(remat.InvalidOption, match=f"^the environment variable {variable}: .*{told}"):
        remat.compile(torch.sin)
    with pytest.raises(remat.InvalidOption, match=f"^the environment variable {variable}: "):
        backend(GRAPH_MODULE, [])


def test_options_of_ours_among_those_of_torch_are_refused_with_the_right_spelling() -> None:
    for name in ("remat.cost_model", "cost_model"):
        with pytest.raises(remat.InvalidOption, match=r"remat.compile\(model, cost_model=...\), not among the options"):
            remat.compile(torch.sin, options={name: "byte-traffic"})
    with pytest.raises(remat.InvalidOption, match=r"got 'max_fusion_sice'; did you mean 'max_fusion_size'\?"):
        remat.compile(torch.sin, options={"max_fusion_sice": 8})
    remat.compile(torch.sin, options={"max-fusion-size": 8, "guard_filter_fn": None})


def test_compile_is_a_decorator() -> None:
    @remat.compile(cost_model=MemoryBudget(0.5), codegen=False)
    def half(x: Tensor) -> Tensor:
        return (x.sin().cos() * x.exp()).tanh().sum()

    @remat.compile
    def plain(x: Tensor) -> Tensor:
        return x.sin().sum()

    x = torch.randn(8, requires_grad=True)
    half(x).backward()
    assert half.report().graphs[0].cost_model == "memory-budget"
    assert plain(x).shape == ()


def test_a_variable_that_looks_like_one_of_ours_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_COSTMODEL", "memory-budget")
    with pytest.warns(
        UserWarning, match="the unknown environment variable REMAT_COSTMODEL; did you mean 'REMAT_COST_MODEL'"
    ):
        planned()


Step = Callable[..., Any]


def kept(step: Step, model: nn.Module) -> int:
    torch.manual_seed(0)
    return saved_activations(step, model, torch.randn(64, WIDTH))[1].bytes


def by_default(model: nn.Module) -> Step:
    return remat.compile(model, codegen=False)


def by_name(model: nn.Module) -> Step:
    return visited()(torch.compile(model, backend="remat"))


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
