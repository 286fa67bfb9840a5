"""Computes which values each pass computes under a plan, and in which order: see `remat.predict.memory`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.answer.plan_facts import computed_by_forward
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.predict.memory.storages import StorageFacts


@dataclass(frozen=True, eq=False)
class Order:
    """Holds the steps of both passes."""

    saved: BoolArray  # (n,) values that are saved and read by the backward pass
    recomputed: BoolArray  # (n,) values outside the tangents' closure that the backward pass computes
    # (k,) the values that each pass computes, in order.
    forward: IntArray
    backward: IntArray
    # (n,) the step, counted over both passes, that computes a value; -1 for none.
    forward_at: IntArray
    backward_at: IntArray
    # (n,) the position at which the backward pass first needs a value: n for its end, n + 1 for never.
    asked_at: IntArray

    @classmethod
    def of(cls, facts: StorageFacts, saved: BoolArray) -> Order:
        n = len(facts)
        asked_at = _asked_at(facts, saved)
        asked = asked_at <= n
        kept = saved & asked & ~facts.tangents
        recomputed = asked & ~saved & facts.computed & ~facts.tangents
        forward = np.flatnonzero(computed_by_forward(facts.graph, kept) & facts.computed)
        backward = np.flatnonzero(recomputed | facts.live)
        # From the first reader of a tangent on: graph order. Earlier values: by the position that needs them first.
        when = np.where(facts.live[backward] | (backward >= facts.first_tangent_reader), backward, asked_at[backward])
        backward = backward[np.argsort(when * (n + 2) + backward)]
        forward_at, backward_at = np.full(n, -1), np.full(n, -1)
        forward_at[forward] = np.arange(len(forward))
        backward_at[backward] = np.arange(len(forward), len(forward) + len(backward))
        return cls(kept, recomputed, forward, backward, forward_at, backward_at, asked_at)


# Values are in topological order, so a sweep from the last to the first visits all readers of a value before it.
def _asked_at(facts: StorageFacts, saved: BoolArray) -> IntArray:
    n, turn, arguments = len(facts), facts.first_tangent_reader, facts.arguments
    asked: list[int] = facts.first_use.tolist()
    unsaved: list[int] = np.flatnonzero(facts.computed & ~facts.tangents & ~saved)[::-1].tolist()
    for v in unsaved:
        when = asked[v]
        if when > n:
            continue
        if v >= turn:
            when = v
        for u in arguments[v]:
            if asked[u] > when:  # noqa: PLR1730  # the inner loop of a search: a call of `min` takes longer
                asked[u] = when
    return np.array(asked, np.int64)


def first_readers(graph: Graph, at: IntArray, never: int) -> IntArray:
    """Returns an array (n,) of the step of each value's first reader; `never` without one.

    Args:
        at: (n,) the step at which each value is computed; -1 for values that are not computed.
    """
    first = np.full(len(graph), never)
    reads = at[graph.consumers] >= 0
    np.minimum.at(first, graph.producers[reads], at[graph.consumers[reads]])
    return first
