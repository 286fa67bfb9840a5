"""Measurements: Inductor's own byte counts, what is kept, the peak; and the smoke run that uses them."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from depth import deep
from torch import Tensor, nn

import remat
from experiments.accuracy import gpu_training
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.measure.saved import peak_bytes, saved_activations
from remat.pytorch.measure.training_step import measure, measure_step, usual_strategies
from remat.pytorch.seam.torch_partitioner import SplitBy

OURS = "remat: ByteTraffic(prices='pytorch')"
"""What `usual_strategies` calls that which `remat.compile` does with nothing else."""


def cos_cos(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a + b + c + d).cos().cos()


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x)))


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 32), nn.Sigmoid(), nn.Tanh(), nn.BatchNorm1d(32))


@pytest.mark.parametrize(
    ("function", "inputs", "moved", "saved"),
    [
        (cos_cos, 4, {"autograd's own saves": 11_534_336, "PyTorch": 9_437_184}, [2, 1]),
        pytest.param(gelu, 1, {"autograd's own saves": 15_728_640, "PyTorch": 5_242_880}, [5, 0], marks=deep),
    ],
)
def test_bytes_are_those_of_inductors_metrics(
    function: Callable[..., Tensor], inputs: int, moved: dict[str, int], saved: list[int]
) -> None:
    """512 x 512 float32: 1 MiB a tensor. `torch._inductor.metrics.num_bytes_accessed` gave the same
    numbers on torch 2.11, 2.13 and 2.15.
    """
    args = [torch.randn(512, 512, requires_grad=True) for _ in range(inputs)]
    ways = usual_strategies()
    frame = measure(function, *args, strategies={name: ways[name] for name in moved}, repeats=1)
    assert dict(zip(frame["strategy"], frame["moved_bytes"], strict=True)) == moved
    assert frame["saved_bytes"].tolist() == [2**20 * tensors for tensors in saved]
    assert frame["saved_tensors"].tolist() == saved
    assert frame["kernels"].tolist() == [2, 2]
    assert (frame["forward_bytes"] + frame["backward_bytes"] == frame["moved_bytes"]).all()


def test_a_step_is_measured_anew_tensor_by_tensor_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model, x = normalized(), torch.randn(16, 32)
    graph = remat.capture(model, x)
    plan = remat.solve(remat.answer.registry.find_costmodel("byte-traffic").pose(graph)).plan
    model[0].weight.grad = gradient = torch.ones(32, 32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()

    step = remat.compile(model)
    first, again = (measure_step(step, model, x, repeats=2) for _ in range(2))
    assert first.kernels == again.kernels
    assert len(first.times_s) == 2

    facts = PlanFacts.of(graph, plan)
    assert (first.saved.tensors, first.saved.bytes) == (len(facts.saved_activations), facts.saved_bytes)
    sizes = sorted(int(graph.storage_bytes[graph.index[name]]) for name in facts.saved_activations)
    assert sorted(tensor.bytes for tensor in first.saved.each) == sizes

    calls = [kernel for kernel in first.kernels if not kernel.generated]
    assert len(calls) == 2  # x @ w, and the gradient of w
    assert {kernel.backward for kernel in first.kernels} == {False, True}
    operators = [name for kernel in first.kernels if not kernel.backward for name in kernel.operators]
    assert {"sigmoid", "tanh"} <= set(operators)

    assert model[0].weight.grad is gradient
    assert model[0].bias.grad is None
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_strategy_that_fails_makes_a_row_that_says_why() -> None:
    def broken(model: Callable[..., Any]) -> Callable[..., Any]:
        def step(x: Tensor) -> Tensor:
            raise RuntimeError("no such luck\nat all")

        return step

    x = torch.randn(256, 256, requires_grad=True)
    frame = measure(torch.tanh, x, strategies={"broken": broken, "eager": lambda model: model}, repeats=3)
    assert frame["error"].tolist() == ["RuntimeError: no such luck", ""]
    assert frame["saved_bytes"].isna().tolist() == [True, False]
    assert frame["moved_bytes"].isna().all()  # eager: Inductor counts nothing
    assert x.grad is None
    eager = frame.iloc[1]
    assert 0 < eager["fastest_s"] <= eager["median_s"] <= eager["slowest_s"]
    # The result and its gradient are alive with the gradient of x.
    assert eager["peak_bytes"] >= 3 * x.nbytes


def test_nothing_to_differentiate_is_said() -> None:
    frame = measure(torch.sin, torch.randn(4), strategies={"eager": lambda model: model})
    assert "nothing that the model returns requires a gradient" in frame["error"][0]


def compiled_with(f: Callable[..., Any]) -> Callable[..., Any]:
    """A strategy that compiles another function than the one that it is given."""
    return lambda model: torch.compile(f, backend="aot_eager")


def test_what_every_strategy_computes_is_compared_with_eager() -> None:
    model, x = normalized(), torch.randn(16, 32)
    ways = usual_strategies()
    frame = measure(model, x, strategies={n: ways[n] for n in ("eager", OURS)}, repeats=0)
    assert frame["error"].tolist() == ["", ""]
    assert frame["compared_with"].tolist() == ["eager", "eager"]
    assert frame["relative_error"][0] == 0
    assert not model[3].running_mean.any(), "put back, though eager mode writes it without a new version"
    # The bias comes before a normalization: its gradient is zero but for rounding.
    assert frame["relative_error"][1] < 1e-3


class Doubled(torch.autograd.Function):
    """The identity, with a gradient that is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.038


def test_a_wrong_gradient_is_flagged_and_so_is_a_wrong_output() -> None:
    x = torch.randn(64, requires_grad=True)
    strategies = {
        "wrong gradient": compiled_with(lambda x: Doubled.apply(x.sin())),
        "wrong output": compiled_with(lambda x: x.sin() + 1),
        "no gradient": compiled_with(lambda x: x.sin().detach() + 0 * x.sum().detach().requires_grad_()),
        "not a number": compiled_with(lambda x: x.sin() * torch.nan),
        "right": compiled_with(torch.sin),
    }
    frame = measure(torch.sin, x, strategies=strategies, repeats=1)
    errors = dict(zip(frame["strategy"], frame["error"], strict=True))
    assert re.match(r"wrong: gradient of argument 0 .*0\.038 .*eager.*0\.01$", errors["wrong gradient"])
    assert errors["wrong output"].startswith("wrong: ")
    assert "off by inf" in errors["not a number"]
    assert errors["no gradient"]
    assert errors["right"] == ""
    assert frame["median_s"].notna()[0], "it was measured nevertheless"
    generous = measure(torch.sin, x, strategies={"wrong": strategies["wrong gradient"]}, repeats=0, tolerance=0.05)
    assert generous["error"].tolist() == [""]


def test_a_step_that_draws_is_compared_with_a_compiled_one_that_draws_once() -> None:
    """pytorch#190758: with a budget below 1, torch draws a second time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.3))
    ways = usual_strategies()
    names = ["autograd's own saves", "PyTorch, activation_memory_budget=0.5", OURS]
    frame = measure(model, torch.randn(16, 32), strategies={name: ways[name] for name in names}, repeats=0)
    assert frame["compared_with"].tolist() == ["", names[0], names[0]]
    assert frame["error"][0] == frame["error"][2] == ""
    assert frame["relative_error"][2] < 1e-5
    alone = measure(model, torch.randn(16, 32), strategies={names[2]: ways[names[2]]}, repeats=0)
    assert alone["compared_with"].tolist() == [names[0]]
    assert alone["error"].tolist() == [""]


@pytest.mark.parametrize("tolerance", [0, -1, float("nan"), float("inf")])
def test_a_tolerance_is_positive(tolerance: float) -> None:
    with pytest.raises(remat.InvalidOption, match="tolerance must be a positive number"):
        measure(torch.sin, torch.randn(4, requires_grad=True), tolerance=tolerance)


def test_the_usual_strategies_are_named_after_what_they_do() -> None:
    assert list(usual_strategies(["byte-traffic"])) == [
        "eager",
        "autograd's own saves",
        "PyTorch",
        "PyTorch, aggressive_recomputation=True",
        "PyTorch, activation_memory_budget=0.5",
        "remat: byte-traffic",
    ]


def test_pytorchs_settings_do_what_they_do_when_set_globally() -> None:
    layers = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh()) for _ in range(2)]
    model, x = nn.Sequential(*layers), torch.randn(16, 32)

    def kept(step: Any, **settings: Any) -> Any:
        torch.compiler.reset()
        with no_cpu_kernels(), torch._functorch.config.patch(settings):  # what kernels compute is not looked at
            return saved_activations(step, model, x)[1]

    default = kept(torch.compile(model))
    for setting, value in (("aggressive_recomputation", True), ("activation_memory_budget", 0.5)):
        ours = usual_strategies()[f"PyTorch, {setting}={value}"](model)
        assert kept(ours) == kept(torch.compile(model), **{setting: value}) != default


def test_the_peak_counts_what_is_alive_at_once_and_only_what_is_new() -> None:
    held = [torch.zeros(2**18)]

    def call() -> None:
        for _ in range(3):
            a = torch.empty(2**18)  # 1 MiB; from the second round on, the last round's is alive as well
        held.clear()  # from before: does not make room
        b = torch.empty(2**18)
        del a, b

    assert peak_bytes(call, torch.device("cpu")) == 2 * 2**20


def test_nothing_of_an_earlier_step_is_alive_while_the_peak_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the saved activations were counted on kept its graph: on a full device, the next step ran out of memory."""
    results: list[weakref.ref[torch.Tensor]] = []

    class Squares(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            result = super().forward(input).square()
            results.append(weakref.ref(result))
            return result

    alive: list[int] = []

    def peak_bytes(*_: object) -> int:
        alive.append(sum(result() is not None for result in results))
        return 0

    monkeypatch.setattr("remat.pytorch.measure.training_step.peak_bytes", peak_bytes)
    measure(Squares(3, 3), torch.randn(2, 3), strategies={"eager": lambda model: model}, repeats=1)
    assert results
    assert set(alive) == {0}


def test_training_on_a_gpu_that_differs_from_eager_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here on a CPU, with a step that computes something else."""
    monkeypatch.setattr(gpu_training.remat, "compile", lambda model, **options: lambda x: model(x + 1))
    (wrong,) = gpu_training.measure(("pointwise chain", "save least"))
    assert wrong["verdict"] == "differs"
    assert "Mismatched elements" in wrong["detail"]


def test_the_options_of_a_strategy_are_equal_each_time_they_are_made() -> None:
    def options() -> dict[str, SplitBy]:
        made = {name: getattr(way, "args", ()) for name, way in usual_strategies().items()}
        return {name: args[-1] for name, args in made.items() if args and isinstance(args[-1], SplitBy)}

    one, two = options(), options()
    assert len(one) == 3
    assert one == two
    assert {*map(hash, one.values())} == {*map(hash, two.values())}
    assert len({*one.values()}) == 3
