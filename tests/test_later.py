"""What takes long to write down is written when asked for, keeps nothing alive, and needs no collector of garbage."""

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
from costmodels import ByteTraffic, MemoryBudget
from remat import Choice, Graph, Plan
from remat.facts.collection import collection_paused
from remat.facts.lazy_field import is_deferred
from remat.improve.byte_budgets import default_saved
from remat.predict.buffers import StepMemory
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


def test_the_collector_is_paused_while_plans_are_predicted_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, enabled, timeline = remat.Corpus.open().graph("small-dropout-mlp"), list[bool](), StepMemory._timeline

    def seen(*args: object) -> object:
        enabled.append(gc.isenabled())
        return timeline(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(StepMemory, "_timeline", seen)
    remat.choose(graph, MemoryBudget(0.8, of="peak"))
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()
    gc.disable()
    try:
        remat.timeline(graph, remat.choose(graph).plan)
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["small-bert", "small-gpt-fused-attention"])
def test_what_a_predicted_plan_consists_of_is_freed_without_the_collector(name: str) -> None:
    graph = remat.Corpus.open().graph(name)
    memory, saved = StepMemory(graph), default_saved(graph)
    assert saved is not None
    memory.peak(saved)  # what all plans share is made now
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        memory.peak(saved)
        gc.collect()
        # Other threads of the process leave garbage, too: only what belongs to the library counts.
        ours = {type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("remat.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


def test_the_collector_goes_on_after_an_error_and_when_the_last_of_several_blocks_has_ended() -> None:
    def failing() -> None:
        with collection_paused():
            raise KeyError

    with collection_paused():
        with pytest.raises(KeyError):
            failing()
        assert not gc.isenabled()
    assert gc.isenabled()
    first, second = collection_paused(), collection_paused()  # as of two threads
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
