"""Says what programs of memory need beside tensors: what is in registers, and what the backward pass holds in any case.

A program that knows neither counts more memory than the benchmark does, for the same plan.
"""

from __future__ import annotations

import numpy as np

from experiments.rivals.tensor_instance import TensorInstance
from remat import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.predict.memory.lifetimes import Lifetimes, alive_bytes
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts


def held_beside(instance: TensorInstance) -> IntArray:
    """Returns (N + 1,) the bytes during each node of the backward pass, if all that can be saved is saved."""
    graph, facts = instance.graph, StorageFacts.of(instance.graph)
    everything = Choice.from_saved(instance.problem, ~instance.problem.cannot_save.mask)
    order = Order.of(facts, graph.for_all_values(everything.saved))
    lives = Lifetimes.of(facts, order, True)
    decided = np.zeros(len(graph), np.bool_)
    decided[graph.plannable[instance.value]] = True
    others = ~decided[lives.base] | (lives.output & ~lives.saved)
    steps = len(order.forward) + len(order.backward)
    during = alive_bytes(lives.start[others], lives.end[others], lives.size[others], steps)
    held, last = np.zeros(len(graph) + 1, np.int64), 0
    for node in range(len(graph)):
        if facts.live[node]:
            last = int(during[order.backward_at[node]])
        held[node] = last
    held[len(graph)] = last
    return held


def in_registers(instance: TensorInstance) -> BoolArray:
    """Returns a mask (k,) of the tensors that are in registers wherever they are not saved: all readers are fused."""
    graph, facts = instance.graph, StorageFacts.of(instance.graph)
    written = np.zeros(len(graph), np.bool_)
    written[graph.base[facts.producers[facts.unfused]]] = True
    written[graph.base[graph.gradient | graph.output]] = True
    nodes = graph.plannable[instance.value]
    return facts.fusible[nodes] & ~written[nodes]
