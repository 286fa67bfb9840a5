"""Exports what a simulation of live bytes needs to know about a graph, for the entry "memory" of a problem's file.

    {"node": [...],                        the node of each value of the problem
     "turn": 512,
     "nodes": {"bytes": [...], "owner": [...], "maker": [...], "parent": [...], "computed": [0, 1, ...],
               "register": [...], "call": [...], "forward": [...], "backward": [...], "output": [...],
               "gradient": [...]},
     "uses": {"producer": [...], "consumer": [...], "fused": [...]}}

Nodes are the values of the joint graph in its order, with those of the tangents' closure. docs/benchmark.md defines the
peak of a plan in these terms; `remat.predict.memory` explains it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.predict.memory.storages import StorageFacts


def stated_memory(graph: Graph) -> dict[str, Any]:
    """Returns the columns of a graph from which the lifetimes under any plan follow."""
    facts, n = StorageFacts.of(graph), len(graph)
    owns = graph.base == np.arange(n)
    nodes: dict[str, IntArray | BoolArray] = {
        "bytes": np.where(owns, graph.bytes, 0),
        "owner": graph.base,
        "maker": facts.producer,
        "parent": facts.parent,
        "computed": facts.computed,
        "register": facts.fusible,
        "call": facts.calls,
        "forward": graph.in_forward,
        "backward": facts.live,
        "output": graph.output,
        "gradient": graph.gradient,
    }
    ends: list[tuple[int, int]] = list(zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True))
    fused = [set(readers) for readers in facts.fused_consumers]
    return {
        "node": graph.plannable.tolist(),
        "turn": facts.first_tangent_reader,
        "nodes": {label: column.astype(int).tolist() for label, column in nodes.items()},
        "uses": {
            "producer": [u for u, _ in ends],
            "consumer": [v for _, v in ends],
            "fused": [int(v in fused[u]) for u, v in ends],
        },
    }
