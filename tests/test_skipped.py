"""A model that Dynamo skips is told of, once; whatever is compiled, cached or needs no gradient never is."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import remat

COMPLAINT = "runs eagerly, without a plan"


class BreakInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.linear(x).sin()
            torch._dynamo.graph_break()
        return x


def compiled(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return remat.compile(model, codegen=False, **options)


def complaints(step: Callable[..., Any], *args: Any) -> int:
    """How often a call warns; its results take part in a backward pass where they can."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = step(*args)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    for leaf in leaves:
        if leaf.requires_grad and torch.is_grad_enabled():
            leaf.sum().backward(retain_graph=True)
    return sum(COMPLAINT in str(warning.message) for warning in caught)


@pytest.mark.parametrize("make", [BreakInLoop, lambda: nn.LSTM(8, 8)])
def test_the_first_call_that_needs_gradients_warns_and_no_other(make: Callable[[], nn.Module]) -> None:
    step, x = compiled(make()), torch.randn(2, 3, 8)
    with torch.no_grad():
        assert complaints(step, x) == 0
    assert [complaints(step, x) for _ in range(3)] == [1, 0, 0]


def test_an_lstm_has_a_plan_if_dynamo_may_trace_it() -> None:
    with torch._dynamo.config.patch(allow_rnn=True):
        step = compiled(model := nn.LSTM(8, 8))
        x = torch.randn(2, 3, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(step(x)[0].square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(model(x)[0].square().sum(), x)[0])
    assert step.report().graphs


def test_a_function_is_watched_as_well() -> None:
    def loop(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    step = compiled(loop)
    with pytest.warns(UserWarning, match=r"loop runs eagerly, without a plan: Dynamo compiled nothing of it"):
        step(torch.randn(4, requires_grad=True))
    assert complaints(step, torch.randn(4, requires_grad=True)) == 0


def with_break(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


QUIET: dict[str, tuple[Callable[..., Any], bool]] = {
    "compiled": (nn.Sequential(nn.Linear(8, 8), nn.Tanh()), False),
    "function": (torch.sin, True),
    "graph break": (with_break, True),
    "views only": (lambda x: x.view(-1)[1:], True),
    "identity": (nn.Identity(), True),
    "checkpoint": (lambda x: checkpoint(torch.sin, x, use_reentrant=False), True),
    "no gradient": (torch.sin, False),
    "frozen": (nn.Linear(8, 8).requires_grad_(False), False),
    "nothing to trace": (lambda x: 3, True),
    "several results": (lambda x: {"a": x, "b": (x.sin(), None, 2)}, True),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_false_warning(name: str) -> None:
    """Nor of a second compilation, which Dynamo answers from its own cache."""
    model, requires_grad = QUIET[name]
    x = torch.randn(4, 8, requires_grad=requires_grad)
    for _ in range(2):
        step = compiled(model)
        assert [complaints(step, x) for _ in range(2)] == [0, 0]
    with torch.no_grad():
        assert complaints(compiled(model), x) == 0


@pytest.mark.parametrize("compilations", [1, 2])
def test_tensors_that_wrap_others_have_no_address(compilations: int) -> None:
    """As DTensor, of which the parameters of tensor-parallel layers are. A second compilation is a cache hit."""
    for _ in range(compilations):
        x = TwoTensor(torch.randn(4, 8), torch.randn(4, 8)).requires_grad_()
        assert complaints(compiled(torch.sin), x) == 0


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_under_a_transform_a_model_runs_as_torch_compile_would(transform: Callable[..., Any]) -> None:
    step = compiled(lambda x: x.sin().sum())
    x = torch.randn(4, 8, requires_grad=True)
    torch.testing.assert_close(transform(step)(x), transform(lambda x: x.sin().sum())(x))


def test_no_false_warning_from_torchs_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitioner is not called, and there is a plan nevertheless."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    for _ in range(2):
        torch.compiler.reset()
        assert complaints(remat.compile(model), x) == 0
    assert complaints(remat.compile(model), x) == 0  # Dynamo's own cache


def test_inside_another_compilation_nothing_breaks() -> None:
    inner = compiled(nn.Linear(8, 8))
    inner_function = compiled(torch.sin)

    def outer(x: Tensor) -> Tensor:
        return inner_function(inner(x)).exp()

    x = torch.randn(4, 8)
    step = torch.compile(outer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(x), inner._orig_mod(x).sin().exp())  # type: ignore[attr-defined]


def test_a_module_is_left_as_torch_made_it() -> None:
    step = compiled(nn.Linear(8, 8))
    again = copy.deepcopy(step)
    step(torch.randn(4, 8))
    assert "first" not in repr(step.forward)  # type: ignore[attr-defined]
    again(torch.randn(4, 8))
    assert complaints(again, torch.randn(4, 8)) == 0


class SkippedLayer(nn.Module):
    """The loss is compiled, the layers before it are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.skipped = nn.Linear(8, 8), BreakInLoop()

    def forward(self, x: Tensor) -> Tensor:
        return self.skipped(self.first(x)).square().mean()


def test_parameters_that_only_eager_operators_read_are_told_of() -> None:
    """Else the report would say that a budget is kept, of a model whose memory no plan knows."""
    step, x = compiled(SkippedLayer(), cost_model="memory-budget:budget=0.5"), torch.randn(4, 8)
    with pytest.warns(UserWarning, match=r"reads 2 of 4 parameters \(the first is skipped\.linear\.weight\)"):
        step(x).backward()
    assert complaints(step, x) == 0
    assert COMPLAINT in (report := str(step.report()))
    assert "budget: kept" not in report


class Again(torch.autograd.Function):
    """Computes a module again in the backward pass, in a way that Dynamo does not trace: a reversible block."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module, saves: bool) -> Tensor:
        ctx.module, ctx.x = module, x.detach()
        if saves:
            ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            ctx.module(x).backward(gradient)
        return x.grad, None, None


class Reversible(nn.Module):
    def __init__(self, saves: bool = True) -> None:
        super().__init__()
        self.first, self.block, self.saves = nn.Linear(8, 8), nn.Linear(8, 8), saves

    @torch._dynamo.disable
    def again(self, x: Tensor) -> Tensor:
        return Again.apply(x, self.block, self.saves)

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.first(x).sin()).square().mean()


def test_a_function_of_ones_own_that_dynamo_does_not_trace_is_named() -> None:
    """It has its parameters in its context, where the graph of autograd does not show them."""
    step = compiled(Reversible(), cost_model="memory-budget:budget=0.5")
    with pytest.warns(UserWarning, match=r"and saves tensors in Again, a torch\.autograd\.Function: no prediction"):
        step(torch.randn(4, 8)).backward()
    assert "budget: kept" not in str(step.report())
    assert complaints(compiled(Reversible(saves=False)), torch.randn(4, 8)) == 0  # as the hooks of FSDP


class Ended(Reversible):
    """Runs the backward pass of its function itself, so that nothing is saved any more."""

    @torch._dynamo.disable
    def again(self, x: Tensor) -> Tensor:
        y = super().again(x).sum()
        y.backward()
        return y


def test_a_function_whose_backward_pass_has_run_holds_nothing() -> None:
    """To look at what it saved raised an error, in the call of the user."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(Ended())(torch.randn(4, 8))
    assert not any("saves tensors in" in str(warning.message) for warning in caught)


def test_a_function_that_ran_before_the_call_is_no_part_of_the_model() -> None:
    """Its result comes in an argument that torch does not look into."""
    holder = SimpleNamespace(x=Again.apply(torch.randn(4, 8, requires_grad=True), nn.Linear(8, 8), True))
    assert complaints(compiled(lambda held: held.x.sin()), holder) == 0


def test_what_made_the_arguments_is_no_part_of_the_model() -> None:
    first = nn.Linear(8, 8)
    model = nn.Sequential(first, nn.Tanh())
    assert complaints(compiled(model), first(torch.randn(4, 8))) == 0


class FrozenBody(nn.Module):
    """Its compiled part needs no gradients, so it has no node of autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8)

    @torch._dynamo.disable
    def eager_head(self, x: Tensor) -> Tensor:
        return self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.eager_head(self.body(x).sin())


def test_a_compiled_part_that_needs_no_gradients_is_not_called_nothing() -> None:
    with pytest.warns(UserWarning, match=r"reads 2 of 2 parameters \(the first is head\.weight\)"):
        compiled(FrozenBody())(torch.randn(4, 8))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda p: p[0],
    "slice": lambda p: p[:4, 2:3],
    "expand": lambda p: p[:1].expand(4, 8),
    "unsqueeze": lambda p: p[:4].unsqueeze(0).squeeze(0),
    "diagonal": lambda p: p.diagonal(),
    "split": lambda p: p.split(4)[1],
    "unbind": lambda p: p.unbind()[1],
    "unfold": lambda p: p.unfold(0, 2, 2)[..., 0],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_parameter_is_not_read_eagerly(view: str) -> None:
    """Behind a graph break, torch replays the view of a parameter; nothing is computed then."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            row, y = VIEWS[view](self.table), self.linear(x)
            torch._dynamo.graph_break()
            return y * row

    assert complaints(compiled(Table()), torch.randn(4, 8)) == 0
