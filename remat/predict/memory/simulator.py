"""Simulates the live bytes of plans: see `remat.predict.memory` for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from remat.answer.plan import Plan
from remat.facts.collection import collection_paused
from remat.facts.columns import BoolArray, IntArray, frozen
from remat.facts.graph import Graph, checked_graph
from remat.predict.memory.lifetimes import Lifetimes, alive_bytes
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts
from remat.predict.memory.timeline import WHYS, LiveTensor, Timeline
from remat.proof.validate import checked_mask, legal_choice


def simulate(graph: Graph, plan: Plan, *, holds_outputs: bool = True) -> Timeline:
    """Simulates live bytes over the steps of a training step under a plan.

    Args:
        graph: the joint graph.
        plan: a legal plan for it.
        holds_outputs: whether the caller holds the forward outputs until the end of the backward pass.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidOption: the graph is no `Graph`, or the plan no `Plan`.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("mm", g.input("x", bytes=4), compute_bound=True)
    >>> g.output(g.op("sum", y, bytes=1, fusible=False))
    >>> g.gradient(g.op("mul", g.tangent("dz", bytes=1), y, name="dx", bytes=4))
    >>> print(simulate(g.build(), Plan(("mm",), ())))
    forward pass: 2 steps, peak 5 B, 5 B at its end, 4 B of them saved
    backward pass: 1 steps, peak 9 B
    peak: 9 B at step 2, dx (mul) of the backward pass,
      where 3 storages are alive:
             4 B  saved      mm
             4 B  gradient   dx
             1 B  output     sum
    """
    choice = legal_choice(checked_graph(graph), plan)
    return Simulator(graph, holds_outputs=holds_outputs).timeline(choice.saved, choice.offloaded)


class Simulator:
    """Simulates many plans of one graph; what does not depend on the plan is computed once.

    Attributes:
        holds_outputs: whether the caller holds the forward outputs until the end of the backward pass.
        facts: what does not depend on the plan.
    """

    def __init__(self, graph: Graph, *, holds_outputs: bool = True) -> None:
        self.graph = checked_graph(graph)
        self.holds_outputs = holds_outputs
        self.facts = StorageFacts.of(graph)

    def peak(self, saved: BoolArray, offloaded: BoolArray | None = None) -> int:
        """Returns the peak of live bytes.

        Args:
            saved: (n,) the saved values; the backward pass recomputes the others that it needs. Legality is not checked
                (see `remat.check_plan`).
            offloaded: (n,) the saved values that wait on the host; None means none.

        Raises:
            InvalidPlan: `saved` does not have one flag per value, or a value in the tangents' closure is saved.
        """
        return int(self.alive(saved, offloaded)[1].max(initial=0))

    @collection_paused()
    def alive(self, saved: BoolArray, offloaded: BoolArray | None = None) -> tuple[Order, IntArray]:
        """Returns the steps of both passes, and the live bytes during each; errors are those of `peak`."""
        order = Order.of(self.facts, checked_mask(self.graph, saved))
        lives = Lifetimes.of(self.facts, order, self.holds_outputs, offloaded)
        return order, _during(lives, len(order.forward) + len(order.backward))

    def timeline(self, saved: BoolArray, offloaded: BoolArray | None = None) -> Timeline:
        """Returns the timeline of a plan; errors are those of `peak`."""
        order = Order.of(self.facts, checked_mask(self.graph, saved))
        lives = Lifetimes.of(self.facts, order, self.holds_outputs, offloaded)
        values: list[int] = np.concatenate([order.forward, order.backward]).tolist()
        return timeline_of(self.graph, lives, values, len(order.forward))


def timeline_of(
    graph: Graph,
    lives: Lifetimes,
    values: Sequence[int],
    forward_steps: int,
    copies: Mapping[int, str] = MappingProxyType({}),
) -> Timeline:
    """Returns the timeline of storages with known lifetimes.

    Args:
        values: the value that names each step.
        copies: for each step that copies a value to the host or back, the kind of the copy.
    """
    steps = len(values)
    during = _during(lives, steps)
    freed = np.zeros(steps + 1, np.int64)
    np.add.at(freed, lives.end, lives.size)
    after = during - freed[:steps]
    why = np.select([lives.output, lives.saved, lives.gradient, lives.offloaded], [0, 1, 2, 3], 4)  # as in `WHYS`
    peak_step = int(during.argmax()) if steps else -1
    alive = np.flatnonzero((lives.start <= peak_step) & (peak_step <= lives.end))
    largest = alive[np.lexsort((lives.start[alive], -lives.size[alive]))].tolist()
    return Timeline(
        names=tuple(graph.names[v] for v in values),
        ops=tuple(copies.get(i, graph.ops[v]) for i, v in enumerate(values)),
        backward=frozen(np.arange(steps) >= forward_steps),
        during_bytes=frozen(during),
        after_bytes=frozen(after),
        by_why={name: frozen(_during(lives, steps, why == i)) for i, name in enumerate(WHYS)},
        saved_bytes=int(lives.size[lives.saved].sum()),
        at_forward_end=int(
            lives.size[(lives.start < forward_steps) & (lives.saved | (lives.end >= forward_steps))].sum()
        ),
        peak_step=peak_step,
        peak_tensors=tuple(
            LiveTensor(graph.names[v], int(lives.size[i]), WHYS[why[i]], bool(lives.backward[i]), graph.places[v])
            for i in largest
            if lives.size[i]
            for v in [int(lives.base[i])]
        ),
        peak_place=graph.places[values[peak_step]] if steps else "",
    )


def _during(lives: Lifetimes, steps: int, which: BoolArray | slice = slice(None)) -> IntArray:
    return alive_bytes(lives.start[which], lives.end[which], lives.size[which], steps)
