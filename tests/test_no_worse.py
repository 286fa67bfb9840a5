"""A plan that is no worse than the given one: in traffic, kernels, saved bytes, recompute time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from commands import answer, run
from depth import drawn
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import feasible

import remat
from costmodels import RecomputeTime
from remat import Choice, Corpus, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.improve.refine import NoWorse
from remat.improve.refine.states import Space
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans_of
from remat.testing.strategies import graphs


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Corpus.open().graph("small-dropout-mlp")


@pytest.fixture(scope="module")
def theirs(graph: Graph) -> Plan:
    return torchs_plans_of(graph, [0.3], legal=True)[0.3]


@dataclass(frozen=True)
class Everywhere(NoWorse):
    """The same, but begun at plans that save too much, too."""

    begins_beyond: ClassVar[bool] = True


def recompute_ns(graph: Graph, plan: Plan) -> int:
    problem = RecomputeTime().pose(graph)
    return Choice.from_plan(problem, plan).cost(problem)


def predicted(graph: Graph, plan: Plan) -> tuple[int, ...]:
    traffic = remat.predict_traffic(graph, plan)
    saved = PlanFacts.of(graph, plan).saved_bytes
    return traffic.bytes, len(traffic.kernels), saved, recompute_ns(graph, plan)


def scheduled(graph: Graph, plan: Plan) -> tuple[int, ...]:
    kernels = Scheduled(graph).kernels(plan)
    return sum(kernel.bytes for kernel in kernels), len(kernels), *predicted(graph, plan)[2:]


def none_is_more(ours: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    return all(a <= b for a, b in zip(ours, theirs, strict=True))


@drawn(60)
@given(graphs(max_values=16), st.data())
def test_the_answer_is_no_worse_than_the_given_plan_in_any_of_four(graph: Graph, data: st.DataObject) -> None:
    assume(feasible(graph))
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))), np.bool_)
    plan = Space(graph).state(wanted).choice.plan(graph)
    found = remat.refine(graph, plan, "no-worse")
    remat.check_plan(remat.plugin.base_problem(graph), found.plan)
    assert (found.before, found.after) == (predicted(graph, plan), predicted(graph, found.plan))
    assert none_is_more(found.after, found.before)
    assert found.terms == ("traffic_bytes", "kernels", "saved_bytes", "recompute_ns")


def test_pytorchs_plan_gets_better_in_some_and_worse_in_none_where_the_fastest_plan_does_not(
    graph: Graph, theirs: Plan
) -> None:
    saved = PlanFacts.of(graph, theirs).saved_bytes
    fastest = remat.solve(replace(RecomputeTime().pose(graph), budget_bytes=saved)).plan
    before = scheduled(graph, theirs)
    assert not none_is_more(scheduled(graph, fastest), before)
    found = remat.refine(graph, theirs, "no-worse", "inductor")
    assert (found.before, found.after) == (before, scheduled(graph, found.plan))
    assert none_is_more(found.after, before)
    assert found.after[0] < before[0]


def test_no_byte_less_is_bought_with_recompute_time(graph: Graph) -> None:
    everything = Space(graph).state(np.ones(len(graph), np.bool_)).choice.plan(graph)
    moves_least = remat.refine(graph, everything, "traffic").plan
    found = remat.refine(graph, everything, "no-worse")
    assert recompute_ns(graph, moves_least) > found.before[3] == found.after[3]
    assert predicted(graph, moves_least)[0] < found.after[0] < found.before[0]


def test_the_search_begins_at_plans_that_recompute_less_and_at_none_that_saves_more(graph: Graph, theirs: Plan) -> None:
    found = remat.refine(graph, theirs, NoWorse())
    given, *others = found.starts
    assert {start.name for start in found.starts} == {"given", "portfolio", "lagrangian"}
    assert all(start.score[3] < given.score[3] and start.saved_bytes <= given.saved_bytes for start in others)
    assert found.after < remat.refine(graph, theirs, Everywhere()).after


def test_the_estimator_says_what_time_is(graph: Graph, theirs: Plan) -> None:
    found = remat.refine(graph, theirs, "no-worse:estimator=flops")
    problem = RecomputeTime("flops").pose(graph)
    assert found.terms[3] == "recompute_flops"
    assert found.after[3] == Choice.from_plan(problem, found.plan).cost(problem) <= found.before[3]
    with pytest.raises(remat.errors.UnknownName, match="no estimator is named"):
        NoWorse("abacus")


def test_what_pytorch_may_not_recompute_is_saved_where_its_plan_is_to_be_legal(graph: Graph, theirs: Plan) -> None:
    asked = torchs_plans_of(graph, [0.3])[0.3]
    with pytest.raises(remat.InvalidPlan, match="cannot be recomputed"):
        remat.check_plan(remat.plugin.base_problem(graph), asked)
    remat.check_plan(remat.plugin.base_problem(graph), theirs)
    more = {*theirs.saved} - {*asked.saved}
    assert more
    assert all(graph.cannot_recompute.mask[graph.index[name]] for name in more)


def test_the_command_takes_pytorchs_own_plan(graph: Graph, theirs: Plan, tmp_path: Path) -> None:
    file, plan = tmp_path / "graph.json", tmp_path / "plan.json"
    graph.save(file)
    call = ("refine", file, "--plan", "pytorch:0.3", "--objective", "no-worse", "-o", plan)
    found = answer(*call)
    assert found["starts"][0]["plan"] == theirs.digest
    assert none_is_more(tuple(found["after"]), tuple(found["before"]))
    assert tuple(found["after"]) == predicted(graph, Plan.load(plan))


@pytest.mark.parametrize("budget", ["", "1.5", "half", "nan"])
def test_a_budget_of_pytorch_that_is_none_is_refused(graph: Graph, tmp_path: Path, budget: str) -> None:
    graph.save(tmp_path / "graph.json")
    refused = run("inspect", "traffic", tmp_path / "graph.json", "--plan", f"pytorch:{budget}", code=2)
    assert "takes a number from 0 to 1" in " ".join(refused.output.split())
