"""Makes joint graphs so small that the cost of schedules can be proven, by joining values into groups.

A group is one operator, which takes memory for what others read of it alone. Joined are views and elements of tuples
with what owns them; values with the one fusible use that reads them, as a compiler would; and then, as long as there
are too many, the two of which one reads the other that take least memory. No group reaches over both passes, and none
is part of a cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from remat import Graph, GraphBuilder
from remat.facts.uses import propagate_to_operands
from remat.plugin import Region
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device


def coarse(graph: Graph, most: int) -> Graph:
    """Joins the values of a graph to at most `most` groups, if that is possible; inputs and tangents not counted.

    Returns:
        a graph in which every value has a storage of its own, and nothing fuses. `Graph.flops` of a group is its price:
        how many nanoseconds an A100 takes for its arithmetic, or for what it reads and writes, if that takes longer.
    """
    groups = _Groups(graph)
    for v in np.flatnonzero(graph.view | graph.tuple_element).tolist():
        groups.join(groups.of[graph.operands[v][0]], groups.of[v], views=True)
    for u, v in _uses(graph):
        if graph.fusible[u] and graph.fusible[v]:
            groups.join_to_reader(groups.of[u])
    while len(groups.members) > most:
        if not any(groups.join(u, v) for u, v in groups.smallest()):
            break
    return groups.build()


class _Groups:
    """A partition of the values that are computed and needed.

    Attributes:
        of: the group of each value, by the name of one of its members; -1 for what is in none.
        members: the values of each group.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        given = graph.input | np.array([op == "placeholder" for op in graph.ops], np.bool_)
        self._given = given[graph.base]
        needed = (
            propagate_to_operands(graph.operands, graph.output | graph.gradient, np.ones(len(graph), np.bool_))
            & ~self._given
        )
        self.of: list[int] = np.where(needed, np.arange(len(graph)), -1).tolist()
        self.members: dict[int, set[int]] = {v: {v} for v in np.flatnonzero(needed).tolist()}
        self._readers: list[list[int]] = [[] for _ in range(len(graph))]
        for u, v in _uses(graph):
            if needed[v]:
                self._readers[u].append(v)

    def smallest(self) -> list[tuple[int, int]]:
        """Lists the pairs of groups of which one reads the other, those that take least memory together first."""
        size = {group: self.bytes(group) for group in self.members}
        pairs = [(u, v) for u in self.members for v in self._reading(u)]
        return sorted(pairs, key=lambda pair: (size[pair[0]] + size[pair[1]], pair))

    def join_to_reader(self, group: int) -> bool:
        """Joins a group with the only one that reads it, unless something else needs it, too."""
        members, readers = self.members.get(group, set[int]()), self._reading(group)
        returned = any(self._graph.output[v] or self._graph.gradient[v] for v in members)
        return len(readers) == 1 and not returned and self.join(group, min(readers))

    def join(self, u: int, v: int, views: bool = False) -> bool:
        """Joins two groups, unless they belong to different passes, or something runs between them."""
        if u == v or u not in self.members or v not in self.members:
            return False
        regions = {int(self._graph.region[w]) for w in self.members[u] | self.members[v]}
        if regions >= {Region.FORWARD, Region.TANGENTS} or (regions == {Region.FORWARD, Region.EITHER} and not views):
            return False
        if self._leads_to(v, self._reading(u) - {v}):
            return False
        for w in self.members[u]:
            self.of[w] = v
        self.members[v] |= self.members.pop(u)
        return True

    def bytes(self, group: int) -> int:
        """Counts what others read of a group, or what is returned, each storage once."""
        graph, inside = self._graph, self.members.get(group, set[int]())
        seen = {v for v in inside if graph.output[v] or graph.gradient[v] or not inside.issuperset(self._readers[v])}
        owners = sorted({int(graph.base[v]) for v in seen})
        return sum(int(graph.bytes[v]) for v in owners)

    def build(self) -> Graph:
        builder, graph, device = GraphBuilder(), self._graph, find_device("a100")
        for v in np.flatnonzero(self._given & (graph.base == np.arange(len(graph)))).tolist():
            made = builder.tangent if graph.in_tangents[v] else builder.input
            made(graph.names[v], bytes=int(graph.bytes[v]))
        for group in self._ordered():
            members = self.members[group]
            used = dict.fromkeys(self._name(u) for v in sorted(members) for u in graph.operands[v] if u not in members)
            size = self.bytes(group)
            price = _price_ns(graph, members, size, device)
            barred = next((reason for v in members if (reason := graph.cannot_recompute.reason(v))), None)
            builder.op(
                "group", *used, name=graph.names[group], bytes=size, flops=price, fusible=False, cannot_recompute=barred
            )
        for mark, flags in ((builder.output, graph.output), (builder.gradient, graph.gradient)):
            mark(*dict.fromkeys(self._name(v) for v in np.flatnonzero(flags & ~self._given).tolist()))
        return builder.build()

    def _name(self, v: int) -> str:
        return self._graph.names[int(self._graph.base[v]) if self._given[v] else self.of[v]]

    def _reading(self, group: int) -> set[int]:
        readers = {self.of[w] for v in self.members.get(group, ()) for w in self._readers[v]}
        return readers - {group}

    def _leads_to(self, target: int, start: Iterable[int]) -> bool:
        seen, stack = set[int](), [*start]
        while stack:
            if (group := stack.pop()) == target:
                return True
            if group not in seen:
                seen.add(group)
                stack += self._reading(group)
        return False

    def _ordered(self) -> list[int]:
        """Lists the groups in topological order; those that need no tangent first, as far as possible as before."""
        late = {g: any(self._graph.in_tangents[v] for v in members) for g, members in self.members.items()}
        waiting = dict.fromkeys(self.members, 0)
        for group in self.members:
            for reader in self._reading(group):
                waiting[reader] += 1
        ready = [(late[g], max(self.members[g]), g) for g, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            group = heapq.heappop(ready)[2]
            order.append(group)
            for reader in self._reading(group):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (late[reader], max(self.members[reader]), reader))
        return order


def _price_ns(graph: Graph, members: set[int], written_bytes: int, device: DeviceProfile) -> int:
    """The nanoseconds of a group as one kernel of the roofline model, its launch aside."""
    read = {int(graph.base[u]) for v in members for u in graph.operands[v]} - {int(graph.base[v]) for v in members}
    moved = written_bytes + sum(int(graph.bytes[u]) for u in read)
    flops = sum(int(graph.flops[v]) for v in members)
    compute_s = flops / device.reached_flops_per_s("float32")
    return max(1, round(1e9 * max(compute_s, moved / device.reached_bytes_per_s)))


def _uses(graph: Graph) -> list[tuple[int, int]]:
    ends: tuple[list[int], list[int]] = graph.producers.tolist(), graph.consumers.tolist()
    return list(zip(*ends, strict=True))
