"""Finds memory that no compiled step can do without, whatever is saved.

Weaker than `remat.predict.memory.bound`, whose model lets no kernel write over its arguments; but it holds for code
that does. Three facts: what must be saved and the outputs are alive between the passes, the gradients are at the end,
and a call of a library has its arguments and its results in memory. Of calls only products, convolutions and attention
count that have many rows and columns: TorchInductor makes kernels of others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat.facts.columns import BoolArray
from remat.facts.graph import Graph, Region
from remat.predict.memory.bound import WorkingSet, always_saved
from remat.predict.memory.storages import StorageFacts
from remat.predict.memory.timeline import LiveTensor, Why

# The fewest rows and columns of a matrix that is surely multiplied by a call.
_LEAST = 16


def step_floor(graph: Graph, *, holds_outputs: bool = True) -> WorkingSet:
    """Finds the moment with the most bytes that no plan can avoid, and what they are."""
    facts, n = StorageFacts.of(graph), len(graph)
    outputs = graph.output if holds_outputs else np.zeros(n, np.bool_)
    moments = [
        ("", "", True, _bytes(facts, {"gradient": graph.gradient, "output": outputs})),
        ("", "", False, _bytes(facts, {"saved": always_saved(facts), "output": graph.output})),
    ]
    for v in np.flatnonzero(surely_called(facts)).tolist():
        backward = graph.region[v] == Region.TANGENTS
        if facts.live[v] if backward else graph.region[v] == Region.FORWARD:
            inside = np.zeros(n, np.bool_)
            inside[[v, *graph.operands[v]]] = True
            held = outputs if backward else np.zeros(n, np.bool_)
            moments.append(
                (graph.names[v], graph.ops[v], bool(backward), _bytes(facts, {"output": held, "transient": inside}))
            )
    name, op, backward, most = max(moments, key=lambda moment: sum(size for size, _ in moment[3].values()))
    tensors = sorted(most.items(), key=lambda item: -item[1][0])
    return WorkingSet(
        sum(size for size, _ in most.values()),
        name,
        op,
        backward,
        tuple(LiveTensor(graph.names[base], size, why, backward, graph.places[base]) for base, (size, why) in tensors),
        graph.places[graph.index[name]] if name else "",
    )


def surely_called(facts: StorageFacts) -> BoolArray:
    """Finds what a call of a library computes whatever the plan, so that its arguments are in memory then: (n,)."""
    graph = facts.graph
    called = graph.compute_bound & facts.computed
    for v in np.flatnonzero(called).tolist():
        called[v] = _is_large(graph, (v, *graph.operands[v]))
    return called


# Each storage counts as much as the largest of these values in it.
def _bytes(facts: StorageFacts, kinds: dict[Why, BoolArray]) -> dict[int, tuple[int, Why]]:
    found: dict[int, tuple[int, Why]] = {}
    for why, values in kinds.items():
        for v in np.flatnonzero(values & ~facts.external).tolist():
            base = int(facts.graph.base[v])
            size = min(int(facts.graph.bytes[v]), int(facts.size[base]))
            found[base] = max(found.get(base, (0, why)), (size, why), key=lambda item: item[0])
    return found


def _is_large(graph: Graph, values: Iterable[int]) -> bool:
    return all(min(graph.shapes[v][-2:]) >= _LEAST for v in values if len(graph.shapes[v]) > 1)
