"""Computes a lower bound on the peak of every compiled step, whatever is saved.

The bound is weaker than that of `remat.predict.memory.bound`, whose model forbids a kernel to overwrite its arguments;
this one also holds for code that overwrites. It uses three facts: values that must be saved and outputs are alive
between the passes, gradients are alive at the end, and a library call has its arguments and results in memory. Only
products, convolutions and attention with many rows and columns count as calls, because TorchInductor generates kernels
for small ones.
"""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray, mask_of
from remat.facts.graph import Graph, Region
from remat.predict.memory.bound import WorkingSet, always_saved
from remat.predict.memory.storages import StorageFacts
from remat.predict.memory.timeline import LiveTensor, Why

# Matrices with at least so many rows and columns are always multiplied by a library call.
_LEAST = 16


def step_floor(graph: Graph, *, holds_outputs: bool = True) -> WorkingSet:
    """Returns the point of a step at which every plan must hold the most bytes, and the tensors of these bytes."""
    facts, n = StorageFacts.of(graph), len(graph)
    outputs = graph.output if holds_outputs else np.zeros(n, np.bool_)
    points = [
        ("", "", True, _bytes(facts, {"gradient": graph.gradient, "output": outputs})),
        ("", "", False, _bytes(facts, {"saved": always_saved(facts), "output": graph.output})),
    ]
    for v in np.flatnonzero(surely_called(facts)).tolist():
        backward = graph.region[v] == Region.TANGENTS
        if facts.live[v] if backward else graph.region[v] == Region.FORWARD:
            inside = mask_of([v, *graph.operands[v]], n)
            held = outputs if backward else np.zeros(n, np.bool_)
            points.append(
                (graph.names[v], graph.ops[v], bool(backward), _bytes(facts, {"output": held, "transient": inside}))
            )
    name, op, backward, most = max(points, key=lambda point: sum(size for size, _ in point[3].values()))
    tensors = sorted(most.items(), key=lambda item: -item[1][0])
    listed = (LiveTensor(graph.names[b], size, why, backward, graph.places[b]) for b, (size, why) in tensors)
    total, place = sum(size for size, _ in most.values()), graph.places[graph.index[name]] if name else ""
    return WorkingSet(total, name, op, backward, tuple(listed), place)


def surely_called(facts: StorageFacts) -> BoolArray:
    """Returns a mask (n,) of the values that a library call computes under every plan, with its arguments in memory."""
    graph = facts.graph
    called = graph.compute_bound & facts.computed
    for v in np.flatnonzero(called).tolist():
        shapes = (graph.shapes[u] for u in (v, *graph.operands[v]))
        called[v] = all(min(shape[-2:]) >= _LEAST for shape in shapes if len(shape) > 1)
    return called


# Each storage counts with the size of the largest of these values in it.
def _bytes(facts: StorageFacts, kinds: dict[Why, BoolArray]) -> dict[int, tuple[int, Why]]:
    alive: dict[int, tuple[int, Why]] = {}
    for why, values in kinds.items():
        for v in np.flatnonzero(values & ~facts.external).tolist():
            base = int(facts.graph.base[v])
            size = min(int(facts.graph.bytes[v]), int(facts.size[base]))
            alive[base] = max(alive.get(base, (0, why)), (size, why), key=lambda item: item[0])
    return alive
