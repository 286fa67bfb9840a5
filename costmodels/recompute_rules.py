"""The sources' rules about what not to recompute, one named function each.

A rule looks at a graph, and at what earlier rules have banned, and returns (n,) the values that it
bans from recomputation. The caller drops bans on views, which are free to take again, and on inputs; and,
except for random numbers, on what only the backward pass needs, as torch does: such a value runs once in
most plans, and where it runs in both passes it is priced too low.

Sources: "paper" is Yu and He, "Transcending runtime-memory tradeoffs in checkpointing by being
fusion aware"; "post" is He, "Min-cut optimal(*) recomputation"; "torch" is
`torch/_functorch/partitioners.py` of PyTorch 2.13.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.plugin import BoolArray, Graph, IntArray

REDUCTION_RATIO = 4
"""An output more than this many times smaller than its inputs counts as a small reduction (paper, 3.4)."""

LONGEST_CHAIN = 100
"""Forward operators that a chain of fusible ones may span (torch; the sources give no number)."""


@dataclass(frozen=True)
class Rule:
    """A rule, its source, and the reason that its bans carry.

    Attributes:
        name: the switch in `ByteTraffic(rules={name: bool})`.
        reason: completes "cannot be recomputed (...)".
        source: where the rule comes from.
        modes: the modes of `ByteTraffic` that switch it on.
        bans: (graph, (n,) values banned so far) -> (n,) values not to recompute.
    """

    name: str
    reason: str
    source: str
    modes: frozenset[str]
    bans: Callable[[Graph, BoolArray], BoolArray]


def _random(graph: Graph, _banned: BoolArray) -> BoolArray:
    return graph.random


def _compute_bound(graph: Graph, _banned: BoolArray) -> BoolArray:
    return graph.compute_bound


def _not_fusible(graph: Graph, _banned: BoolArray) -> BoolArray:
    return ~graph.fusible


def _small_reduction(graph: Graph, _banned: BoolArray) -> BoolArray:
    """Recomputing would read much more than saving writes."""
    read = np.zeros(len(graph), np.int64)
    np.add.at(read, graph.consumers, graph.bytes[graph.producers])
    return graph.bytes < -(-read // REDUCTION_RATIO)  # bytes * 4 < read, without the overflow


def _materialized_in_backward(graph: Graph, _banned: BoolArray) -> BoolArray:
    """Some use outside the forward pass cannot be fused, so recomputing would write the value too.

    A use through a view is a use of the value.
    """
    materialized = np.zeros(len(graph), np.bool_)
    outside = ~_forward_uses(graph)
    materialized[graph.producers[outside & ~graph.fusible_uses]] = True
    of_views = np.flatnonzero(graph.view[graph.consumers])
    last_first = of_views[graph.consumers[of_views].argsort()[::-1]]
    found: list[bool] = materialized.tolist()
    for base, view in zip(graph.producers[last_first].tolist(), graph.consumers[last_first].tolist(), strict=True):
        if found[view]:
            found[base] = True
    return np.array(found, np.bool_)


def _used_far_apart(graph: Graph, _banned: BoolArray) -> BoolArray:
    """A value with a near and a far use: recomputing for the far one would not fuse with the near.

    "Far" means beyond the first operator, down any path from the value's uses, that cannot be
    fused. The far uses are the ones banned.
    """
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


def _first_unfusible(n: int, u: IntArray, v: IntArray, fusible: BoolArray) -> IntArray:
    """(n,) the first value down any path from each value that is reached through an unfusible use.

    A path's first unfusible use ends before its later ones, so a pass over the uses from the last
    to the first suffices. n stands for "none".
    """
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


def _long_fusible_chain(graph: Graph, earlier: BoolArray) -> BoolArray:
    """Cuts chains of fusible operators that would run from one end of the model to the other.

    Grows each chain in forward order, up to values that are not recomputed anyway; where it is one
    operator wide and longer than `LONGEST_CHAIN`, that operator is banned and a new chain starts.
    """
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
"""Every rule, in the order in which they are tried; the first that bans a value names the reason."""
