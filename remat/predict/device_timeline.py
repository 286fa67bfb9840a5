"""Simulates the live bytes of a plan on a device: of the buffers that its predicted kernels write, kernel by kernel.

`remat.predict.memory` asks what any fusing compiler holds, of the graph alone, and fast enough for a search. Here the
kernels are those of one backend (`remat.predict.kernels`), so that what a GPU keeps in registers takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from remat.answer.plan import Plan
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


def _written_over(op: str) -> bool:
    """Says if an operator writes to some places of its first argument, which the compiler lets it do in place."""
    return op.startswith(("aten.scatter", "aten.index_put", "aten._unsafe_index_put"))


def _lifetimes(graph: Graph, saved: Sequence[int], listed: Sequence[Kernel], holds_outputs: bool) -> Lifetimes:
    """Finds when each buffer is allocated and when it is read last: a kernel's own inputs and outputs coexist."""
    base: list[int] = graph.base.tolist()
    facts = Storages.of(graph)

    def owners(values: Sequence[int]) -> set[int]:
        """Finds the owners of storages; an input that is written is a copy of it, which its own pass needs only."""
        return {base[v] for v in values if not facts.foreign[v]}

    kept, outputs, gradients = map(
        owners, (saved, np.flatnonzero(graph.output).tolist(), np.flatnonzero(graph.gradient).tolist())
    )
    steps, forward_steps = len(listed), sum(not kernel.backward for kernel in listed)
    start: dict[tuple[int, bool], int] = {}  # by the value that owns the buffer, and the pass that writes it
    end: dict[tuple[int, bool], int] = {}
    for step, kernel in enumerate(listed):
        for v in kernel.writes:
            start.setdefault((base[v], kernel.backward), step)
            end[base[v], kernel.backward] = step
        written_over = {base[graph.operands[v][0]] for v in kernel.writes if _written_over(graph.ops[v])}
        for v in kernel.reads:
            written_here = (base[v], kernel.backward) in start  # computed anew, which comes before what was saved
            if base[v] in written_over:
                continue  # from here on its buffer is that of the result
            if written_here or ((base[v], False) in start and not facts.foreign[v]):
                end[base[v], kernel.backward and written_here] = step
    buffers = list(start)
    for held, backward in buffers:
        if not backward and held in kept:
            end[held, backward] = max(end[held, backward], forward_steps)
        if not backward and held in outputs:
            end[held, backward] = steps if holds_outputs else max(end[held, backward], forward_steps - 1)
        if backward and held in gradients:
            end[held, backward] = steps
    owner, in_backward = np.array([v for v, _ in buffers], np.int64), np.array([late for _, late in buffers], np.bool_)
    return Lifetimes(
        base=owner,
        backward=in_backward,
        start=np.array([start[buffer] for buffer in buffers], np.int64),
        end=np.array([end[buffer] for buffer in buffers], np.int64),
        size=facts.size[owner],
        output=np.isin(owner, [*outputs]) & ~in_backward,
        saved=np.isin(owner, [*kept]) & ~in_backward,
        gradient=np.isin(owner, [*gradients]) & in_backward,
    )
