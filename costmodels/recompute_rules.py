"""Defines the sources' rules about what not to recompute, one named function each.

A rule takes a graph and the mask (n,) of earlier bans, and returns the mask (n,) of the values that it bans from
recomputation. The caller drops bans on views, which are free to recompute, and on inputs. Like torch, it also drops
bans on values that only the backward pass needs, except random numbers: most plans compute such a value once. If both
passes do, its price is too low.

Sources: "paper" is Yu and He, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware"; "post" is
He, "Min-cut optimal(*) recomputation"; "torch" is `torch/_functorch/partitioners.py` of PyTorch 2.13.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.plugin import BoolArray, Graph, IntArray

REDUCTION_RATIO = 4
"""An operator is a small reduction if its inputs are more than this many times larger than its output (paper, 3.4)."""

LONGEST_CHAIN = 100
"""The most forward operators in a chain of fusible ones (torch's number; paper and post have none)."""


@dataclass(frozen=True)
class Rule:
    """Represents a rule that bans values from recomputation, with a reason and a source."""

    name: str  # the switch in `ByteTraffic(rules={name: bool})`
    reason: str  # completes "cannot be recomputed (...)"
    source: str
    modes: frozenset[str]  # the modes of `ByteTraffic` in which it is on
    bans: Callable[[Graph, BoolArray], BoolArray]  # (graph, (n,) values banned so far) -> (n,) values not to recompute


def _random(graph: Graph, _banned: BoolArray) -> BoolArray:
    return graph.random


def _compute_bound(graph: Graph, _banned: BoolArray) -> BoolArray:
    return graph.compute_bound


def _not_fusible(graph: Graph, _banned: BoolArray) -> BoolArray:
    return ~graph.fusible


# Recomputing reads much more than saving writes.
def _small_reduction(graph: Graph, _banned: BoolArray) -> BoolArray:
    read = np.zeros(len(graph), np.int64)
    np.add.at(read, graph.consumers, graph.bytes[graph.producers])
    return graph.bytes < -(-read // REDUCTION_RATIO)  # bytes * 4 < read, without the overflow


# Values with a use outside the forward pass that cannot be fused: recomputing would write them, too. A use through a
# view is a use of the value.
def _materialized_in_backward(graph: Graph, _banned: BoolArray) -> BoolArray:
    materialized = np.zeros(len(graph), np.bool_)
    outside = ~_forward_uses(graph)
    materialized[graph.producers[outside & ~graph.fusible_uses]] = True
    of_views = np.flatnonzero(graph.view[graph.consumers])
    last_first = of_views[graph.consumers[of_views].argsort()[::-1]]
    written: list[bool] = materialized.tolist()
    for base, view in zip(graph.producers[last_first].tolist(), graph.consumers[last_first].tolist(), strict=True):
        if written[view]:
            written[base] = True
    return np.array(written, np.bool_)


# Bans the far uses of values that have near and far ones, because a recomputed value fuses with near uses only. A use
# is far if it is beyond the first use that cannot be fused, down any path from the value.
def _used_far_apart(graph: Graph, _banned: BoolArray) -> BoolArray:
    banned = np.zeros(len(graph), np.bool_)
    forward = _forward_uses(graph)
    u, v = graph.producers[forward], graph.consumers[forward]
    if not (np.bincount(u) > 1).any():
        return banned  # one use is never beyond itself
    fusible = graph.fusible_uses[forward]
    barrier = _first_unfusible(len(graph), u, v, fusible)
    none = len(graph)
    nearest = np.full(len(graph), none)
    np.minimum.at(nearest, u, barrier[v])
    banned[v[fusible & (v > nearest[u])]] = True
    return banned


# (n,) the first value reached through an unfusible use down any path from each value; n if there is none. Producers
# come before consumers, so one sweep over the uses, from the last producer to the first, is enough.
def _first_unfusible(n: int, u: IntArray, v: IntArray, fusible: BoolArray) -> IntArray:
    first: list[int] = [n] * n
    order = np.argsort(u, kind="stable")[::-1]
    producers: list[int] = u[order].tolist()
    consumers: list[int] = v[order].tolist()
    fused_uses: list[bool] = fusible[order].tolist()
    for producer, consumer, fused in zip(producers, consumers, fused_uses, strict=True):
        reached = first[consumer] if fused else consumer
        if reached < first[producer]:  # noqa: PLR1730  # `min` takes twice as long
            first[producer] = reached
    return np.array(first, np.int64)


# Cuts chains of fusible operators which would span the whole model. A chain grows in forward order, up to values that
# are not recomputed anyway. If it is one operator wide and longer than `LONGEST_CHAIN`, that operator is banned, and a
# new chain starts.
def _long_fusible_chain(graph: Graph, earlier: BoolArray) -> BoolArray:
    in_forward = graph.in_forward
    if int(in_forward.sum()) <= LONGEST_CHAIN:
        return np.zeros(len(graph), np.bool_)
    position = (np.cumsum(in_forward) - 1).tolist()
    chained = _forward_uses(graph) & graph.fusible_uses & ~earlier[graph.consumers]
    users: defaultdict[int, list[int]] = defaultdict(list)
    producers: list[int] = graph.producers[chained].tolist()
    consumers: list[int] = graph.consumers[chained].tolist()
    for u, v in zip(producers, consumers, strict=True):
        users[u].append(v)
    banned: list[bool] = earlier.tolist()
    visited = [False] * len(graph)
    for start in sorted(users):
        chain = [start]
        while chain:
            current = heapq.heappop(chain)
            if visited[current]:
                continue
            visited[current] = True
            if position[current] > position[start] + LONGEST_CHAIN and not chain:
                banned[current] = True
                break
            for user in users.get(current, ()):
                if not banned[user]:
                    heapq.heappush(chain, user)
    return np.array(banned, np.bool_)


def _forward_uses(graph: Graph) -> BoolArray:
    return graph.in_forward[graph.consumers]


_BOTH = frozenset({"conservative", "aggressive"})
_CONSERVATIVE = frozenset({"conservative"})

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("random", "random", "paper 3.4; post", _BOTH, _random),
        Rule("compute_bound", "compute-bound", "paper 3.1 (3); post", _BOTH, _compute_bound),
        Rule("not_fusible", "not fusible", "post: conservative mode", _CONSERVATIVE, _not_fusible),
        Rule(
            "small_reduction",
            f"reduces its inputs more than {REDUCTION_RATIO}x",
            "paper 3.4",
            _CONSERVATIVE,
            _small_reduction,
        ),
        Rule(
            "materialized_in_backward",
            "written by the backward pass even if recomputed",
            "paper 3.1 (2), Lemma 3.1",
            _CONSERVATIVE,
            _materialized_in_backward,
        ),
        Rule("used_far_apart", "used far apart", "torch: ban_recompute_used_far_apart", _CONSERVATIVE, _used_far_apart),
        Rule(
            "long_fusible_chain",
            "end of a long fusible chain",
            "torch: ban_recompute_long_fusible_chains",
            _CONSERVATIVE,
            _long_fusible_chain,
        ),
    )
}
"""All rules, in the order in which they are tried; the first that bans a value names the reason."""
