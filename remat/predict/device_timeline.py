"""Simulates the live bytes of a plan on a device: of the buffers that its predicted kernels write, kernel by kernel.

`remat.predict.memory` asks what any fusing compiler holds, of the graph alone, and fast enough for a search. Here the
kernels are those of one backend (`remat.predict.kernels`), so that what a GPU keeps in registers takes no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from remat.answer.plan import Plan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.kernels import Kernel, kernels
from remat.predict.memory.lifetimes import Lifetimes
from remat.predict.memory.simulator import simulate, timeline_of
from remat.predict.memory.storages import Storages
from remat.predict.memory.timeline import Timeline
from remat.predict.time.known_devices import backend_of
from remat.proof.arguments import checked_saves


def timeline(graph: Graph, plan: Plan, *, holds_outputs: bool = True, device: str | None = None) -> Timeline:
    """Simulates live bytes over the steps of a training step under a plan.

    Args:
        graph: the joint graph.
        plan: a legal plan for it.
        holds_outputs: the caller keeps the outputs of the forward pass until the end of the backward.
        device: a step is a kernel that TorchInductor would make for it: "cpu", or a GPU such as "a100" or "h100".
            None for the simulation that needs no device: a step is a value, as in `remat.predict.memory`.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidGraph: a call recorded in the graph cannot be read, or is missing.
        InvalidOption: no graph, or no plan.
        UnknownName: there is no such device.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("cos", g.op("cos", g.input("x", bytes=4), name="inner"), name="y")
    >>> g.output(y)
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=4), g.op("sin", "inner"), name="dx"))
    >>> print(timeline(g.build(), Plan(("inner",), ("sin",)), device="a100"))
    forward pass: 1 steps, peak 8 B, 8 B at its end, 4 B of them saved
    backward pass: 1 steps, peak 12 B
    peak: 12 B at step 1, dx (mul) of the backward pass, where 3 storages are alive:
             4 B  saved      inner
             4 B  output     y
             4 B  gradient   dx
    """
    if device is None:
        return simulate(graph, plan, holds_outputs=holds_outputs)
    saved = checked_saves(graph, plan)
    listed = kernels(graph, plan, backend=backend_of(device))
    lives = _lifetimes(graph, np.flatnonzero(saved).tolist(), listed, holds_outputs)
    values = [kernel.values[-1] if kernel.values else kernel.writes[0] for kernel in listed]
    return timeline_of(graph, lives, values, sum(not kernel.backward for kernel in listed))


@dataclass
class _Buffers:
    """Follows which buffers are alive while kernels run one after the other: a kernel's inputs and outputs coexist.

    Attributes:
        graph: the joint graph.
        foreign: (n,) the value lives in memory that is not counted.
        inside: for each pass, the parts of concatenations that are written in place, and the concatenation of each.
        start, end: the first and the last step of a buffer, which is known by the value that owns it, and by its pass.
    """

    graph: Graph
    foreign: BoolArray
    inside: tuple[dict[int, int], dict[int, int]]
    start: dict[tuple[int, bool], int] = field(default_factory=dict[tuple[int, bool], int])
    end: dict[tuple[int, bool], int] = field(default_factory=dict[tuple[int, bool], int])

    def owner(self, v: int, *, backward: bool) -> int:
        """Finds the value that owns the memory of another in a pass."""
        base = int(self.graph.base[v])
        return self.inside[backward].get(base, base)

    def run(self, step: int, kernel: Kernel) -> None:
        """Notes what a kernel writes and reads."""
        graph = self.graph
        for v in kernel.writes:
            buffer = self.owner(v, backward=kernel.backward), kernel.backward
            self.start.setdefault(buffer, step)
            self.end[buffer] = step
        over = {int(graph.base[graph.operands[v][0]]) for v in kernel.writes if _written_over(graph.ops[v])}
        for v in kernel.reads:
            buffer = self.owner(v, backward=kernel.backward), kernel.backward
            if buffer not in self.start and not self.foreign[v]:
                buffer = self.owner(v, backward=False), False  # saved, and not computed anew
            if buffer in self.start and buffer[0] not in over:  # else its memory is the result's from here on
                self.end[buffer] = step


def _written_over(op: str) -> bool:
    """Says if an operator writes to some places of its first argument, which the compiler lets it do in place."""
    return op.startswith(("aten.scatter", "aten.index_put", "aten._unsafe_index_put"))


def _inside(graph: Graph, listed: Sequence[Kernel], *, backward: bool) -> dict[int, int]:
    """Finds the parts that are written where a concatenation has them: no kernel writes the concatenation itself."""
    base: list[int] = graph.base.tolist()
    times = Counter(base[v] for kernel in listed if kernel.backward == backward for v in kernel.writes)
    whole = {v for v, op in enumerate(graph.ops) if op == "aten.cat.default" and not times[base[v]]}
    # What was in memory before is copied: it is written twice.
    return {base[u]: base[v] for v in whole for u in graph.operands[v] if times[base[u]] == 1}


def _lifetimes(graph: Graph, saved: Sequence[int], listed: Sequence[Kernel], holds_outputs: bool) -> Lifetimes:
    """Finds when each buffer is allocated, and when it is needed last."""
    facts = Storages.of(graph)
    steps, forward_steps = len(listed), sum(not kernel.backward for kernel in listed)
    buffers = _Buffers(
        graph, facts.foreign, (_inside(graph, listed, backward=False), _inside(graph, listed, backward=True))
    )
    for step, kernel in enumerate(listed):
        buffers.run(step, kernel)

    def held(values: Sequence[int], until: int, *, backward: bool = False) -> set[tuple[int, bool]]:
        """Keeps the buffers of values; an input that is written is a copy of it, which its own pass alone needs."""
        found = {(buffers.owner(v, backward=backward), backward) for v in values if not facts.foreign[v]}
        for buffer in found & buffers.end.keys():
            buffers.end[buffer] = max(buffers.end[buffer], until)
        return found

    kept = held(saved, forward_steps)
    outputs = held(np.flatnonzero(graph.output).tolist(), steps if holds_outputs else forward_steps - 1)
    gradients = held(np.flatnonzero(graph.gradient).tolist(), steps, backward=True)
    known = list(buffers.start)
    owners = np.array([owner for owner, _ in known], np.int64)
    return Lifetimes(
        base=owners,
        backward=np.array([backward for _, backward in known], np.bool_),
        start=np.array([buffers.start[buffer] for buffer in known], np.int64),
        end=np.array([buffers.end[buffer] for buffer in known], np.int64),
        size=facts.size[owners],
        output=np.array([buffer in outputs for buffer in known], np.bool_),
        saved=np.array([buffer in kept for buffer in known], np.bool_),
        gradient=np.array([buffer in gradients for buffer in known], np.bool_),
    )
