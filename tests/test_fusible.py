"""The meanings of "fusible" (docs/fusion.md) agree where they must."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from examples import chain
from hypothesis import given
from hypothesis import strategies as st
from strategies import Dice

from remat import Choice, Corpus, Graph, solve
from remat.facts.columns import BoolArray, IntArray
from remat.predict.kernels import Fuser
from remat.predict.memory.lifetimes import Lifetimes
from remat.predict.memory.order import Order
from remat.predict.memory.registers import LOWERED
from remat.predict.memory.storages import StorageFacts
from remat.predict.time.work import Work
from remat.testing.strategies import graphs

SMALL = [entry.name for entry in Corpus.open().entries if entry.name.startswith("small-")]
SEEDS = "prims.inductor_seeds.default"
"""torch's extraction calls it fusible, since it only feeds pointwise operators; TorchInductor calls a library."""
PRODUCT, SUM = "aten.mm.default", "aten.add.Tensor"
"""Together one call of `addmm`: the sum is what is stored, though the lists call it fusible."""

CONCATENATION = "aten.cat.default"
"""Written in place, by the kernels of its parts."""


@dataclass(frozen=True, eq=False)
class WrittenStorages:
    """Says which of the k storages that one pass computes it writes to memory, by each meaning: arrays of (k,).

    Attributes:
        values: positions of the values that own the storages.
        bytes: sizes.
        lists: by the lists of torch's partitioner (`Graph.fusible_uses`).
        memory: by the simulation of live bytes (`remat.predict.memory.registers`).
        kernels: by the predicted kernels (`remat.predict.kernels`).
        called: a call of a library computes it, by the predicted kernels.
        timed: the backward pass recomputes it, and an estimator has a price for that.
        time: an estimator charges a kernel of its own (`Work.own_kernel`).
    """

    values: IntArray
    bytes: IntArray
    lists: BoolArray
    memory: BoolArray
    kernels: BoolArray
    called: BoolArray
    timed: BoolArray
    time: BoolArray


def stores(graph: Graph, saved: BoolArray) -> tuple[WrittenStorages, WrittenStorages]:
    """Finds what the forward and the backward pass write, when `saved` (n,) is saved."""
    facts, work = StorageFacts.of(graph), Work.of(graph)
    order = Order.of(facts, saved)
    lives, kernels = Lifetimes.of(facts, order, True), Fuser(graph).kernels(saved)

    def of(values: IntArray, returned: BoolArray, backward: bool) -> WrittenStorages:
        inside = _flags(graph, values)
        own = inside & (graph.base == np.arange(len(graph))) & ~facts.external & (graph.bytes > 0)
        mine = [kernel for kernel in kernels if kernel.backward == backward]
        found = np.flatnonzero(own)
        columns = (
            _stored_by_lists(graph, inside, returned),
            _flags(graph, lives.base[lives.backward == backward]),
            _flags(graph, [v for kernel in mine for v in kernel.writes]),
            _flags(graph, [v for kernel in mine if not kernel.generated for v in kernel.writes]),
            order.recomputed & ~work.free & backward,
            work.own_kernel,
        )
        return WrittenStorages(found, graph.bytes[found], *(column[found] for column in columns))

    forward = of(order.forward, graph.output | order.saved, backward=False)
    return forward, of(order.backward, graph.gradient, backward=True)


def _stored_by_lists(graph: Graph, inside: BoolArray, returned: BoolArray) -> BoolArray:
    """Marks (n,) what the pass returns, or reads over a use that cannot be fused: as `Graph.materialized`."""
    stored = inside & returned
    stored[graph.producers[inside[graph.consumers] & ~graph.fusible_uses]] = True
    return _flags(graph, graph.base[stored])[graph.base]


def _flags(graph: Graph, positions: IntArray | list[int]) -> BoolArray:
    flags = np.zeros(len(graph), np.bool_)
    flags[positions] = True
    return flags


def saves(graph: Graph, seed: int) -> BoolArray:
    """What a random legal plan saves."""
    plan = solve(Dice(seed).pose(graph)).plan
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
    memory = StorageFacts.of(graph).fusible
    more, less = memory & ~graph.fusible, graph.fusible & ~memory
    assert ops(graph, np.flatnonzero(more)) <= LOWERED | {PRODUCT}
    complex_numbers = np.array([dtype.startswith("complex") for dtype in graph.dtypes], np.bool_)
    complex_numbers[graph.consumers[complex_numbers[graph.producers]]] = True
    assert ops(graph, np.flatnonzero(less & ~complex_numbers)) <= {SUM}


@pytest.mark.parametrize("name", SMALL)
def test_the_inclusions_hold_on_small_models(name: str) -> None:
    graph = Corpus.open().graph(name)
    check_registers(graph)
    for seed in range(3):
        saved = saves(graph, seed)
        check_inclusions(graph, saved)
        check_inclusions_of_models(graph, saved)


@given(graph=graphs(facts=False, largest=8), seed=st.integers(0, 99))
def test_the_inclusions_hold_on_random_graphs(graph: Graph, seed: int) -> None:
    check_registers(graph)
    check_inclusions(graph, saves(graph, seed))


def test_a_chain_of_pointwise_operators_is_stored_alike_by_all() -> None:
    graph = chain(6)
    saved = np.zeros(len(graph), np.bool_)
    saved[graph.index["cos_2"]] = True
    for each in stores(graph, saved):
        assert len(each.values) > 0
        assert (each.lists == each.kernels).all()
        assert (each.memory == each.kernels).all()
        assert (each.time == each.kernels)[each.timed].all()
