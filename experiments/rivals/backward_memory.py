"""Says what programs of memory need beside tensors: what is in registers, and what the backward pass holds in any case.

A program that knows neither counts more memory than the benchmark does, for the same plan.
"""

from __future__ import annotations

import numpy as np

from experiments.rivals.question import Question
from remat import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.predict.memory.lifetimes import Lifetimes, alive_bytes
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts


def held_beside(question: Question) -> IntArray:
    """Returns (N + 1,) the bytes during each node of the backward pass, if all that can be saved is saved."""
    graph, facts = question.graph, StorageFacts.of(question.graph)
    everything = Choice.from_saved(question.problem, ~question.problem.cannot_save.mask)
    order = Order.of(facts, graph.for_all_values(everything.saved))
    lives = Lifetimes.of(facts, order, True)
    decided = np.zeros(len(graph), np.bool_)
    decided[graph.plannable[question.value]] = True
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


def in_registers(question: Question) -> BoolArray:
    """Returns a mask (k,) of the tensors that are in registers wherever they are not saved: all readers are fused."""
    graph, facts = question.graph, StorageFacts.of(question.graph)
    written = np.zeros(len(graph), np.bool_)
    written[graph.base[facts.producers[facts.unfused]]] = True
    written[graph.base[graph.gradient | graph.output]] = True
    nodes = graph.plannable[question.value]
    return facts.fusible[nodes] & ~written[nodes]
