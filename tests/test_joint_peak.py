"""Several graphs of a run keep one limit of the peak, counted at each moment."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from depth import deep, drawn
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import remat
from costmodels import MemoryBudget
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from remat.improve.call_sequence import CallSequence, GraphMemory
from remat.improve.joint_peak import JointPeak, JointPlans
from remat.improve.subproblem import Subproblem, subproblem_of
from remat.predict.buffers import Exchanged, StepMemory
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.run.live_calls import LiveCalls
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import partitioner_settings
from solvers import Lagrangian

WORDS, WIDTH, VOCABULARY = 128, 32, 2000


class WithItsOwnLoss(nn.Module):
    """Has layers in one graph and the loss in another, as a language model by `transformers` that is given labels."""

    def __init__(self, layers: int = 2, width: int = WIDTH, *, tied: bool = False) -> None:
        super().__init__()
        self.layers, self.tied = nn.ModuleList(nn.Linear(width, width) for _ in range(layers)), tied
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        if self.tied:  # as in Gemma 2: two gradients of the weight are added at the end
            x = x + self.head.weight[words]
        for layer in self.layers:
            x = x + layer(x.exp().cos()).tanh()
        logits = self.head(x).tanh() if self.tied else self.head(x)
        torch._dynamo.graph_break()
        return nn.functional.cross_entropy(logits, words), logits


def peak_of(step: Any, model: nn.Module, args: tuple[Tensor, ...], *, holds_logits: bool) -> int:
    """Traces the fourth step by torch's allocator; who holds the logits holds them over the backward pass."""

    def train() -> None:
        model.zero_grad(set_to_none=True)
        loss, logits = step(*args)
        if not holds_logits:
            del logits
        loss.backward()

    with no_cpu_kernels():
        for _ in range(3):
            train()
        model.zero_grad(set_to_none=True)
        return peak_bytes(train, torch.device("cpu"))


@pytest.mark.parametrize(
    ("width", "budget", "holds_logits"),
    [
        *((WIDTH, 0.3, False), (8 * WIDTH, 0.3, True)),
        *(pytest.param(WIDTH, budget, True, marks=deep) for budget in (0.3, 1.0)),
        *(pytest.param(*of, False, marks=deep) for of in ((WIDTH, 1.0), (8 * WIDTH, 0.3))),
    ],
)
def test_what_torch_keeps_with_two_graphs_is_reached_and_kept(width: int, budget: float, *, holds_logits: bool) -> None:
    """The sum of what both save would exceed the limit: it counts the logits in the backward pass of the layers.

    A wide model needs its most memory for the gradients of a tied weight, when that of the logits was read and is free.
    """
    torch.manual_seed(0)
    model = WithItsOwnLoss(width=width, tied=width > WIDTH)
    args = (torch.randn(WORDS, width), torch.randint(VOCABULARY, (WORDS,)))
    with partitioner_settings(activation_memory_budget=budget):
        limit = peak_of(torch_compile(model), model, args, holds_logits=holds_logits)
    torch.compiler.reset()
    step = remat.compile(model, cost_model=MemoryBudget(limit, of="peak"))
    assert peak_of(step, model, args, holds_logits=holds_logits) <= limit
    assert step.report().as_frame().chosen_by.tolist() == 2 * ["all graphs together"]


def test_calls_of_one_graph_keep_a_limit_with_the_gradients_that_they_leave() -> None:
    """Without these, a limit was taken for kept that the step exceeds by half."""
    limit = 200_000
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(6)
    )
    shared, x = remat.SharedBudget(MemoryBudget(limit, of="peak")), torch.randn(64, WIDTH, requires_grad=True)
    steps = [remat.compile(block, cost_model=shared) for block in blocks]

    def train() -> None:
        y = x
        for step in steps:
            y = step(y)
        y.sum().backward()

    with no_cpu_kernels():
        for _ in range(4):
            blocks.zero_grad(set_to_none=True)
            x.grad = None
            peak = peak_bytes(train, torch.device("cpu"))
    assert 0.9 * limit <= peak <= limit


def test_a_search_that_fails_is_not_made_again_before_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def failing(parts: Any, *_: Any) -> None:
        searched.append(len(parts))
        raise remat.LimitReached("no plans")

    monkeypatch.setattr("remat.pytorch.run.shared_budget.fit_joint_peak", failing)
    torch.compiler.reset()
    model, args = WithItsOwnLoss(), (torch.randn(WORDS, WIDTH), torch.randint(VOCABULARY, (WORDS,)))
    budget = MemoryBudget("10MB", of="peak")
    step = remat.compile(model, cost_model=budget, codegen=False, on_error="fallback")
    step(*args)[0].backward()
    with pytest.warns(UserWarning, match="remat keeps the plans that it has: no plans"):
        step(*args)[0].backward()
    step(*args)[0].backward()
    assert searched == [2]


def part(cost: int = 1, size: int = 100) -> Subproblem:
    """Four values in a row, each read again in the backward pass."""
    g = remat.GraphBuilder()
    value = g.input("x", bytes=4)
    for i in range(4):
        value = g.op("cos", value, name=f"v{i}", bytes=size + 10 * i)
    g.output(value)
    dy = g.tangent("dy", bytes=100)
    for i in reversed(range(4)):
        dy = g.op("mul", dy, f"v{i}", name=f"d{i}", bytes=size)
    g.gradient(dy)
    own = subproblem_of(g.build(), MemoryBudget(1024, of="peak"))
    prices = np.arange(len(own.problem)) + cost
    return replace(own, problem=replace(own.problem, recompute_cost=prices))


@pytest.mark.parametrize("in_reverse", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (0, 1, 2), (0, 1, 1)])
def test_no_combination_of_candidates_is_better(order: tuple[int, ...], *, in_reverse: bool) -> None:
    graphs = max(order) + 1
    parts = [part(cost=3 * i + 1, size=50 * (i + 1)) for i in range(graphs)]
    peak = JointPeak(parts, [CallSequence(order, in_reverse)])
    plans = JointPlans(peak, Lagrangian())
    found = {
        peak.at([one.memory for one in combination]): sum(one.rank for one in combination)
        for combination in sorted(product(*plans.pools), key=lambda of: -sum(one.rank for one in of))
    }
    assert plans.smallest.peak_bytes == min(found)
    for limit in sorted(found):
        best = plans.within(limit)
        assert best is not None
        assert best.peak_bytes <= limit
        ranks = [choice.cost(part.problem) for part, choice in zip(parts, best.choices, strict=True)]
        assert sum(ranks) == min(rank for other, rank in found.items() if other <= limit)
    assert plans.within(min(found) - 1) is None


def test_calls_that_end_in_reverse_hold_what_earlier_ones_saved() -> None:
    """The figures of two graphs, counted by hand, and a storage that the second one takes."""
    first = GraphMemory(forward=70, backward=60, between_passes=50, gradients=5, held_storages=frozenset({"v0"}))
    second = GraphMemory(forward=20, backward=90, between_passes=15, gradients=40, held_storages=frozenset({"x"}))
    parts = [part(), part()]
    assert JointPeak(parts, [CallSequence((0, 1), in_reverse=True)]).at([first, second]) == max(70, 50 + 90, 60 + 40)
    assert JointPeak(parts, [CallSequence((0, 1))]).at([first, second]) == max(15 + 70, 50 + 90)
    shared = [(900, [(0, "v3"), (1, "x")])]  # of which the first graph holds nothing, and the second one does
    assert JointPeak(parts, [CallSequence((0, 1), in_reverse=True, shared=shared)]).at([first, second]) == 50 + 90 + 900
    shared = [(900, [(0, "v0"), (1, "x")])]  # which the first graph holds and counts itself
    assert JointPeak(parts, [CallSequence((0, 1), in_reverse=True, shared=shared)]).at([first, second]) == 50 + 90


def test_two_branches_that_meet_hold_the_gradient_of_a_skip() -> None:
    """The third graph takes a result of the first one: its gradient waits while the second one runs backward."""
    first, second, third = part(), part(), replace(part(), earlier=frozenset({"x"}))
    own = GraphMemory(forward=10, backward=20, between_passes=5, gradients=1, held_storages=frozenset())
    calls = CallSequence((0, 1, 2), in_reverse=True, shared=[(1000, [(0, "v3"), (2, "x")])])
    # Forward, it is alive from the second graph on; backward, its gradient is, until the first graph has run.
    assert JointPeak([first, second, third], [calls]).at([own] * 3) == max(2 * 5 + 10 + 1000, 5 + 20 + 1 + 1000)
    alone = JointPeak([first, second, replace(third, earlier=frozenset())], [calls])
    held = replace(own, held_storages=frozenset({"v3"}))
    assert alone.at([held, own, own]) == 2 * 5 + 20


@pytest.mark.parametrize("in_reverse", [True, False])
def test_a_gradient_that_is_freed_once_it_was_read_takes_no_more_than_one_that_is_not(*, in_reverse: bool) -> None:
    x, w = torch.randn(1000, 100, requires_grad=True), torch.randn(100, 100, requires_grad=True)
    maker = remat.capture(lambda x, w: x @ w, x, w)
    (out,) = [name for name, is_output in zip(maker.names, maker.output, strict=True) if is_output]
    taker = remat.capture(lambda x, w: ((x @ w).tanh() @ w).sum(), x, w)
    model = MemoryBudget(10**9, of="peak")
    parts = [replace(subproblem_of(maker, model), dropped=frozenset([out])), subproblem_of(taker, model, {"primals_1"})]
    calls = [CallSequence((0, 1), in_reverse, ((400_000, ((0, out), (1, "primals_1"))),))]

    def peak(gradients: dict[str, str]) -> int:
        joint = JointPeak([replace(parts[0], gradients=gradients), parts[1]], calls)
        return joint.of([part.smallest_choice for part in parts])

    assert peak({out: "tangents_1"}) == peak({})  # it is read last, too


@pytest.mark.parametrize(
    ("step", "last"),
    [(lambda x, w: x + (w @ w).sum(), True), (lambda x, w: (x + 1).t() @ w, False), (lambda x, w: x @ w, False)],
)
def test_a_gradient_that_is_handed_on_lives_to_the_end(step: Any, *, last: bool) -> None:
    x, w = torch.randn(20, 20, requires_grad=True), torch.randn(20, 20, requires_grad=True)
    graph = remat.capture(step, x, w)
    found = StepMemory(graph, exchanged=Exchanged(gradients=frozenset(["tangents_1"]))).lifetimes(graph.input)
    (row,) = np.flatnonzero(found.base == graph.index["tangents_1"])
    assert (found.end[row] == found.end.max()) == last


def test_each_of_several_sequences_of_calls_keeps_the_limit() -> None:
    """Of one graph beside either of two others, as in steps that take turns."""
    first = GraphMemory(forward=10, backward=20, between_passes=30, gradients=0, held_storages=frozenset())
    second, third = replace(first, backward=200), replace(first, forward=150)
    peak = JointPeak([part()] * 3, [CallSequence((0, 1), in_reverse=True), CallSequence((0, 2), in_reverse=True)])
    assert peak.at([first, second, third]) == 30 + 200
    assert peak.at([first, first, third]) == 30 + 150


@drawn(100)
@given(st.lists(st.tuples(*[st.integers(0, 100)] * 4), min_size=1, max_size=4))
def test_any_order_may_be_the_reverse_one(figures: list[tuple[int, int, int, int]]) -> None:
    memories = [GraphMemory(max(a, c), max(b, c, d), c, d, frozenset()) for a, b, c, d in figures]
    parts, order = [part()] * len(figures), tuple(range(len(figures)))
    known, unknown = (JointPeak(parts, [CallSequence(order, in_reverse)]).at(memories) for in_reverse in (True, False))
    assert known <= unknown


def test_of_many_graphs_a_limit_that_is_kept_is_reached() -> None:
    """There are too many combinations to look at all of them."""
    parts = [part(cost=3 * i + 1, size=50 * (i + 1)) for i in range(7)]
    calls = CallSequence(tuple(range(7)), in_reverse=True, shared=[(100_000, [(i, "x") for i in range(7)])])
    peak = JointPeak(parts, [calls])
    plans = JointPlans(peak, Lagrangian())
    least = peak.at([min(pool, key=lambda one: one.memory.between_passes).memory for pool in plans.pools])
    assert plans.smallest.peak_bytes <= least
    found = plans.within(plans.smallest.peak_bytes)
    assert found is not None
    assert found.peak_bytes <= plans.smallest.peak_bytes


class Doubled(torch.autograd.Function):
    """Stands for a compiled graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0]


def called(calls: LiveCalls, key: str, saved: tuple[str, ...] = ()) -> Tensor:
    """Makes a call that returns one result, and says so."""
    result = cast(Tensor, Doubled.apply(torch.ones(4, requires_grad=True)))
    calls.begin_call(key, {}, {"out": result}, result.grad_fn, saved)
    return result


def test_the_order_of_calls_is_known_for_each_set_of_them() -> None:
    calls = LiveCalls(watches_results=True)
    first, second = called(calls, "a"), called(calls, "b")
    second.sum().backward()
    first.sum().backward()
    assert [one.in_reverse for one in calls.overlaps().values()] == [True]
    first, second = called(calls, "a"), called(calls, "c")
    first.sum().backward()
    second.sum().backward()
    assert {one.order: one.in_reverse for one in calls.overlaps().values()} == {("a", "b"): True, ("a", "c"): False}


def test_a_result_is_dropped_unless_somebody_ever_holds_it_in_a_backward_pass() -> None:
    calls = LiveCalls(watches_results=True)
    for _ in range(2):
        (loss,) = [called(calls, "a").sum()]  # which holds no result: the sum has no need of it
        loss.backward()
        assert calls.dropped_results("a") == {"out"}
    result = called(calls, "a")
    result.sum().backward(retain_graph=True)
    result.sum().backward()  # again, when the call is no longer counted
    assert calls.dropped_results("a") == set()
    # The result of an earlier call that no other call took, and that is held when the first backward pass begins.
    earlier = called(calls, "b")
    loss, other = earlier.sum(), called(calls, "a").sum()
    other.backward()
    del earlier
    loss.backward()
    assert calls.dropped_results("b") == set()
    # A backward pass again, of a call that is over, beside one that is not.
    over, alive = called(calls, "d"), called(calls, "d")
    over.sum().backward(retain_graph=True)
    over.sum().backward()
    assert calls.together == {("d", 1)}
    alive.sum().backward()
    # What a call saves itself says nothing.
    loss, saved = called(calls, "c").sum(), [called(calls, "c", ("out",))]
    loss.backward()
    saved[0].sum().backward()
    assert calls.dropped_results("c") == {"out"}
