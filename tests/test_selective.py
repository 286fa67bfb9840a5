"""A plan in eager PyTorch: selective checkpointing keeps what it saves, repeats the rest, and says what differs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from depth import deep, drawn
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import SAC_IGNORED_OPS, checkpoint, set_checkpoint_early_stop

import remat
from costmodels import ByteTraffic
from remat import CaptureError, CostModel, Graph, InvalidOption, InvalidPlan, Plan
from remat.answer.plan_facts import PlanFacts
from remat.plugin import Terms
from remat.pytorch.eager.policy import KeptCall, SelectivePolicy
from remat.pytorch.eager.selective import Observed

aten = torch.ops.aten


class Block(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + F.dropout(self.out(attended), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


def mlp() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)), torch.randn(4, 8)


def conv_net() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()), torch.randn(2, 3, 12, 12)


def block() -> tuple[nn.Module, Tensor]:
    return Block(), torch.randn(2, 4, 16)


def autocast() -> tuple[nn.Module, Tensor]:
    class Half(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    return Half(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)), torch.randn(4, 8)


MODELS = [mlp, block, conv_net, autocast]


@cache
def captured(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[nn.Module, Tensor, Graph]:
    torch.manual_seed(0)
    model, x = make()
    return model, x, remat.capture(model, x)


@dataclass(frozen=True)
class LeastRecomputation(CostModel):
    """Operations that run twice, under a limit on what is saved."""

    budget_bytes: int
    name: ClassVar[str] = "least-recomputation"
    unit: ClassVar[str] = "flops"

    def terms(self, graph: Graph) -> Terms:
        return replace(Terms.nothing(graph), recompute_cost=graph.flops, budget_bytes=self.budget_bytes)


def solved(graph: Graph, cost_model: CostModel, solver: str = "networkx") -> Plan:
    return remat.solve(cost_model.pose(graph), solver).plan


def under_budget(graph: Graph) -> Plan:
    everything = solved(graph, LeastRecomputation(2**40), "pulp")
    return solved(graph, LeastRecomputation(PlanFacts.of(graph, everything).saved_bytes // 2), "pulp")


def keeping(graph: Graph, *names: str) -> Plan:
    """A plan that saves these values, and what cannot be recomputed."""
    problem = remat.plugin.base_problem(graph)
    saved = problem.cannot_recompute.mask | np.isin(problem.names, names)
    return remat.Choice.from_saved(problem, saved).plan(problem)


PLANS: dict[str, Callable[[Graph], Plan]] = {
    "conservative": lambda graph: solved(graph, ByteTraffic()),
    "aggressive": lambda graph: solved(graph, ByteTraffic(mode="aggressive")),
    "save least": lambda graph: remat.solve(remat.plugin.base_problem(graph), "networkx").plan,
    "under a budget": under_budget,
}


class Spy(TorchDispatchMode):
    """What really runs below torch's checkpointing, and which storages it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []
        self.results: list[Any] = []
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in SAC_IGNORED_OPS:
            self.operators.append(func)
            self.results.append(result)
        return result

    def forget(self, outside: list[Tensor]) -> None:
        """Lets go of the results, but remembers which storages they had, apart from those of `outside`."""
        ours = {tensor.untyped_storage()._cdata for tensor in outside}
        for leaf in tree_leaves(self.results):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in ours:
                storage = leaf.untyped_storage()
                self.storages.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.results.clear()

    def alive_bytes(self) -> int:
        return sum(size for reference, size in self.storages.values() if not reference.expired())


class Watched:
    """A policy whose two passes are spied upon."""

    def __init__(self, policy: SelectivePolicy) -> None:
        self.policy = policy
        self.forward, self.again = Spy(), Spy()

    def contexts(self) -> tuple[Any, Any]:
        forward, again = self.policy.contexts()
        return Both(self.forward, forward), Both(self.again, again)


class Both(ExitStack):
    def __init__(self, outer: Any, inner: Any) -> None:
        super().__init__()
        self.pair = (outer, inner)

    def __enter__(self) -> Any:
        for context in self.pair:
            self.enter_context(context)
        return self


def checkpointed(model: Any, policy: SelectivePolicy | Watched) -> Callable[..., Tensor]:
    """The model as a region of torch's selective checkpointing."""
    return lambda *args: checkpoint(model, *args, use_reentrant=False, context_fn=policy.contexts)


def gradients(step: Callable[..., Any], model: Any, *args: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    leaves = list(model.parameters()) if isinstance(model, nn.Module) else list(args)
    return list(torch.autograd.grad(step(*args).square().sum(), leaves))


def check(graph: Graph, plan: Plan, policy: SelectivePolicy, model: Any, *args: Tensor) -> None:
    """The whole promise, for one plan."""
    copies = {aten.empty_like.default, aten.copy_.default} if plan.offloaded else set[Any]()

    def of(operators: Iterable[Any]) -> list[Any]:
        """The operators but for those that copy to the host and back, of which the model has some itself."""
        return [op for op in operators if op not in copies]

    spied = Watched(policy)
    expected = gradients(model, model, *args)
    assert all(map(torch.equal, gradients(checkpointed(model, spied), model, *args), expected))
    kept = {call.position for call in policy.kept}
    assert of(spied.forward.operators) == of(policy.operators)
    assert of(spied.again.operators) == of(policy.operators[i] for i in policy.repeated)
    assert not kept & set(policy.repeated)

    with set_checkpoint_early_stop(False):
        spied = Watched(policy)
        gradients(checkpointed(model, spied), model, *args)
    assert of(spied.again.operators) == of(op for i, op in enumerate(policy.operators) if i not in kept)

    spied = Watched(policy)
    result = checkpointed(model, spied)(*args)
    history = result.grad_fn  # keeps what the backward pass needs, without the result itself
    del result
    spied.forward.forget([*args, *model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else [*args])
    assert history is not None
    assert spied.forward.alive_bytes() == policy.kept_bytes + policy.host_bytes

    facts, hosted = PlanFacts.of(graph, plan), {graph.index[name] for name in plan.offloaded}
    bases = {int(graph.base[graph.index[name]]) for name, _ in policy.left_out}
    left_out_bytes = sum(int(graph.storage_bytes[base]) for base in bases - hosted)
    assert policy.kept_bytes - policy.along_bytes + left_out_bytes == facts.saved_bytes
    assert policy.host_bytes + sum(int(graph.storage_bytes[base]) for base in bases & hosted) == facts.offloaded_bytes


EACH_ONCE = list(zip(MODELS, PLANS, strict=True))
"""Each model, and each way to plan, once: the rest of the table is deep."""


@pytest.mark.parametrize(
    ("make", "which"),
    [
        pytest.param(make, which, id=f"{which}-{make.__name__}", marks=() if (make, which) in EACH_ONCE else deep)
        for make, which in product(MODELS, PLANS)
    ],
)
def test_eager_keeps_what_the_plan_saves_and_repeats_the_rest(make: Callable[[], Any], which: str) -> None:
    model, x, graph = captured(make)
    plan = PLANS[which](graph)
    policy = remat.selective_policy(model, plan, x)
    check(graph, plan, policy, model, x)
    if make is mlp and which != "under a budget":  # which saves what only the backward pass computes
        assert policy.left_out == ()


@cache
def observed_block() -> tuple[nn.Module, Tensor, Observed]:
    model, x, _ = captured(block)
    return model, x, Observed.of(model, x)


@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1), hosted=st.sampled_from([0.0, 0.5, 1.0]))
@drawn(30)
def test_holds_for_every_legal_plan(seed: int, share: float, hosted: float) -> None:
    model, x, observed = observed_block()
    graph = observed.graph
    problem = remat.plugin.base_problem(graph, offload=True)
    chosen, away = np.random.default_rng(seed).random((2, len(problem))) < [[share], [hosted]]
    saved = (chosen | problem.cannot_recompute.mask) & ~problem.cannot_save.mask
    plan = remat.Choice.from_saved(problem, saved, away & ~problem.offload.banned.mask).plan(problem)
    check(graph, plan, observed.policy(plan), model, x)


def test_what_is_offloaded_comes_back_as_often_as_it_is_needed() -> None:
    model, x, graph = captured(mlp)
    plan = replace(PLANS["aggressive"](graph), offloaded=("addmm",))
    policy = remat.selective_policy(model, plan, x)
    assert policy.report().splitlines()[0] == "keeps 0 B from 1 of 6 operators, and 512 B on the host"
    assert (policy.kept_bytes, policy.host_bytes) == (0, 512)
    loss = checkpointed(model, policy)(x).square().sum()
    parameters = list(model.parameters())
    once = torch.autograd.grad(loss, parameters, retain_graph=True)
    assert all(map(torch.equal, once, torch.autograd.grad(loss, parameters)))
    assert all(map(torch.equal, once, gradients(model, model, x)))


def test_the_mlp_repeats_all_but_the_product_that_the_plan_saves() -> None:
    model, x, graph = captured(mlp)
    policy = remat.selective_policy(model, PLANS["aggressive"](graph), x)
    assert [(call.op, call.values, call.along_bytes) for call in policy.kept] == [("aten.addmm.default", ("addmm",), 0)]
    repeated = [policy.operators[i] for i in policy.repeated]
    assert repeated == [aten.t.default, aten.gelu.default, aten.native_layer_norm.default, aten.t.default]


class Projections(nn.Module):
    """Three products of the same sizes, the first one twice: the k-th product is not the k-th in the joint graph."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.v(x).sin() * self.v(x).sin() * self.q(x).sin() * self.k(x).sin()


@pytest.mark.parametrize(("value", "layer"), [("mm", "v"), ("mm_2", "q"), ("mm_3", "k")])
def test_equal_operators_are_told_apart(value: str, layer: str) -> None:
    model, x = Projections(), torch.randn(4, 8)
    spied = Watched(remat.selective_policy(model, keeping(remat.capture(model, x), value), x))
    checkpointed(model, spied)(x)
    assert [kept.values for kept in spied.policy.kept] == [(value,)] * (2 if layer == "v" else 1)
    for kept in spied.policy.kept:
        assert torch.equal(spied.forward.results[kept.position], getattr(model, layer)(x))


def test_what_reads_dropout_tells_which_operator_computes_it() -> None:
    """Eager's dropout on CPU is not the compiler's, but what it returns takes the same place."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 8)), torch.randn(4, 8)
    graph = remat.capture(model, x)
    (tanh,) = (i for i, op in enumerate(graph.ops) if op == "aten.tanh.default")
    (dropped,) = graph.producers[graph.consumers == tanh]
    plan = keeping(graph, graph.names[dropped])
    policy = remat.selective_policy(model, plan, x)
    if graph.names[dropped] in plan.saved:
        assert [call.op for call in policy.kept] == ["aten.mul.Tensor"]
    check(graph, plan, policy, model, x)


def dropout_twice(x: Tensor) -> Tensor:
    first, _ = torch.native_dropout(x.sin(), 0.5, True)
    second, _ = torch.native_dropout(first.exp(), 0.5, True)
    return second.cos()


def test_random_numbers_are_kept_only_if_none_is_drawn_again_after_them() -> None:
    x = torch.randn(64, requires_grad=True)
    graph, observed = remat.capture(dropout_twice, x), Observed.of(dropout_twice, x)
    for masks in (["gt"], ["gt_1"], ["gt", "gt_1"]):
        plan = keeping(graph, *masks)
        policy = observed.policy(plan)
        check(graph, plan, policy, dropout_twice, x)
        assert [call.values for call in policy.kept] == ([] if masks == ["gt"] else [(name,) for name in masks])
    policy = observed.policy(keeping(graph))
    first = policy.operators.index(aten.native_dropout.default)
    wrong = replace(policy, kept=(KeptCall(first, "aten.native_dropout.default", ("gt",), 0, 0),))
    ours, theirs = (gradients(f, dropout_twice, x)[0] for f in (checkpointed(dropout_twice, wrong), dropout_twice))
    assert (ours - theirs).abs().max() > 0.1  # what the rule prevents


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sin() * super().forward(x).cos()


def test_equal_calls_that_are_one_value_are_all_kept() -> None:
    twice, x = Twice(8, 8), torch.randn(4, 8)
    graph = remat.capture(twice, x)
    plan = solved(graph, ByteTraffic())
    policy = remat.selective_policy(twice, plan, x)
    assert [call.values for call in policy.kept] == [("addmm",), ("addmm",)]
    assert policy.along_bytes == 4 * 8 * 4
    check(graph, plan, policy, twice, x)


def test_results_that_are_overwritten_later_are_left_out_with_the_reason() -> None:
    model, x, graph = captured(conv_net)
    policy = remat.selective_policy(model, PLANS["conservative"](graph), x)
    assert "results of aten.native_batch_norm.default are overwritten by aten.relu_.default" in policy.report()
    assert "computed inside aten.max_pool2d_with_indices.default" in policy.report()
    assert "saved along" in policy.report()
    assert "aten.native_batch_norm.default" in policy.writes_again


def test_what_checkpointing_repeats_for_nothing_is_named() -> None:
    """cos(cos(a+b+c+d)): the plan recomputes one cosine; a checkpoint also adds again."""

    def example(*xs: Tensor) -> Tensor:
        a, b, c, d = xs
        return (a + b + c + d).cos().cos()

    xs = tuple(torch.randn(8, requires_grad=True) for _ in range(4))
    graph = remat.capture(example, *xs)
    plan = solved(graph, ByteTraffic())
    policy = remat.selective_policy(example, plan, *xs)
    assert [call.values for call in policy.kept] == [("add_2",)]
    assert policy.idle == ("aten.add.Tensor (add)", "aten.add.Tensor (add_1)")
    check(graph, plan, policy, example, *xs)


def test_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model, x, graph = captured(conv_net)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    remat.selective_policy(model, PLANS["aggressive"](graph), x)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_smaller_batch_keeps_the_same_operators() -> None:
    model, x, graph = captured(mlp)
    policy = remat.selective_policy(model, PLANS["conservative"](graph), x)
    last = torch.randn(3, 8)
    assert all(map(torch.equal, gradients(checkpointed(model, policy), model, last), gradients(model, model, last)))


def test_under_autocast_a_region_may_run_twice() -> None:
    """Autocast keeps its copies of weights from one call to the next, and none for the backward pass."""
    model, x, _ = captured(mlp)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        policy = remat.selective_policy(model, PLANS["aggressive"](remat.capture(model, x)), x)
        steps = [checkpointed(model, policy)(x) for _ in range(2)]
        expected = model(x)
        assert torch.is_autocast_cache_enabled()
    leaves = list(model.parameters())
    reference = torch.autograd.grad(expected.float().square().sum(), leaves)
    for step in steps:
        assert all(map(torch.equal, torch.autograd.grad(step.float().square().sum(), leaves), reference))


class Positive(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sin()[x > 0].exp() * 2


def test_what_shapes_depend_on_contents_is_not_looked_into() -> None:
    model, x = Positive(8, 8), torch.randn(4, 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph = remat.capture(model, x)
        policy = remat.selective_policy(model, PLANS["conservative"](graph), x)
    assert all(map(torch.equal, gradients(checkpointed(model, policy), model, x), gradients(model, model, x)))
    assert ("addmm",) in [call.values for call in policy.kept]


def test_a_plan_for_another_model_is_refused() -> None:
    model, x = mlp()
    plan = PLANS["aggressive"](captured(block)[2])
    with pytest.raises(InvalidPlan, match="made for another graph"):
        remat.selective_policy(model, plan, x)
    with pytest.raises(InvalidPlan, match="not a value of"):
        remat.selective_policy(model, replace(plan, graph=()), x)
    with pytest.raises(InvalidPlan):
        remat.selective_policy(model, Plan((), ("addmm",)), x)


def test_what_is_no_model_or_no_plan_is_one_clear_error() -> None:
    model, x, graph = captured(mlp)
    plan = PLANS["aggressive"](graph)
    with pytest.raises(InvalidOption, match="the first argument must be a model, or a function, got Plan"):
        remat.selective_policy(plan, model, x)  # type: ignore[arg-type]
    solution = remat.solve(ByteTraffic().pose(graph))
    with pytest.raises(InvalidOption, match=r"plan must be a remat\.Plan .*, got <Solution"):
        remat.selective_policy(model, solution, x)  # type: ignore[arg-type]


def test_a_region_that_has_changed_is_refused_when_it_runs() -> None:
    model, x, graph = captured(mlp)
    policy = remat.selective_policy(model, PLANS["aggressive"](graph), x)
    longer = nn.Sequential(model, nn.Tanh())
    with pytest.raises(InvalidPlan, match=r"operator 6 is now aten.tanh.default, but was its end"):
        checkpointed(longer, policy)(x)
    with pytest.raises(InvalidPlan, match=r"operator 2 is now aten.relu.default, but was aten.gelu.default"):
        checkpointed(nn.Sequential(model[0], nn.ReLU()), policy)(x)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5)
        return self.linear(x) * self.scale.exp()


class Noisy(nn.Linear):
    """Multiplies by noise of some generator that is not torch's default one."""

    def __init__(self, draw: Callable[[Tensor], Any]) -> None:
        super().__init__(4, 4)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) * self.draw(x)).sin()


OWN = torch.Generator()


class Break(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        h = self[0](x).sin()
        torch._dynamo.graph_break()
        return self[0](h).sin()


class Branch(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        h = self[0](x)
        return torch.cond(h.sum() > 0, torch.sin, torch.cos, (h,))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Counting(), r"aten.mul_.Tensor overwrites a buffer or an argument that aten.exp.default reads"),
        (Noisy(lambda x: torch.rand(x.shape, generator=OWN)), r"aten\.rand\.generator draws from a torch\.Generator"),
        (Noisy(lambda x: random.random()), "the model draws random numbers of Python or numpy"),
        (Noisy(lambda x: float(np.random.rand())), "the model draws random numbers of Python or numpy"),
        (Break(nn.Linear(4, 4)), "one joint graph, but the model has 2"),
        (Branch(nn.Linear(4, 4)), "torch's selective checkpointing cannot run this model eagerly"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_that_no_checkpoint_gets_right_is_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        remat.selective_policy(model, Plan((), ()), torch.randn(2, 4))
