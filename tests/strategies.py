"""Ways to decide that are not meant to be good: the ends of the scale, and what lies between; and what to decide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from depth import deep
from hypothesis import assume
from hypothesis import strategies as st
from torch import nn

import remat
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from experiments.models.save_everything import SaveEverything
from experiments.models.training import train
from experiments.models.workloads import KERNEL_ZOO
from experiments.models.zoo import gpt2
from remat import CostModel, Graph, GraphBuilder, InvalidPlan, Plan, Problem, check_plan, solve
from remat.plugin import BoolArray, Offload, Terms, cannot_offload, forced_values
from remat.testing import graphs


@dataclass(frozen=True)
class Dice(CostModel):
    """Random prices: a random legal plan for every seed."""

    name: ClassVar[str] = "dice"
    unit: ClassVar[str] = "pips"

    seed: int

    def terms(self, graph: Graph) -> Terms:
        random = np.random.default_rng(self.seed)
        save, recompute = random.integers(0, 100, (2, len(graph))) ** 3
        return replace(Terms.nothing(graph), save_cost=save, recompute_cost=recompute)


@dataclass(frozen=True)
class DiceWithHost(Dice):
    """Random prices, and for every other value that can be offloaded copies that cost nothing."""

    name: ClassVar[str] = "dice-with-host"

    def pose_without_peak(self, graph: Graph) -> Problem:
        problem = super().pose_without_peak(graph)
        copies = np.random.default_rng([self.seed]).integers(0, 2, len(problem)) * 100**3
        return replace(problem, offload=Offload(copies, cannot_offload(graph).take(graph.plannable)))


@dataclass(frozen=True)
class SaveOnHost(SaveEverything):
    """What autograd keeps, and all of it on the host that can be."""

    name: ClassVar[str] = "save-on-host"

    def pose_without_peak(self, graph: Graph) -> Problem:
        problem = super().pose_without_peak(graph)
        copies = np.zeros(len(problem), np.int64)
        return replace(problem, offload=Offload(copies, cannot_offload(graph).take(graph.plannable)))


def flat(sample: tuple[nn.Module, tuple[Any, ...]]) -> tuple[Any, ...]:
    """A model and its arguments, as `remat.capture` takes them."""
    return sample[0], *sample[1]


def small_gpt(layers: int = 1) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return gpt2(layers=layers, width=32, heads=2, vocabulary=64, context=16, batch=2, dropout=0.1)


def all_on_host(name: str) -> tuple[Graph, Plan]:
    """A model of the zoo, captured for an H100, and the plan of `SaveOnHost`."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    graph = remat.capture(model, *args, device="h100")
    plan = solve(SaveOnHost().pose(graph)).plan
    return graph, plan


def each_case(quick: Collection[str]) -> pytest.MarkDecorator:
    """Runs a test on every small model, as its argument `case`; in the quick half on those that are named."""
    listed = [pytest.param(case, id=name, marks=() if name in quick else deep) for name, case in CASES.items()]
    return pytest.mark.parametrize("case", listed)


@cache
def _trained_in_eager_mode(case: ModelCase) -> dict[str, Any]:
    return train(case, lambda model: model)


def assert_equal_to_eager(case: ModelCase, wrap: Callable[[nn.Module], Any]) -> None:
    """Two steps of what is called in place of the model leave behind what those of eager mode do."""
    torch.compiler.reset()
    expected = _trained_in_eager_mode(case)
    torch.testing.assert_close(train(case, wrap), expected, rtol=case.tolerance, atol=case.tolerance)


_KINDS: tuple[dict[str, bool], ...] = ({}, {}, {"compute_bound": True}, {"fusible": False}, {"view": True})


@st.composite
def training_steps(draw: st.DrawFn, *, most: int = 3) -> Graph:
    """Small graphs where the backward pass reads the forward pass all along, and each value takes memory.

    Some forward operators come between those of the backward pass, or after them, as capture lists a `copy_`.
    """
    g = GraphBuilder()
    early = [g.input("x", bytes=5)]

    def op(first: str, others: list[str]) -> str:
        arguments = [first, *draw(st.lists(st.sampled_from(others), max_size=2))]
        return g.op("op", *arguments, bytes=draw(st.integers(1, 9)), **draw(st.sampled_from(_KINDS)))

    for _ in range(draw(st.integers(2, most))):
        early.append(op(early[-1], early))
    g.output(early[-1], *(name for name in early[1:-1] if draw(st.integers(0, 3)) == 0))
    late = [g.tangent("dy", bytes=5)]
    for _ in range(draw(st.integers(0, 2))):
        early.append(op(draw(st.sampled_from(early[1:])), early))
    for _ in range(draw(st.integers(2, most + 1))):
        late.append(op(late[-1], early[1:] + late))
        if draw(st.integers(0, 3)) == 0:
            early.append(op(draw(st.sampled_from(early[1:])), early))
    if draw(st.booleans()):
        g.output(op(draw(st.sampled_from(early[1:])), early))
    g.gradient(late[-1], *(name for name in early[1:] + late[1:-1] if draw(st.integers(0, 7)) == 0))
    return g.build()


@st.composite
def late_views(draw: st.DrawFn) -> Graph:
    """Small graphs where a call comes between what fits in a register and its view, which is read or returned."""
    g = GraphBuilder()

    def op(*arguments: str, **kind: bool) -> str:
        return g.op("op", *arguments, bytes=draw(st.integers(1, 10)), **kind)

    def some(names: list[str]) -> list[str]:
        return draw(st.lists(st.sampled_from(names), unique=True))

    x = g.input("x", bytes=1)
    if in_backward := draw(st.booleans()):  # the call
        g.output(op(x))
    q = op(x)
    w = op(op(x, compute_bound=True), q)
    early = [q, w, op(draw(st.sampled_from([q, w])))]
    last = g.tangent("dy", bytes=1) if in_backward else draw(st.sampled_from([x, *early]))
    last = op(op(last, *some(early)), compute_bound=True)
    early.append(op(w, view=True))
    last = op(last, *some(early))
    if not in_backward:
        g.output(last, *some(early))
        last = op(g.tangent("dy", bytes=1), *some(early))
    g.gradient(last, *some(early))
    if draw(st.booleans()):
        g.output(op(*some(early)))
    return g.build()


@st.composite
def planned(draw: st.DrawFn) -> tuple[Graph, BoolArray]:
    """A graph, and what some legal plan saves."""
    graph = draw(graphs(max_values=14) | training_steps(most=5) | late_views())
    wanted = np.array(draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))))
    masks = legal_masks(graph, [wanted])
    assume(masks)
    return graph, masks[0]


def legal_masks(graph: Graph, masks: Iterable[BoolArray]) -> list[BoolArray]:
    """What the plans save that come closest to the masks and are legal, each of them once."""
    problem = remat.plugin.base_problem(graph)
    wanted = ((mask[graph.plannable] | problem.cannot_recompute.mask) & ~problem.cannot_save.mask for mask in masks)
    closest = dict.fromkeys(remat.Choice.from_saved(problem, saved) for saved in wanted)
    return [graph.for_all_values(choice.saved) for choice in closest if _is_legal(problem, choice)]


def _is_legal(problem: Problem, choice: remat.Choice) -> bool:
    try:
        check_plan(problem, choice.plan(problem))
    except InvalidPlan:
        return False
    return True


def feasible(graph: Graph) -> bool:
    """Whether the facts of a graph leave a plan."""
    problem = remat.plugin.base_problem(graph)
    return not bool((forced_values(problem).unavailable & problem.needed).any())


def every_legal_mask(graph: Graph) -> list[BoolArray]:
    """What each legal plan saves of a small graph."""
    problem = remat.plugin.base_problem(graph)
    undecided = np.flatnonzero(~problem.cannot_recompute.mask & ~problem.cannot_save.mask)
    masks = np.zeros((2 ** len(undecided), len(problem)), np.bool_)
    masks[:, undecided] = list(product((False, True), repeat=len(undecided)))
    return legal_masks(graph, map(graph.for_all_values, masks))
