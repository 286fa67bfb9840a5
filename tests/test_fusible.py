"""The meanings of "fusible" (docs/fusion.md) agree where they must, and disagree no more often than is written down."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from examples import chain
from hypothesis import given
from hypothesis import strategies as st
from strategies import Dice

from experiments.accuracy.fusion_meanings import EXPERIMENTS, row, rows, stores
from remat import Graph, solve
from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.predict.memory.registers import LOWERED
from remat.predict.memory.storages import Storages
from remat.predict.time.work import Work
from remat.testing.strategies import graphs

SMALL = sorted(path.name.removesuffix(".json.gz") for path in (EXPERIMENTS / "instances").glob("small-*.json.gz"))
SEEDS = "prims.inductor_seeds.default"
"""torch's extraction calls it fusible, since it only feeds pointwise operators; TorchInductor calls a library."""
PRODUCT, SUM = "aten.mm.default", "aten.add.Tensor"
"""Together one call of `addmm`: the sum is what is stored, though the lists call it fusible."""

CONCATENATION = "aten.cat.default"
"""Written in place, by the kernels of its parts."""


def instance(name: str) -> Graph:
    return Graph.load(EXPERIMENTS / "instances" / f"{name}.json.gz")


def saves(graph: Graph, seed: int) -> BoolArray:
    """What a random legal plan saves."""
    plan = solve(Dice(seed).pose(graph)).plan
    assert plan is not None
    return Choice.from_plan(graph, plan).saved


def ops(graph: Graph, positions: IntArray) -> set[str]:
    return {graph.ops[v] for v in positions.tolist()}


def check_inclusions(graph: Graph, saved: BoolArray) -> None:
    work = Work.of(graph)
    assert (work.own_kernel == ~work.free & ~graph.fusible).all()
    for each in stores(graph, saved):
        called, at = each.called, each.values
        assert not (called & ~each.kernels).any()  # What a library computes is in memory,
        assert ops(graph, at[called & ~each.memory]) <= {SEEDS}  # in the simulation of memory, too;
        assert ops(graph, at[called & ~each.time & ~work.free[at]]) <= {SEEDS, SUM}  # it is priced as a kernel.


def check_inclusions_of_models(graph: Graph, saved: BoolArray) -> None:
    """What holds where operators have their own rules, unlike those of random graphs."""
    product = np.array([op == PRODUCT for op in graph.ops], np.bool_)
    for each in stores(graph, saved):
        assert (each.memory == each.kernels)[product[each.values]].all()  # Both know which become part of a sum.
        assert ops(graph, each.values[each.timed & each.time & ~each.kernels]) <= LOWERED | {CONCATENATION}


def check_registers(graph: Graph) -> None:
    """The simulation of memory departs from torch's lists by the three rules of its docstring, nowhere else."""
    memory = Storages.of(graph).fusible
    more, less = memory & ~graph.fusible, graph.fusible & ~memory
    assert ops(graph, np.flatnonzero(more)) <= LOWERED | {PRODUCT}
    complex_numbers = np.array([dtype.startswith("complex") for dtype in graph.dtypes], np.bool_)
    complex_numbers[graph.consumers[complex_numbers[graph.producers]]] = True
    assert ops(graph, np.flatnonzero(less & ~complex_numbers)) <= {SUM}


@pytest.mark.parametrize("name", SMALL)
def test_the_inclusions_hold_on_small_models(name: str) -> None:
    graph = instance(name)
    check_registers(graph)
    for seed in range(3):
        saved = saves(graph, seed)
        check_inclusions(graph, saved)
        check_inclusions_of_models(graph, saved)


@given(graph=graphs(facts=False, largest=8), seed=st.integers(0, 99))
def test_the_inclusions_hold_on_random_graphs(graph: Graph, seed: int) -> None:
    check_registers(graph)
    check_inclusions(graph, saves(graph, seed))


def test_the_meanings_disagree_no_more_often_than_the_results_say() -> None:
    written = pd.read_csv(EXPERIMENTS / "results" / "fusion_meanings.csv").set_index(["instance", "cost_model"])
    assert len(written) == 2 * len(list((EXPERIMENTS / "instances").glob("*.json.gz")))
    for found in rows(SMALL):
        documented = written.loc[(found["instance"], found["cost_model"])]
        for column in ("lists", "lists_bytes", "memory", "memory_bytes", "time", "time_bytes"):
            assert found[column] <= documented[column] + 1e-4, (found["instance"], column)


def test_a_chain_of_pointwise_operators_is_stored_alike_by_all() -> None:
    graph = chain(6)
    saved = np.zeros(len(graph), np.bool_)
    saved[graph.index["cos_2"]] = True
    found = row(graph, saved)
    assert found["storages"] > 0
    assert found["lists"] == found["memory"] == found["time"] == 0
