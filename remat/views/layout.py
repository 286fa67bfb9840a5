"""Computes a layered drawing of a small acyclic graph, from top to bottom.

The layers follow longest paths (Sugiyama, Tagawa and Toda, 1981). An edge that spans several layers has a bend in each,
and the edges of one producer share their bends. Sweeps down and up sort each layer by the positions of its neighbours,
and then move the vertices towards these positions, as far as the minimum distances allow. NetworkX places the vertices
of a layer evenly instead: up to a fifth of the edges of a graph of the corpus then cross boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

_ORDER_SWEEPS, _PLACE_SWEEPS = 24, 80

_BEND_WIDTH = 0.1
# The weight of an edge between two bends, relative to one between two nodes: straight edges are easier to follow.
_STRAIGHT = 8
_Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Holds the centres of n nodes and the routes of m edges, in inches; y grows downwards."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    routes: tuple[tuple[_Point, ...], ...]  # the points of each edge, from centre to centre


def layered(
    edges: Sequence[tuple[int, int]], widths: Sequence[float], rank: Sequence[float], *, gap: float, drop: float
) -> Layout:
    """Computes the layout of nodes 0 to n - 1, whose edges lead from smaller to larger numbers.

    Args:
        widths: the width of each node, in inches.
        rank: initial order within a layer, from left to right.
        gap: minimum distance between the boxes of a layer.
        drop: distance between the centres of two layers.
    """
    n, layer = len(widths), _layers(len(widths), edges)
    bends: dict[tuple[int, int], int] = {}  # (producer, layer) -> vertex n, n + 1, ...
    routes = [
        [u, *(bends.setdefault((u, depth), n + len(bends)) for depth in range(layer[u] + 1, layer[v])), v]
        for u, v in edges
    ]
    owner = [*range(n), *(producer for producer, _ in bends)]
    layer += [depth for _, depth in bends]
    above, below = _neighbours(len(layer), dict.fromkeys(pair for route in routes for pair in pairwise(route)))
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for vertex in sorted(range(len(layer)), key=lambda vertex: (rank[owner[vertex]], owner[vertex])):
        rows[layer[vertex]].append(vertex)
    rows = _ordered(rows, above, below)
    x = _placed(rows, above, below, [*widths, *[_BEND_WIDTH] * len(bends)], n, gap)
    points = [(x[vertex], layer[vertex] * drop) for vertex in range(len(layer))]
    return Layout(
        tuple(x[:n]),
        tuple(y for _, y in points[:n]),
        tuple(tuple(points[vertex] for vertex in route) for route in routes),
    )


def _neighbours(n: int, edges: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        before[v].append(u)
        after[u].append(v)
    return before, after


# Longest paths from above; then a node with at least as many users as operands moves down to its users.
def _layers(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    before, after = _neighbours(n, edges)
    layer = [0] * n
    for v in range(n):
        layer[v] = max((layer[u] + 1 for u in before[v]), default=0)
    for v in reversed(range(n)):
        if after[v] and len(after[v]) >= len(before[v]):
            layer[v] = min(layer[w] for w in after[v]) - 1
    top = min(layer, default=0)
    return [depth - top for depth in layer]


# Sweeps down and up, sorting each row by the mean position of its neighbours; returns the rows with the fewest
# crossings.
def _ordered(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    best, fewest = rows, _crossings(rows, below)
    for sweep in range(_ORDER_SWEEPS):
        rows, down = [list(row) for row in rows], sweep % 2 == 0
        place: dict[int, float] = {}
        for row in rows if down else reversed(rows):
            mean = {vertex: k / len(row) for k, vertex in enumerate(row)}
            for vertex in row:
                if neighbours := (above if down else below)[vertex]:
                    mean[vertex] = sum(place[other] for other in neighbours) / len(neighbours)
            row.sort(key=mean.__getitem__)
            place |= {vertex: k / len(row) for k, vertex in enumerate(row)}
        if (crossings := _crossings(rows, below)) < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    total = 0
    for row, following in pairwise(rows):
        place = {vertex: k for k, vertex in enumerate(following)}
        ends = np.array([(k, place[end]) for k, vertex in enumerate(row) for end in below[vertex]]).reshape(-1, 2).T
        left, right = np.less.outer(*ends[[0, 0]]), np.greater.outer(*ends[[1, 1]])
        total += int((left & right).sum())
    return total


# Moves every vertex towards its neighbours; vertices from n on are bends.
def _placed(
    rows: list[list[int]], above: list[list[int]], below: list[list[int]], widths: Sequence[float], n: int, gap: float
) -> list[float]:
    def pull(v: int, other: int) -> int:
        return (1, 2, _STRAIGHT)[(v >= n) + (other >= n)]

    x = [0.0] * len(widths)
    for sweep in range(_PLACE_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            pulls = [[(x[w], pull(v, w)) for w in above[v] + below[v]] for v in row]
            weights = [sum(weight for _, weight in pulled) or 0.01 for pulled in pulls]
            targets = [
                sum(at * weight for at, weight in pulled) / total for pulled, total in zip(pulls, weights, strict=True)
            ]
            _move(row, targets, weights, widths, gap, x)
    return x


# Moves a layer as near to the targets (weighted least squares) as the minimum distances allow. After subtracting the
# distances, this is isotonic regression, solved by pooling adjacent violators.
def _move(
    row: list[int], targets: list[float], weights: Sequence[float], widths: Sequence[float], gap: float, x: list[float]
) -> None:
    offset = [0.0]
    for left, right in pairwise(row):
        offset.append(offset[-1] + (widths[left] + widths[right]) / 2 + gap)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for target, weight, shift in zip(targets, weights, offset, strict=False):
        mean, total, members = target - shift, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, number = pools.pop()
            mean, total, members = (mean * total + other * more) / (total + more), total + more, members + number
        pools.append((mean, total, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    for vertex, mean, shift in zip(row, means, offset, strict=False):
        x[vertex] = mean + shift
