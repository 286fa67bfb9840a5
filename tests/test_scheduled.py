"""Inductor's kernels, counted without code: of a model, and of a `Graph` alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from depth import deep_except
from strategies import Dice, flat, small_gpt
from torch import Tensor

import remat
from experiments.accuracy.live_kernels import inductor_kernels
from experiments.models import workloads
from experiments.models.cases import CASES
from experiments.models.save_everything import SaveEverything, SaveLeast, plan_of
from remat import CaptureError, Graph, GraphBuilder, InvalidOption, InvalidPlan, Plan
from remat.errors import CannotRebuild, UnknownName
from remat.plugin import Bans
from remat.pytorch import capture_all
from remat.pytorch.inductor.scheduled import InductorKernel, Scheduled, counting_kernels


def case(name: str) -> Callable[[], workloads.Sample]:
    return lambda: (CASES[name].build(), CASES[name].inputs())


COUNTED = {
    name: case(name)
    for name in (
        "pointwise chain",
        "views as outputs",
        "sort, gather and index",
        "autocast",
        "symbolic batch",
        "custom operator",
        "graph break",
        "buffers written in both passes",
        "selective checkpoint of dropout",
        "batch normalization",
        "attention with dropout",
    )
} | {"GPT with dropout": small_gpt}


QUICK = (
    "pointwise chain",
    "views as outputs",
    "custom operator",
    "graph break",
    "symbolic batch",
    "batch normalization",
)


@pytest.mark.parametrize("name", deep_except(QUICK, COUNTED))
def test_a_graph_from_a_file_has_the_kernels_of_its_model(name: str, tmp_path: Path) -> None:
    """Same kernels, operators, buffers and bytes, in the same order."""
    torch.manual_seed(0)
    model, args = COUNTED[name]()
    graphs = capture_all(model, *args)
    plans = [plan_of(graph, SaveLeast()) for graph in graphs]
    live = inductor_kernels(model, *args, plans=plans)
    found: list[Any] = []
    for graph, plan in zip(graphs, plans, strict=True):
        graph.save(tmp_path / "graph.json.gz")
        found += Scheduled(Graph.load(tmp_path / "graph.json.gz")).kernels(plan)
    assert found == live
    assert {kernel.backward for kernel in live} == {False, True}


def test_counting_ahead_equals_a_real_compilation() -> None:
    torch.manual_seed(0)
    model, args = case("pointwise chain")()
    plan = plan_of(remat.capture(model, *args), Dice(3))
    ahead = inductor_kernels(model, *args, plans=plan)
    torch.compiler.reset()
    with counting_kernels() as compiled:
        remat.compile(model, plan=plan)(*args).sum().backward()
    assert ahead == compiled


def test_one_scheduled_answers_for_many_plans() -> None:
    """What an earlier plan did to the graph never shows in a later answer."""
    torch.manual_seed(0)
    graph = remat.capture(*flat(workloads.perceptron(layers=1, dropout=0.1)))
    plans = [plan_of(graph, cost_model) for cost_model in (SaveEverything(), SaveLeast(), Dice(0))]
    shared = Scheduled(graph)
    first = [shared.kernels(plan) for plan in plans]
    assert [shared.kernels(plan) for plan in reversed(plans)] == first[::-1]
    assert first[1] == Scheduled(graph).kernels(plans[1])
    assert len({sum(kernel.bytes for kernel in kernels) for kernels in first}) == 3


def test_bytes_are_those_of_what_is_read_and_written() -> None:
    torch.manual_seed(0)
    graph = remat.capture(*flat(small_gpt()))
    kernels = Scheduled(graph).kernels(plan_of(graph, SaveEverything()))
    for kernel in kernels:
        assert kernel.bytes == sum(size for _, size in (*kernel.reads, *kernel.writes))
    forward = [kernel for kernel in kernels if not kernel.backward]
    assert {name for name, _ in forward[0].reads} <= set(graph.names)
    written = {name for kernel in kernels for name, _ in kernel.writes}
    assert set(np.array(graph.names)[graph.gradient & ~graph.view]) & written


def test_the_joint_graph_computes_outputs_and_gradients() -> None:
    def step(x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(x @ weight).square() * x.sum(-1, keepdim=True).sigmoid()

    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    tangent = torch.randn(5, 4)
    graph = remat.capture(step, x, weight)
    joint = Scheduled(graph).joint_graph.module
    found = joint(x.detach(), weight.detach(), tangent)
    assert len(found) == 3
    expected = step(x, weight)
    gradients = dict(zip(((5, 3), (3, 4)), torch.autograd.grad(expected, (x, weight), tangent), strict=True))
    torch.testing.assert_close(found[0], expected.detach())
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, gradients.pop(tuple(gradient.shape)))
    assert not gradients


def test_a_part_of_a_graph_has_the_kernels_of_the_whole() -> None:
    """The middle layer of three: what the whole computes strictly inside of it, the part computes so, too."""
    torch.manual_seed(0)
    graph = remat.capture(*flat(workloads.perceptron(layers=3)))
    whole = Scheduled(graph)
    layer = np.zeros(len(graph), np.bool_)
    for first, last in (("permute_1", "add_5"), ("mul_30", "view_2")):  # from one linear layer to the next
        layer[graph.index[first] : graph.index[last] + 1] = True
    part = cut_out(graph, layer)
    plan = plan_of(graph, SaveEverything())
    problem = remat.plugin.base_problem(part)
    inside = remat.Choice.from_saved(problem, np.array([name in plan.saved for name in problem.names])).plan(problem)
    found = Scheduled(part).kernels(inside)
    kept = {graph.names[v] for v in np.flatnonzero(layer)}
    theirs = [kernel for kernel in whole.kernels(plan) if kernel.operators and kept.issuperset(kernel.operators)]
    assert len(theirs) >= 6
    assert {kernel.backward for kernel in theirs} == {False, True}

    def traffic(kernel: InductorKernel) -> Any:
        reads, writes = (  # what has no FX node is numbered
            frozenset((re.sub("buf[0-9]+", "buf", name), size) for name, size in accessed)
            for accessed in (kernel.reads, kernel.writes)
        )
        return kernel.backward, kernel.generated, frozenset(kernel.operators), reads, writes

    assert set(map(traffic, theirs)) <= set(map(traffic, found))


def test_plans_and_devices_are_checked_first() -> None:
    torch.manual_seed(0)
    graph = remat.capture(*flat(case("pointwise chain")()))
    scheduled = Scheduled(graph)
    plan = plan_of(graph, SaveEverything())
    with pytest.raises(InvalidPlan, match="the plan is not legal"):
        scheduled.kernels(Plan(plan.saved[1:], plan.recomputed))
    with pytest.raises(InvalidPlan, match="made for another graph"):
        scheduled.kernels(plan.for_graph(remat.capture(*flat(case("dropout")()))))
    with pytest.raises(UnknownName, match="no device is named 'gpu9'"):
        Scheduled(graph, device="gpu9")


def test_a_model_is_refused_as_a_graph_is() -> None:
    torch.manual_seed(0)
    model, args = case("pointwise chain")()
    with pytest.raises(InvalidPlan, match="the plan is not legal"):
        inductor_kernels(model, *args, plans=Plan((), ()))
    with pytest.raises(CaptureError, match="found no joint graph"):
        inductor_kernels(model.requires_grad_(False), *args, plans=Plan((), ()))


@pytest.mark.parametrize("given", [None, "x", 3])
def test_what_is_no_plan_no_model_is_refused(given: Any) -> None:
    empty = Scheduled(GraphBuilder().build())
    assert empty.kernels(Plan((), ())) == []
    with pytest.raises(InvalidOption, match=r"plan must be a remat\.Plan"):
        empty.kernels(given)
    with pytest.raises(InvalidOption, match=r"plans must be a remat\.Plan or a list of them"):
        inductor_kernels(torch.cos, torch.ones(2), plans=given)
    with pytest.raises(CaptureError, match="takes a module or a function"):
        inductor_kernels(given, plans=Plan((), ()))


def test_what_cannot_be_rebuilt_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(CannotRebuild, match="'true_graph_0' is the body of a higher-order operator"):
        Scheduled(remat.capture(*flat(case("data-dependent branch as an operator")())))
    graph = remat.capture(*flat(case("pointwise chain")()))
    last = len(graph) - 1
    for ops, message in (
        ("mine.own.default", r"\(mine.own.default\) cannot be rebuilt from the graph: torch.ops.mine.own.default does"),
        ("aten.mm.default", r"\(aten.mm.default\) fails on its arguments"),
    ):
        with pytest.raises(CannotRebuild, match=message):
            Scheduled(replace(graph, ops=(*graph.ops[:last], ops)))
    taller = (*graph.shapes[:last], (1, *graph.shapes[last]))
    with pytest.raises(CannotRebuild, match=f"{graph.names[last]!r} .* gives float32.* instead of float32"):
        Scheduled(replace(graph, shapes=taller))
    builder = remat.GraphBuilder()
    builder.output(builder.op("my sine", builder.input("x", bytes=4)))
    with pytest.raises(CannotRebuild, match=r"'my_sine|my sine.* is not an operator of torch\.ops"):
        Scheduled(builder.build())


def cut_out(graph: Graph, keep: Any) -> Graph:
    """A part of a graph: what it reads becomes inputs and tangents, what is read of it outputs and gradients."""
    crossing_in = ~keep[graph.producers] & keep[graph.consumers]
    crossing_out = keep[graph.producers] & ~keep[graph.consumers]
    boundary, read = np.zeros((2, len(graph)), np.bool_)
    boundary[graph.producers[crossing_in]] = True
    read[graph.producers[crossing_out]] = True
    chosen = np.flatnonzero(keep | boundary)
    uses = np.flatnonzero(keep[graph.consumers])
    position = {int(v): i for i, v in enumerate(chosen)}

    def of(column: Any) -> Any:
        return tuple(column[v] for v in chosen) if isinstance(column, tuple) else column[chosen]

    def marked(text: str, original: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text if boundary[v] else original[v] for v in chosen)

    tangents, apart = graph.in_tangents, ("producers", "consumers", "fusible_uses", "cannot_save", "cannot_recompute")
    columns = {field.name: getattr(graph, field.name) for field in fields(graph) if field.name not in (*apart, "meta")}
    marks = ("must_save", "must_recompute", "prefer_save", "prefer_recompute")
    inner = ("random", "view", "fusible", "compute_bound", *marks)
    columns |= {name: columns[name] & ~boundary for name in inner}
    columns |= {
        "storage": np.where(boundary, np.arange(len(graph)), graph.base),
        "input": (graph.input | boundary) & ~tangents,
        "output": (graph.output | read) & ~boundary & ~tangents,
        "gradient": (graph.gradient | read) & ~boundary & tangents,
    }
    return Graph(
        **{name: of(column) for name, column in columns.items()}
        | {"ops": marked("placeholder", graph.ops), "arguments": marked("", graph.arguments)},
        producers=np.array([position[int(u)] for u in graph.producers[uses]]),
        consumers=np.array([position[int(v)] for v in graph.consumers[uses]]),
        fusible_uses=graph.fusible_uses[uses],
        cannot_save=Bans.none(len(chosen)),
        cannot_recompute=Bans.none(len(chosen)),
    )
