"""Plans travel: each knows the graph that it is for, and is replayed on that graph alone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from examples import cosines
from test_cli import run
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.accuracy.live_kernels import visited
from remat import InvalidPlan, Plan, Problem, Solution
from remat.answer.registry import solver_names
from remat.plugin import Solver
from remat.pytorch.seam.compilations import graphs_compiled
from tests.test_compile import gradients
from tests.test_whole_run import WIDTH, Model


class NamesValuesItself(Solver):
    """Returns a plan that is made by hand, without a word about the graph."""

    name: ClassVar[str] = "names-values-itself"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        honest = remat.solve(problem)
        return replace(honest, plan=Plan(honest.plan.saved, honest.plan.recomputed))


@pytest.mark.parametrize("solver", [*solver_names(), pytest.param(NamesValuesItself(), id="a plug-in")])
def test_a_plan_of_every_solver_knows_its_graph(solver: str | Solver) -> None:
    graph = cosines()
    solution = remat.solve(ByteTraffic().pose(graph), solver)
    assert solution.plan.graph == graph.signature


@pytest.mark.parametrize("cost_model", ["byte-traffic", MemoryBudget(0.5), MemoryBudget(0.9, of="peak")], ids=str)
def test_plans_of_searches_know_their_graph(cost_model: str | remat.CostModel) -> None:
    graph = remat.capture(Model(), batch(64))
    found = [remat.choose(graph, cost_model).plan, *(point.plan for point in remat.frontier(graph).points)]
    found += (point.plan for point in remat.step_frontier(graph, 2).points)
    assert all(plan is not None and plan.graph == graph.signature for plan in found)


def batch(rows: int) -> Tensor:
    torch.manual_seed(rows)
    return torch.randn(rows, WIDTH)


@cache
def plan_of(rows: int) -> Plan:
    """Returns a plan for batches of this size; it is the same for every `Model()`."""
    return remat.choose(remat.capture(Model(), batch(rows)), MemoryBudget(0.5)).plan


def test_a_smaller_last_batch_is_refused_with_both_shapes_and_a_way_out() -> None:
    model = Model()
    step = remat.compile(model, plan=plan_of(64), codegen=False)
    step(batch(64)).sum().backward()
    step(batch(64)).sum().backward()
    message = (
        r"made for another graph (.*\n)  -primals_\d+: placeholder float32\[64, 32\].*\n"
        r"  \+primals_\d+: placeholder float32\[7, 32\](.|\n)*drop_last=True(.|\n)*plan=\[a, b\]"
    )
    with pytest.raises(Exception, match=message):
        step(batch(7))
    step(batch(64)).sum().backward()  # training can go on


def test_with_a_plan_for_each_size_training_goes_on() -> None:
    model = Model()
    plans = [plan_of(rows) for rows in (7, 64)]
    step = remat.compile(model, plan=plans, codegen=False)
    for rows in (64, 64, 7, 64):
        torch.testing.assert_close(gradients(step, model, batch(rows)), gradients(model, model, batch(rows)))
    report = step.report()
    assert [planned.plan for planned in report.graphs] == plans[::-1]
    assert {planned.chosen.by for planned in report.graphs} == {"replayed"}


def test_a_size_without_a_plan_may_take_pytorchs_own() -> None:
    model = Model()
    step = remat.compile(model, plan=plan_of(64), on_error="fallback", codegen=False)
    step(batch(64)).sum().backward()
    with pytest.warns(UserWarning, match=r"falls back to PyTorch's partitioner.*another graph"):
        seen = gradients(step, model, batch(7))
    torch.testing.assert_close(seen, gradients(model, model, batch(7)))


def test_where_dynamo_made_a_graph_for_all_sizes_the_message_says_so() -> None:
    model = Model()
    step = remat.compile(model, plan=plan_of(64), dynamic=None, codegen=False)
    step(batch(64)).sum().backward()
    with pytest.raises(Exception, match=r"Dynamo made a graph for all sizes(.|\n)*dynamic=False"):
        step(batch(7))


def test_a_plan_for_all_sizes_is_replayed_on_all_sizes() -> None:
    model = Model()
    for_all = remat.compile(model, dynamic=True, codegen=False)
    for_all(batch(64)).sum().backward()
    (planned,) = for_all.report().graphs
    torch.compiler.reset()
    with pytest.raises(Exception, match="for symbolic sizes: compile with dynamic=True"):
        remat.compile(model, plan=planned.plan, codegen=False)(batch(64))
    torch.compiler.reset()
    step = remat.compile(model, plan=planned.plan, dynamic=True, codegen=False)
    before = graphs_compiled()
    for rows in (64, 7, 20):
        torch.testing.assert_close(gradients(step, model, batch(rows)), gradients(model, model, batch(rows)))
    assert graphs_compiled() == before + 1


def test_plans_of_all_graphs_of_a_model_are_replayed_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(2, breaks=True)
    first = remat.compile(model, cost_model=MemoryBudget(0.3), codegen=False)
    for _ in range(2):
        first(batch(64)).sum().backward()
    wanted = [planned.plan for planned in first.report().graphs]
    files = [tmp_path / f"{i}.json.gz" for i in range(2)]
    for plan, file in zip(wanted, files, strict=True):
        plan.save(file)
    assert len(set(wanted)) == 2
    assert all(plan.graph for plan in wanted)

    torch.compiler.reset()
    step = remat.compile(model, plan=files[::-1], codegen=False)
    torch.testing.assert_close(gradients(step, model, batch(64)), gradients(model, model, batch(64)))
    assert [planned.plan for planned in step.report().graphs] == wanted

    torch.compiler.reset()
    monkeypatch.setenv("REMAT_PLAN", os.pathsep.join(map(str, files)))
    with visited():
        torch.compile(model, backend="remat", dynamic=False)(batch(64)).sum().backward()
    assert [planned.plan for planned in remat.last_report().graphs[-2:]] == wanted

    torch.compiler.reset()
    with pytest.raises(Exception, match="made for another graph"):
        remat.compile(model, plan=files[0], codegen=False)(batch(64))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() * self.scale


def test_of_equal_blocks_each_takes_the_plan_that_is_legal_for_it() -> None:
    """The first one's input needs no gradient: the values are the same, but not what the backward pass needs."""
    first, second = Scaled(), Scaled()
    graphs = [remat.capture(first, batch(4)), remat.capture(second, batch(4).requires_grad_())]
    plans = [plan for graph in graphs if (plan := remat.choose(graph).plan) is not None]
    assert graphs[0].signature == graphs[1].signature
    with pytest.raises(InvalidPlan, match="needed by the backward pass, but neither"):
        remat.check_plan(remat.plugin.base_problem(graphs[1]), plans[0])
    steps = [remat.compile(block, plan=plans, codegen=False) for block in (first, second)]
    steps[1](steps[0](batch(4))).sum().backward()
    seen = first.scale.grad, second.scale.grad
    first.scale.grad = second.scale.grad = None
    second(first(batch(4))).sum().backward()
    torch.testing.assert_close(seen, (first.scale.grad, second.scale.grad))
    assert steps[1].report().graphs[0].plan == plans[1]


COMMANDS = [
    ["inspect", "timeline", "GRAPH", "--plan", "PLAN"],
    ["inspect", "traffic", "GRAPH", "--plan", "PLAN"],
    ["inspect", "picture", "GRAPH", "-o", "OUT.svg", "--plan", "PLAN"],
]


def test_commands_read_and_write_gzipped_plans(tmp_path: Path) -> None:
    graph, plan = tmp_path / "graph.json.gz", tmp_path / "plan.json.gz"
    cosines().save(graph)
    run("solve", graph, "-o", plan)
    assert plan.read_bytes()[:2] == b"\x1f\x8b"
    assert Plan.load(plan).graph == cosines().signature
    names = {"GRAPH": graph, "PLAN": plan, "OUT.svg": tmp_path / "o.svg"}
    for command in COMMANDS:
        run(*(names.get(word, word) for word in command))
    plan.write_bytes(plan.read_bytes()[:40])
    for command in COMMANDS:
        result = run(*(names.get(word, word) for word in command), code=1)
        assert "plan.json.gz: the gzip data is damaged" in result.output


def test_a_plan_is_not_used_for_another_graph(tmp_path: Path) -> None:
    plan = remat.choose(cosines()).plan
    with pytest.raises(InvalidPlan, match=r"made for another graph .*\n(.|\n)*Solve the new graph"):
        remat.timeline(remat.capture(Model(), batch(4)), plan)


def test_what_is_no_plan_is_refused_with_a_way_out(tmp_path: Path) -> None:
    model = Model()
    for nothing in ([], "", [""]):
        with pytest.raises(remat.errors.InvalidOption, match=r"plan must be a plan, .* leave it out to solve"):
            remat.compile(model, plan=nothing)
    solution = remat.choose(remat.capture(model, batch(64)))
    with pytest.raises(remat.errors.RematError, match=r"\.plan"):
        remat.compile(model, plan=solution)  # pyright: ignore[reportArgumentType]
    file = tmp_path / "old.json"
    solution.plan.save(file)
    document = json.loads(file.read_text())
    del document["graph"]
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidPlan, match="solve that graph again"):
        remat.compile(model, plan=file)


def test_where_the_inputs_are_the_same_nobody_is_told_to_change_the_batch() -> None:
    model = Model()
    changed = nn.Sequential(model, nn.Tanh())
    step = remat.compile(changed, plan=plan_of(64), codegen=False)
    with pytest.raises(Exception, match="The inputs are the same: the model has changed") as refused:
        step(batch(64))
    assert "drop_last" not in str(refused.value)


@pytest.mark.parametrize("now", [True, False])
def test_a_replay_where_other_inputs_need_gradients_says_so(now: bool) -> None:
    model = Model()
    graph = remat.capture(model, batch(64).requires_grad_(not now))
    step = remat.compile(model, plan=remat.solve(ByteTraffic().pose(graph)).plan, codegen=False)
    with pytest.raises(Exception, match="other inputs need gradients now \\(requires_grad"):
        step(batch(64).requires_grad_(now))


def test_a_report_of_a_replay_names_no_cost_model_and_one_given_beside_is_warned_about() -> None:
    model = Model()
    plan = plan_of(64)
    with pytest.warns(UserWarning, match="the cost model and the solver are ignored"):
        step = remat.compile(model, plan=plan, cost_model=MemoryBudget(0.5), codegen=False)
    step(batch(64)).sum().backward()
    (replayed,) = step.report().graphs
    assert (replayed.cost_model, replayed.chosen.by) == ("a plan that was given", "replayed")


def test_a_fallback_of_a_backend_by_name_is_reported() -> None:
    model = Model()
    options = {"remat.plan": plan_of(64), "remat.on_error": "fallback"}
    with visited(), pytest.warns(UserWarning, match="falls back"):
        torch.compile(model, backend="remat", options=options)(batch(32)).sum().backward()
    assert "runs PyTorch's own plan" in remat.last_report().notes[-1]
