"""Reads from a graph what a simulation of live bytes needs to know, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region
from remat.facts.uses import propagate_to_operands
from remat.predict.memory.registers import fusion


@dataclass(frozen=True, eq=False)
class StorageFacts:
    """Holds the facts about the n values of a graph that depend on no plan."""

    graph: Graph
    size: IntArray
    computed: BoolArray  # (n,) an operator computes the value, so that it is a step of a pass
    external: BoolArray  # (n,) the value lives in memory that is not counted: of an input, a tangent, a constant
    tangents: BoolArray
    fusible: BoolArray  # (n,) it can live in registers, as `remat.predict.memory.registers` says.
    producer: IntArray  # (n,) the value at whose step the storage is allocated: for the elements of a tuple, the tuple
    parent: IntArray  # (n,) for a view, the argument whose storage it shares; -1 for others
    calls: BoolArray  # (n,) a kernel, or a call of a library, that nothing can be fused with
    arguments: list[list[int]]  # for each value, what it uses that is computed
    fused_consumers: list[list[int]]  # for each value, what uses it and can be fused with it
    # producers, readers: the uses with a counted producer, in order of their readers.
    producers: IntArray
    readers: IntArray
    unfused: BoolArray  # which of these uses cannot be fused
    live: BoolArray  # (n,) computed, in the tangents' closure, and some gradient depends on it
    # (n,) position of the first value of `live` that reads a value from outside the closure; n for a gradient that no
    # such value reads, n + 1 where none does.
    first_use: IntArray
    # where the backward pass leaves what it was asked for and runs in graph order: the first reader of a tangent.
    first_tangent_reader: int

    @classmethod
    def of(cls, graph: Graph) -> StorageFacts:
        n = len(graph)
        given = graph.leaf
        foreign, tangents = given[graph.base], graph.region == Region.TANGENTS
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
            if not given[u]:
                arguments[v].append(u)
            if storage[u] == storage[v] and parent[v] < 0:
                parent[v] = u
            if graph.ops[v] == "getitem" and maker[v] == v:
                maker[v] = maker[u]
        live = propagate_to_operands(graph.operands, graph.gradient & tangents, tangents) & tangents & ~given
        counted = ~foreign[producers]
        return cls(
            graph=graph,
            size=graph.storage_bytes,
            computed=~given,
            external=foreign,
            tangents=tangents,
            fusible=fusible,
            producer=maker,
            parent=parent,
            calls=~(fusible | given | graph.view | graph.tuple_element),
            arguments=arguments,
            fused_consumers=fused_consumers,
            producers=producers[counted],
            readers=readers[counted],
            unfused=~fusible_uses[counted],
            live=live,
            first_use=_wanted_at(graph, live, producers, readers),
            first_tangent_reader=_turn(live, given & tangents, producers, readers),
        )

    def __len__(self) -> int:
        return len(self.size)


def _wanted_at(graph: Graph, live: BoolArray, producers: IntArray, readers: IntArray) -> IntArray:
    n = len(graph)
    wanted = np.where(graph.gradient, n, n + 1)
    read = live[readers]
    np.minimum.at(wanted, producers[read], readers[read])
    return wanted


# Without a reader of a tangent torch leaves the backward pass in graph order.
def _turn(live: BoolArray, given_tangents: BoolArray, producers: IntArray, readers: IntArray) -> int:
    first = readers[live[readers] & given_tangents[producers]]
    return int(first.min(initial=len(live))) if len(first) else 0
