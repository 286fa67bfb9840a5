"""What takes longer to write down than a plan takes to find is written when asked for, and keeps nothing alive."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import remat
from costmodels import ByteTraffic
from remat import Choice, Graph, Plan
from remat.facts.lazy_field import is_deferred
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from solvers.ortools_flow import ORTools


def captured() -> Graph:
    return remat.capture(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(2, 4))


def test_a_plan_is_solved_for_before_its_graph_is_written_down() -> None:
    graph = captured()
    problem = ByteTraffic().pose(graph)
    plan = remat.solve(problem).plan
    unread = [
        (graph, "arguments"),
        (graph, "modules"),
        (graph, "sources"),
        (problem, "signature"),
        (problem, "places"),
        (plan, "graph"),
    ]
    assert all(is_deferred(thing, field) for thing, field in unread)
    assert "signature" not in vars(graph)
    assert plan.graph == problem.signature == graph.signature
    assert len(problem.places) == len(problem)
    assert any(graph.modules)
    assert any(graph.arguments)
    assert not any(is_deferred(thing, field) for thing, field in unread if field != "sources")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copies_have_what_was_not_written_down_yet(copied: Any) -> None:
    graph = captured()
    problem = ByteTraffic().pose(graph)
    plan = remat.solve(problem).plan
    twins: tuple[Graph, Plan] = copied(graph), copied(plan)
    other = copied(problem)
    assert (twins[0].modules, twins[0].sources) == (graph.modules, graph.sources)
    assert (twins[1].graph, other.signature, other.places) == (graph.signature, graph.signature, problem.places)


def test_what_is_read_later_keeps_no_fx_graph_alive() -> None:
    found: list[Any] = []

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        found.append(extract(joint_graph, node_info, num_fwd_outputs))
        found.append(weakref.ref(joint_graph))

    visit_joint_graphs(visit, nn.Sequential(nn.Linear(4, 8), nn.Tanh()), torch.randn(2, 4))
    torch.compiler.reset()
    gc.collect()
    graph, joint_graph = found
    assert is_deferred(graph, "modules")
    assert is_deferred(graph, "arguments")
    assert joint_graph() is None
    assert any(graph.arguments)


@dataclass(frozen=True)
class Counting(ORTools):
    name = "counting"

    def cut(self, found: Any) -> Choice:
        cuts.append(found.weight)
        return super().cut(found)


cuts: list[int] = []


def test_an_edge_of_the_hull_takes_a_flow_and_no_cut() -> None:
    cuts.clear()
    curve = remat.frontier(captured(), solver=Counting())
    assert len(curve.edges) == len(curve.vertices) - 1 > 0
    assert len(cuts) == len(curve.vertices)
