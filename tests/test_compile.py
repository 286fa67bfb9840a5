"""Plans that run: through TorchInductor, with gradients that are right, or not at all."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from depth import deep
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.models.save_everything import SaveLeast
from remat import Plan, Problem, Solution
from remat.plugin import Solver
from remat.pytorch import Partitioner

Step = Callable[..., Tensor]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).sigmoid().tanh())


def gradients(step: Step, model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    step(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def mutates_then_uses(x: Tensor, y: Tensor) -> Tensor:
    h = x.sin() + y * 2
    y.add_(1)
    return (h.exp() * y).cos()


@pytest.mark.parametrize(("mode", "codegen"), [("conservative", True), ("aggressive", False)])
def test_the_backward_never_reads_an_input_that_the_forward_overwrote(mode: str, codegen: bool) -> None:
    """torch.compile's own partitioner gets this one wrong: tenfold on 2.11, 2.13 and 2.15."""

    def gradient(f: Step) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        x, y = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8)
        f(x, y).sum().backward()
        return x.grad, y

    ours = remat.compile(mutates_then_uses, cost_model=ByteTraffic(mode=mode), codegen=codegen)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient(ours), gradient(mutates_then_uses))


def writes_into_a_cache(x: Tensor, cache: Tensor) -> Tensor:
    cache[:4] = x.detach().exp()
    weights = (x.sin() @ cache.clone().t()).softmax(-1)
    y = weights @ cache.clone()
    cache[2:] = 0
    return y.sin() + cache.sum()


@torch.library.custom_op("remat_tests::count", mutates_args={"counter"})
def count(x: Tensor, counter: Tensor) -> Tensor:
    counter.add_(1)
    return x * 2


count.register_fake(lambda x, counter: torch.empty_like(x))  # pyright: ignore[reportUnknownLambdaType]


def writes_by_a_custom_operator(x: Tensor, cache: Tensor) -> Tensor:
    h = (x.sin() + cache * 2).exp()
    return h * count(x.detach(), cache) * cache.cos()


ROWS = {"writes_into_a_cache": 6, "writes_by_a_custom_operator": 4}


@pytest.mark.parametrize(
    "cost_model", [SaveLeast(), pytest.param(ByteTraffic(mode="aggressive"), marks=deep)], ids=["least", "aggressive"]
)
@pytest.mark.parametrize("function", [writes_into_a_cache, writes_by_a_custom_operator])
def test_what_inductor_computes_in_an_input_is_not_saved_there(function: Step, cost_model: remat.CostModel) -> None:
    """torch.compile's own partitioner gets both wrong on 2.13: the gradient of one, the cache of the other."""

    def after_a_step(f: Step) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        x, cache = torch.rand(4, 8, requires_grad=True), torch.rand(ROWS[function.__name__], 8)
        f(x, cache).square().sum().backward()
        return x.grad, cache

    ours = remat.compile(function, cost_model=cost_model)
    torch.testing.assert_close(after_a_step(ours), after_a_step(function), rtol=1e-4, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class SavesNothing(Solver):
    name: ClassVar[str] = "saves-nothing"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        honest = remat.solve(problem)
        return dataclasses.replace(honest, plan=Plan((), honest.plan.recomputed if honest.plan else ()))


def test_where_no_gradient_is_needed_a_model_compiles_as_usual() -> None:
    model, x = Mlp(), torch.randn(4, 32)
    torch.testing.assert_close(remat.compile(torch.sin)(x), x.sin())
    with torch.no_grad():
        torch.testing.assert_close(remat.compile(model)(x), model(x))


def test_modes_and_options_of_torch_compile_are_passed_on() -> None:
    x = torch.randn(4, requires_grad=True)
    step = remat.compile(torch.sin, mode="max-autotune-no-cudagraphs", options={"max_fusion_size": 8}, fullgraph=True)
    torch.testing.assert_close(step(x), x.sin())


def test_another_backend_is_refused() -> None:
    for options in ({"backend": "eager"}, {"options": {"custom_partitioner_fn": Partitioner.of()}}):
        with pytest.raises(remat.InvalidOption, match="sets backend= and custom_partitioner_fn itself"):
            remat.compile(torch.sin, **options)  # type: ignore[arg-type]


def test_torchs_errors_name_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("remat.pytorch.run.budget_backend.compile_fx", broken)
    with pytest.raises(RuntimeError, match=r"^backend='remat' raised:"):
        remat.compile(nn.Linear(2, 2), cost_model=MemoryBudget(0.5))(torch.ones(2, 2))


def test_unknown_names_are_refused_when_asked_not_when_run() -> None:
    with pytest.raises(remat.errors.UnknownName, match="did you mean 'ortools'"):
        remat.compile(torch.sin, solver="ortool")
    with pytest.raises(remat.errors.UnknownName, match="did you mean 'byte-traffic'"):
        remat.compile(torch.sin, cost_model="byte-trafic")


class ScalesByOldBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.scale.clone()
        self.scale.mul_(0.5)
        return y


class CountsBackwardCalls(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.count.add_(1)
        return gradient, None


class ScalesByOldBufferAndWritesItTwice(ScalesByOldBuffer):
    def forward(self, x: Tensor) -> Tensor:
        return CountsBackwardCalls.apply(super().forward(x), self.scale)


@pytest.mark.parametrize("copies_again", [False, True])
@pytest.mark.parametrize("kind", [ScalesByOldBuffer, ScalesByOldBufferAndWritesItTwice])
def test_the_backward_reads_the_old_value_of_an_overwritten_buffer_from_a_copy(
    kind: type[ScalesByOldBuffer], copies_again: bool
) -> None:
    model, x = kind(), torch.randn(4, 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected = [gradients(model, model, x), gradients(model, model, x), model.scale.clone()]
    model.load_state_dict(state)
    step = remat.compile(model, recompute_parameter_copies=copies_again, codegen=not copies_again)
    torch.testing.assert_close([gradients(step, model, x), gradients(step, model, x), model.scale], expected)


def writes_into_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    v = y[1:3]
    v.mul_(2)
    v.sin_()
    return y.exp() * v.sum()


def test_saved_values_that_share_memory_are_not_overwritten() -> None:
    """Inductor's backward writes over saved tensors, and does not ask which of them are views of others."""
    x = torch.randn(4, 8, requires_grad=True)
    graph = remat.capture(writes_into_a_view, x)
    problem = remat.plugin.base_problem(graph)
    slices = [graph.ops[graph.index[name]].startswith("aten.slice") for name in problem.names]
    plan = remat.Choice.from_saved(problem, np.array(slices)).plan(problem)
    owners = [graph.names[graph.base[graph.index[name]]] for name in plan.saved]
    assert len(set(owners)) < len(owners), "two values of one storage are saved"
    step = remat.compile(writes_into_a_view, plan=plan)
    expected, seen = (torch.autograd.grad(f(x).sum(), x) for f in (writes_into_a_view, step))
    torch.testing.assert_close(seen, expected)


WRONG = "the answer of SavesNothing() is wrong"
TIGHT = "memory-budget:budget=1KB,of=peak"


@pytest.mark.parametrize(
    ("compiled", "kind", "said"),
    [
        (partial(remat.compile, solver=SavesNothing()), remat.InvalidPlan, f"{WRONG}: the plan is not legal"),
        (
            partial(remat.compile, solver=SavesNothing(), codegen=False),
            remat.InvalidPlan,
            f"{WRONG}: the plan is not legal",
        ),
        (partial(remat.compile, cost_model=TIGHT), remat.Infeasible, "no plan has a peak of at most 1000 bytes"),
        (
            partial(torch.compile, backend="remat", options={"remat.cost_model": TIGHT}),
            remat.Infeasible,
            "no plan has a peak of at most 1000 bytes",
        ),
        (
            partial(torch.compile, options={"custom_partitioner_fn": Partitioner.of(TIGHT)}),
            remat.Infeasible,
            "no plan has a peak of at most 1000 bytes",
        ),
        (
            partial(torch.compile, backend="remat", options={"remat.model": 1}),
            remat.InvalidOption,
            "options must name one of remat.cost_model",
        ),
    ],
)
def test_an_error_of_ours_arrives_as_it_is(
    compiled: Callable[[nn.Module], Step], kind: type[remat.RematError], said: str
) -> None:
    """Without a budget, Dynamo made an error of its own of it."""
    with pytest.raises(kind) as caught:
        compiled(Mlp())(torch.randn(8, 32))
    assert str(caught.value).startswith(said)
    assert "BackendCompilerFailed" not in "".join(traceback.format_exception(caught.value))


BUDGET = "memory-budget:budget=64KB"
STAGES = {
    "inputs that are written to": ("remat.pytorch.read.mutated_inputs", "keep_old_values", BUDGET),
    "sizes to plan for": ("remat.pytorch.run.plan_request", "sizes_to_plan_for", BUDGET),
    "reading the graph": ("remat.pytorch.run.partitioner", "extract", BUDGET),
    "its device": ("remat.pytorch.read.extract", "device_facts", "byte-traffic"),
    "choosing": ("remat.pytorch.run.plan_request", "choose", "byte-traffic"),
    "choosing within a budget": ("remat.pytorch.run.shared_budget", "search", BUDGET),
    "checking": ("remat.pytorch.run.partitioner", "check_plan", "byte-traffic"),
    "what is handed over": ("remat.pytorch.run.partitioner", "handed_over", BUDGET),
    "what a budget holds": ("remat.pytorch.run.shared_budget", "subproblem_of", BUDGET),
    "guards on sizes": ("remat.pytorch.run.plan_request", "keep_within", BUDGET),
    "the two graphs": ("remat.pytorch.run.partitioner", "check_nothing_runs_twice", BUDGET),
    "copies to the host": ("remat.pytorch.run.partitioner", "add_copies", "byte-traffic"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_fallback_holds_for_whatever_goes_wrong_before_a_plan_runs(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, function, cost_model = STAGES[stage]

    class Broken(Exception):
        pass

    def fails(*_: Any, **__: Any) -> None:
        raise Broken("on purpose")

    monkeypatch.setattr(importlib.import_module(module), function, fails)
    model, x = Mlp(), torch.randn(8, 32)
    expected = gradients(model, model, x)
    step = remat.compile(model, cost_model=cost_model, on_error="fallback", codegen=False)
    with pytest.warns(UserWarning, match="falls back to PyTorch's partitioner: Broken: on purpose"):
        torch.testing.assert_close(gradients(step, model, x), expected)
    torch.testing.assert_close(gradients(step, model, x), expected)
    assert "runs PyTorch's own plan: Broken: on purpose" in str(step.report())
    assert not step.report().graphs
    torch.compiler.reset()
    with pytest.raises(Exception, match="on purpose"):
        gradients(remat.compile(model, cost_model=cost_model, codegen=False), model, x)


def test_a_fallback_is_never_silent_because_it_was_cached() -> None:
    partitioner = Partitioner.of(on_error="fallback")
    assert partitioner.uuid() != partitioner.uuid()
    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)  # a product: no kernel has to be compiled
    for _ in range(2):
        torch.compiler.reset()
        step = remat.compile(model, solver=SavesNothing(), on_error="fallback")
        with pytest.warns(UserWarning, match="falls back to PyTorch's partitioner: the answer of SavesNothing"):
            ours = gradients(step, model, x)
        torch.testing.assert_close(ours, gradients(model, model, x))


@pytest.mark.parametrize("flag", ["copy_stream", "codegen", "recompute_parameter_copies"])
def test_a_flag_is_true_or_false(flag: str) -> None:
    """The text "no" would be true."""
    said: dict[str, Any] = {flag: "no"}
    with pytest.raises(remat.InvalidOption, match=f"{flag} must be True or False, got 'no'"):
        remat.compile(torch.sin, **said)


@pytest.mark.parametrize("cost_model", ["byte-traffic", "memory-budget:budget=0.5", "memory-budget:budget=2KB,of=peak"])
@pytest.mark.parametrize("lengths", [(3, 5, 2), (7, 2)])
def test_jagged_tensors(cost_model: str, lengths: tuple[int, ...]) -> None:
    """Beside sizes, torch has a symbol for which lengths a jagged tensor has."""
    linear = nn.Linear(4, 4)

    def loss(x: Tensor) -> Tensor:
        return nn.functional.gelu(linear(x)).sin().values().sum()

    def gradient(step: Step) -> Tensor:
        torch.manual_seed(0)
        rows = [torch.randn(length, 4) for length in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        step(x).backward()
        return x.grad.values()

    step = remat.compile(loss, cost_model=cost_model, codegen=False)
    torch.testing.assert_close(gradient(step), gradient(loss))
    assert len(step.report().graphs) == 1


JAGGED = """
import remat, torch
x = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)], layout=torch.jagged, requires_grad=True)
step = lambda x: x.sin().cos().values().sum()
remat.compile(step, cost_model="memory-budget:budget=8MB", codegen=False, dynamic=True)(x).backward()
"""
NOT_CHECKED = "Larger ones are not checked, because torch cannot guard the sizes of a jagged tensor"


def test_no_guard_is_made_of_the_sizes_of_a_jagged_tensor() -> None:
    with pytest.warns(UserWarning, match=NOT_CHECKED):
        exec(JAGGED, {})


@deep
@pytest.mark.parametrize("seed", ["0", "1"])
def test_no_guard_is_made_in_whatever_order_names_are_hashed(seed: str) -> None:
    """It raised an AssertionError of torch, or did not."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", JAGGED], env=environment, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert NOT_CHECKED in done.stderr


def test_a_size_that_varies_may_be_the_least_one_now() -> None:
    x = torch.randn(2, 32)
    torch._dynamo.mark_dynamic(x, 0)
    step = remat.compile(Mlp(), cost_model="memory-budget:budget=40KB,of=peak", codegen=False)
    step(x).sum().backward()
    step(torch.randn(3, 32)).sum().backward()
    assert len(step.report().graphs) == 1
