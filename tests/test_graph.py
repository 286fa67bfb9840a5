"""A graph checks every rule it states, and derives what follows from its facts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from remat import Graph, GraphBuilder
from remat.errors import InvalidGraph
from remat.plugin import Bans, Region
from remat.testing import graphs


def tanh_step() -> Graph:
    """x -> y = tanh(x), dx = tanh_backward(dy, y): the joint graph of one operator."""
    g = GraphBuilder()
    x = g.input("x", bytes=4)
    g.output(g.op("tanh", x, name="y"))
    g.gradient(g.op("tanh_backward", g.tangent("dy", bytes=4), "y", name="dx"))
    return g.build()


GRAPH = tanh_step()


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"consumers": column(0, 3, 3)}, r"Graph.*cycle 'x' -> 'x'"),
        ({"producers": column(0, 3, 2), "consumers": column(1, 1, 3)}, "topological order.*'y'"),
        ({"producers": column(0, 1, 2), "consumers": column(1, 0, 3)}, "acyclic.*cycle '[xy]' -> '[xy]' ->"),
        ({"producers": column(0, 1, 9)}, r"Graph use 2.*9.*3.*0 to 3"),
        ({"producers": column(0, 2, 2)}, "Graph.*once.*'dy' -> 'dx' twice"),
        ({"producers": column(0, 1)}, r"Graph.consumers.*\(2,\).*\(3,\)"),
        ({"bytes": column(4, -4, 4, 4)}, r"Graph.bytes\['y'\].*negative.*-4"),
        ({"flops": column(0, 0, 0, -1)}, r"Graph.flops\['dx'\].*negative.*-1"),
        ({"bytes": column(4, 4, 4)}, r"Graph.bytes.*\(4,\).*\(3,\)"),
        ({"bytes": np.ones(4)}, "Graph.bytes.*2..62.*float64"),
        ({"bytes": column(2**61, 2**61, 0, 0)}, r"Graph.bytes.*2\*\*62"),
        ({"bytes": [4, [4], 4, 4]}, "Graph.bytes.*one-dimensional"),
        ({"view": column(0, 2, 0, 0)}, "Graph.view.*true and false.*int64"),
        ({"fusible_uses": np.ones(2, np.bool_)}, r"Graph.fusible_uses.*\(3,\).*\(2,\)"),
        ({"names": ("x", "y", "y", "dx")}, "Graph.names.*unique.*'y' twice"),
        ({"ops": ("tanh",)}, r"Graph.ops.*\(4\), got 1"),
        ({"cannot_save": Bans.none(3)}, r"Graph.cannot_save.*\(4\), got 3"),
        ({"region": column(0, 0, 1, 7)}, r"Graph.region.*remat.plugin.Region.*7"),
        ({"region": column(0, 0, 1, 0)}, "Graph: 'dx'.*'dy'.*tangent.*region"),
        ({"region": column(2, 0, 1, 1)}, "Graph: 'y'.*'x'.*FORWARD"),
        ({"input": column(1, 1, 0, 0)}, "Graph: 'y'.*'x'.*input"),
        ({"output": column(0, 1, 0, 1)}, r"Graph.region\['dx'\].*FORWARD.*returns it"),
        ({"input": column(1, 0, 1, 0)}, r"Graph.region\['dy'\].*TANGENTS.*reads it"),
        ({"storage": column(0, 1, 2, 0)}, r"Graph.storage\['dx'\].*that 'dx' uses.*the storage of 'x'.*got 0"),
    ],
)
def test_each_broken_rule_is_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGraph, match=message):
        replace(GRAPH, **change)


def test_columns_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        GRAPH.bytes[0] = 5


def test_equal_by_content() -> None:
    assert tanh_step() == GRAPH
    assert replace(GRAPH, bytes=column(4, 4, 4, 8)) != GRAPH
    assert GRAPH != "a graph"


def test_needed_is_what_the_backward_pass_cannot_compute() -> None:
    assert [GRAPH.names[i] for i in np.flatnonzero(GRAPH.needed)] == ["y"]


def test_views_share_their_storage() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=8)
    wide = g.op("expand", g.op("exp", x, bytes=2), view=True, bytes=64)
    narrow = g.op("slice", wide, view=True, bytes=1)
    g.output(g.op("sum", narrow, fusible=False))
    graph = g.build()
    assert graph.storage_bytes.tolist() == [8, 2, 2, 2, 1]
    assert graph.moved_bytes.tolist() == [8, 2, 2, 1, 1]
    assert graph.materialized.tolist() == [True, True, True, True, True]


@given(graphs())
def test_regions_partition_the_values_by_who_can_compute_them(graph: Graph) -> None:
    u, v = graph.producers, graph.consumers
    tangents, forward = graph.region == Region.TANGENTS, graph.region == Region.FORWARD
    assert (tangents[v] | ~tangents[u]).all()
    assert (forward[u] | ~forward[v]).all()
    assert not (graph.needed & tangents).any()


@given(graphs())
def test_a_view_has_the_facts_of_its_storage(graph: Graph) -> None:
    assert (graph.storage[graph.base] == graph.storage).all()
    assert (graph.moved_bytes <= graph.bytes).all()
    assert (graph.materialized == graph.materialized[graph.base]).all()
    assert (graph.base <= np.arange(len(graph))).all()


@given(graphs())
def test_rebuilding_a_graph_from_its_fields_gives_an_equal_graph(graph: Graph) -> None:
    assert Graph(**{f.name: getattr(graph, f.name) for f in fields(graph)}) == graph


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda g: g.op("add", "x", "z"), "no value named 'z'; there are: x"),
        (lambda g: g.input("x"), "the name 'x' is taken; give another with name="),
        (lambda g: g.op("rand"), r"GraphBuilder.op\('rand'\): give bytes=, there is no argument"),
        (lambda g: g.op("view", view=True, bytes=4), r"GraphBuilder.op\('view'\): a view needs an argument"),
        (lambda g: (g.input("y", bytes=1.5), g.build()), "Graph.bytes.*2..62.*float64"),
        (lambda g: (g.input("y", bytes=2**62), g.build()), r"Graph.bytes.*2\*\*62"),
    ],
)
def test_the_builder_s_errors(build: Any, message: str) -> None:
    g = GraphBuilder()
    g.input("x")
    with pytest.raises(InvalidGraph, match=message):
        build(g)


def test_the_builder_numbers_equal_operators() -> None:
    g = GraphBuilder()
    x = g.input("x")
    assert [g.op("add", x), g.op("add", x), g.op("add", x)] == ["add", "add_1", "add_2"]
