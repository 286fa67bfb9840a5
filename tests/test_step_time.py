"""The prices of `StepTime`, on the smallest graphs that tell them apart."""

from __future__ import annotations

import pytest

import remat
from costmodels import MemoryBudget, RecomputeTime, StepTime
from remat import GraphBuilder
from remat.errors import UnknownName
from remat.predict.time import DeviceProfile, Roofline

DEVICE = DeviceProfile("one byte a nanosecond", {"float32": 1e12}, 1e9, 5.0, "for this test")


def test_a_save_costs_what_it_moves_and_parameters_are_free() -> None:
    g = GraphBuilder()
    weight = g.input("weight", bytes=64, parameter=True)
    x = g.input("x", bytes=64)
    fused = g.op("sin", x, name="fused", bytes=64)
    product = g.op("mm", fused, weight, name="product", bytes=64, fusible=False)
    g.output(product)
    tangent = g.tangent("dy", bytes=64)
    g.gradient(g.op("mul", tangent, g.op("cos", fused, bytes=64), bytes=64))
    graph = g.build()
    prices = dict(zip(graph.names, StepTime(DEVICE).terms(graph).save_cost.tolist(), strict=True))
    assert (prices["weight"], prices["x"], prices["product"]) == (0, 64, 64)
    assert prices["fused"] == 64  # a product reads it, so that it is in memory anyway


def test_recomputation_costs_what_the_roofline_says() -> None:
    g = GraphBuilder()
    y = g.op("sin", g.input("x", bytes=64), name="y", bytes=64)
    g.output(g.op("exp", y, bytes=64))
    g.gradient(g.op("mul", g.tangent("dy", bytes=64), g.op("cos", y, bytes=64), bytes=64))
    graph = g.build()
    terms, expected = StepTime(DEVICE).terms(graph), RecomputeTime(Roofline(DEVICE)).terms(graph)
    assert terms.recompute_cost.tolist() == expected.recompute_cost.tolist()
    assert terms.cannot_save.as_dict() == expected.cannot_save.as_dict()
    assert terms.save_cost[graph.index["y"]] == 128  # its write and its read: no kernel of the forward pass writes it


def test_the_optimum_is_one_minimum_cut_with_a_proof() -> None:
    graph = remat.Corpus.open().graph("small-bert")
    solution = remat.solve(StepTime().pose(graph))
    assert solution.is_proven
    least_time = remat.solve(RecomputeTime("roofline").pose(graph)).plan
    assert solution.plan is not None
    assert least_time is not None
    assert solution.objective is not None
    assert solution.objective < remat.check_plan(StepTime().pose(graph), least_time)


def test_an_unknown_device_is_refused_where_it_is_typed() -> None:
    with pytest.raises(UnknownName, match="h1000"):
        StepTime("h1000")
    with pytest.raises(UnknownName, match="h1000"):
        MemoryBudget(estimator="roofline:device=h1000")
