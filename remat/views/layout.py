"""Places the nodes of a small acyclic graph in layers, from top to bottom.

The classic three steps (Sugiyama, Tagawa and Toda, 1981): layers by longest path; order within the
layers by barycenter sweeps; positions by least squares under a least distance. An edge that spans
several layers gets a bend in each, and the edges of one producer share their bends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_ORDER_SWEEPS = 24
_PLACE_SWEEPS = 80
_BEND_WIDTH = 0.1
_STRAIGHT = 8
"""How much more an edge between two bends wants to be vertical than one between two nodes."""


@dataclass(frozen=True)
class Layout:
    """Gives the centres of n nodes and the routes of m edges, in inches; y grows downwards.

    Attributes:
        x, y: of each node.
        routes: the points of each edge, from the centre of one node to that of the other.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    routes: tuple[tuple[tuple[float, float], ...], ...]


def layered(
    edges: Sequence[tuple[int, int]], widths: Sequence[float], rank: Sequence[float], *, gap: float, drop: float
) -> Layout:
    """Lays out nodes 0 to n - 1, whose edges lead from smaller to larger ones.

    Args:
        edges: pairs (from, to), each once.
        widths: of each node, in inches.
        rank: where to start each node within its layer: the smaller, the further left.
        gap: least distance between the boxes of a layer.
        drop: distance between the centres of two layers.
    """
    layer = _layers(len(widths), edges)
    nodes, links, routes = _bent(edges, layer)
    widths = [*widths, *[_BEND_WIDTH] * (len(nodes) - len(widths))]
    start = [rank[node] for node in nodes]
    rows = _ordered(_rows(layer, nodes, start), links)
    x = _placed(rows, links, widths, len(rank), gap)
    depth = {vertex: position * drop for position, row in enumerate(rows) for vertex in row}
    points = [(x[vertex], depth[vertex]) for vertex in range(len(nodes))]
    n = len(rank)
    return Layout(
        tuple(x[:n]), tuple(depth[v] for v in range(n)), tuple(tuple(points[v] for v in route) for route in routes)
    )


def _layers(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Assigns layers by longest path from above; then what has as many users as arguments moves down to its users."""
    before, after = _neighbours(n, edges)
    layer = [0] * n
    for v in range(n):
        layer[v] = max((layer[u] + 1 for u in before[v]), default=0)
    for v in reversed(range(n)):
        if after[v] and len(after[v]) >= len(before[v]):
            layer[v] = min(layer[w] for w in after[v]) - 1
    top = min(layer, default=0)
    return [depth - top for depth in layer]


def _neighbours(n: int, edges: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        before[v].append(u)
        after[u].append(v)
    return before, after


def _bent(
    edges: Sequence[tuple[int, int]], layer: list[int]
) -> tuple[list[int], list[tuple[int, int]], list[list[int]]]:
    """Adds bends as vertices n, n + 1, ...; extends `layer` by theirs.

    Returns:
        the node that each vertex belongs to, the links between vertices one layer apart, and the
        vertices along each edge.
    """
    nodes = list(range(len(layer)))
    bends: dict[tuple[int, int], int] = {}
    links: dict[tuple[int, int], None] = {}
    routes: list[list[int]] = []
    for u, v in edges:
        route = [u]
        for depth in range(layer[u] + 1, layer[v]):
            if (u, depth) not in bends:
                bends[u, depth] = len(nodes)
                nodes.append(u)
                layer.append(depth)
            route.append(bends[u, depth])
        route.append(v)
        links |= dict.fromkeys(pairwise(route))
        routes.append(route)
    return nodes, list(links), routes


def _rows(layer: list[int], nodes: list[int], start: list[float]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for vertex in sorted(range(len(nodes)), key=lambda vertex: (start[vertex], nodes[vertex])):
        rows[layer[vertex]].append(vertex)
    return rows


def _ordered(rows: list[list[int]], links: list[tuple[int, int]]) -> list[list[int]]:
    """Sweeps down and up, sorting each row by the mean position of its neighbours; keeps the best."""
    count = sum(map(len, rows))
    before, after = _neighbours(count, links)
    best, fewest = rows, _crossings(rows, after)
    for sweep in range(_ORDER_SWEEPS):
        rows = [list(row) for row in rows]
        down = sweep % 2 == 0
        beside = before if down else after
        place = [0.0] * count
        for row in rows if down else reversed(rows):
            here = {vertex: k / len(row) for k, vertex in enumerate(row)}
            mean = {
                vertex: sum(place[w] for w in beside[vertex]) / len(beside[vertex]) if beside[vertex] else here[vertex]
                for vertex in row
            }
            row.sort(key=mean.__getitem__)
            for k, vertex in enumerate(row):
                place[vertex] = k / len(row)
        crossings = _crossings(rows, after)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _crossings(rows: list[list[int]], after: list[list[int]]) -> int:
    total = 0
    for row, below in pairwise(rows):
        place = {vertex: k for k, vertex in enumerate(below)}
        seen: list[int] = []
        for vertex in row:
            ends = sorted(place[w] for w in after[vertex])
            total += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _placed(
    rows: list[list[int]], links: list[tuple[int, int]], widths: Sequence[float], n: int, gap: float
) -> list[float]:
    """Moves every vertex towards its neighbours, as far as the least distances in its row allow."""
    pulls: list[list[tuple[int, int]]] = [[] for _ in widths]
    for u, v in links:
        weight = _STRAIGHT if u >= n and v >= n else 2 if u >= n or v >= n else 1
        pulls[u].append((v, weight))
        pulls[v].append((u, weight))
    apart = {(left, right): (widths[left] + widths[right]) / 2 + gap for row in rows for left, right in pairwise(row)}
    x = [0.0] * len(widths)
    for sweep in range(_PLACE_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            weights = [sum(weight for _, weight in pulls[v]) or 0.01 for v in row]
            wanted = [
                sum(x[w] * weight for w, weight in pulls[v]) / total for v, total in zip(row, weights, strict=True)
            ]
            distances = [apart[pair] for pair in pairwise(row)]
            for vertex, where in zip(row, _spread(wanted, weights, distances), strict=True):
                x[vertex] = where
    return x


def _spread(wanted: list[float], weights: list[float], distances: list[float]) -> list[float]:
    """Finds the positions closest to the wanted ones (weighted least squares) that keep the distances.

    Once the distances are subtracted, that is isotonic regression, solved by pooling adjacent violators.
    """
    offset = [0.0]
    for distance in distances:
        offset.append(offset[-1] + distance)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for want, weight, shift in zip(wanted, weights, offset, strict=False):
        mean, total, members = want - shift, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, count = pools.pop()
            mean = (mean * total + other * more) / (total + more)
            total, members = total + more, members + count
        pools.append((mean, total, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + shift for mean, shift in zip(means, offset, strict=False)]
