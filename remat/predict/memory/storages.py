"""Extracts from a graph the facts that every simulation of live bytes needs, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region
from remat.facts.uses import propagate_to_operands
from remat.predict.memory.registers import fusion


@dataclass(frozen=True, eq=False)
class StorageFacts:
    """Holds facts about the n values of a graph that do not depend on the plan."""

    graph: Graph
    size: IntArray
    computed: BoolArray  # (n,) an operator computes the value, in a step of a pass
    external: BoolArray  # (n,) the memory of the value is not counted: an input, a tangent, a constant
    tangents: BoolArray
    fusible: BoolArray  # (n,) it can be in registers (`remat.predict.memory.registers`)
    producer: IntArray  # (n,) the value at whose step the storage is allocated: the tuple of a tuple element
    parent: IntArray  # (n,) for a view, the argument whose storage it shares; -1 for others
    calls: BoolArray  # (n,) a kernel or library call with which nothing can be fused
    arguments: list[list[int]]  # for each value, its operands that are computed
    fused_consumers: list[list[int]]  # for each value, its readers that can be fused with it
    joins: BoolArray  # (n,) fusible, with such readers
    # the uses whose producer is counted, sorted by reader.
    producers: IntArray
    readers: IntArray
    unfused: BoolArray  # which of these uses cannot be fused
    live: BoolArray  # (n,) computed, in the tangents' closure, and some gradient depends on it
    # (n,) for a value outside the closure, the position of its first reader in `live`; n for a gradient without such
    # readers, n + 1 without any.
    first_use: IntArray
    # the first reader of a tangent: from there on, the backward pass runs in graph order.
    first_tangent_reader: int

    @classmethod
    def of(cls, graph: Graph) -> StorageFacts:
        n = len(graph)
        leaf = graph.leaf
        foreign, tangents = leaf[graph.base], graph.region == Region.TANGENTS
        arguments: list[list[int]] = [[] for _ in range(n)]
        fused_consumers: list[list[int]] = [[] for _ in range(n)]
        maker, parent = np.arange(n), np.full(n, -1)
        order = np.argsort(graph.consumers, kind="stable")
        producers, readers = graph.producers[order], graph.consumers[order]
        storage: list[int] = graph.storage.tolist()
        fusible, fusible_uses = fusion(graph, producers, readers, graph.fusible_uses[order])
        ends: list[tuple[int, int, bool]] = list(
            zip(producers.tolist(), readers.tolist(), fusible_uses.tolist(), strict=True)
        )
        for u, v, fused in ends:
            if fused:
                fused_consumers[u].append(v)
            if not leaf[u]:
                arguments[v].append(u)
            if storage[u] == storage[v] and parent[v] < 0:
                parent[v] = u
            if graph.ops[v] == "getitem" and maker[v] == v:
                maker[v] = maker[u]
        live = propagate_to_operands(graph.operands, graph.gradient & tangents, tangents) & tangents & ~leaf
        counted = ~foreign[producers]
        return cls(
            graph=graph,
            size=graph.storage_bytes,
            computed=~leaf,
            external=foreign,
            tangents=tangents,
            fusible=fusible,
            producer=maker,
            parent=parent,
            calls=~(fusible | leaf | graph.view | graph.tuple_element),
            arguments=arguments,
            fused_consumers=fused_consumers,
            joins=fusible & np.array([*map(bool, fused_consumers)], np.bool_),
            producers=producers[counted],
            readers=readers[counted],
            unfused=~fusible_uses[counted],
            live=live,
            first_use=_first_use(graph, live, producers, readers),
            first_tangent_reader=_first_tangent_reader(live, leaf & tangents, producers, readers),
        )

    def __len__(self) -> int:
        return len(self.size)


def _first_use(graph: Graph, live: BoolArray, producers: IntArray, readers: IntArray) -> IntArray:
    n = len(graph)
    first = np.where(graph.gradient, n, n + 1)
    read = live[readers]
    np.minimum.at(first, producers[read], readers[read])
    return first


# Without a reader of a tangent, torch leaves the whole backward pass in graph order: 0.
def _first_tangent_reader(live: BoolArray, tangents: BoolArray, producers: IntArray, readers: IntArray) -> int:
    first = readers[live[readers] & tangents[producers]]
    return int(first.min(initial=len(live))) if len(first) else 0
