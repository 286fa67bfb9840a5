"""States what is scheduled: values with sizes and prices, and in which order they must exist for the first time.

The memory model is that of `remat.predict.memory` where every value has a storage of its own and nothing fuses: a
value takes its bytes from the step that computes it to the last one that reads that copy, both included; what the
forward pass returns stays to the end, and so do gradients; inputs and tangents take nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat import Graph, InvalidOption
from remat.facts.uses import propagate_to_operands
from remat.plugin import BoolArray
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts


class InvalidSchedule(ValueError):
    """A schedule reads what is not there, or does not compute what it must."""


@dataclass(frozen=True)
class Instance:
    """k values in topological order.

    Attributes:
        names: of the values.
        sizes: their bytes.
        costs: of computing each once; the first time is free.
        operands: for each value, those that it reads.
        stages: Checkmate's stages: the value that is computed for the first time at the end of each; None for a stage
            that only adds what is asked for. Values of no stage are computed for the first time whenever they are read.
        turn: the last stage of the forward pass.
        once: values that must not be computed twice.
        outputs: what the caller holds from its first computation to the end.
        gradients: what must be there at the end.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    costs: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    stages: tuple[int | None, ...]
    turn: int
    once: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()

    @classmethod
    def of(cls, graph: Graph) -> Instance:
        """Reads a plain graph: the price of a value is its `Graph.flops`, in either pass.

        Stages are those of the forward pass, in graph order, and then those of the tangents' closure, which our plans
        run in this order, too. What the backward pass alone needs has none. Each of our plans is a schedule of these
        stages, since there is one without a value between the passes, and one at the end.

        Raises:
            InvalidOption: a value shares its storage, or could live in registers, or is listed after values that need
                tangents and needs none (`coarse` makes graphs without such values).
        """
        facts = StorageFacts.of(graph)
        shared = (graph.base != np.arange(len(graph))) | (facts.fusible & facts.computed)
        used = kept_values(graph)
        if bool(shared.any()) or bool((np.diff(graph.in_tangents[used].astype(int)) < 0).any()):
            raise InvalidOption(
                f"graph must be plain, and list the tangents' closure last (see `coarse`), got {graph!r}"
            )
        at = {v: i for i, v in enumerate(used)}
        early, late = ([v for v in used if where[v]] for where in (graph.in_forward, graph.in_tangents))

        def places(mask: BoolArray) -> frozenset[int]:
            return frozenset(at[v] for v in np.flatnonzero(mask).tolist() if v in at)

        return cls(
            names=tuple(graph.names[v] for v in used),
            sizes=tuple(int(graph.bytes[v]) for v in used),
            costs=tuple(int(graph.flops[v]) for v in used),
            operands=tuple(tuple(at[u] for u in graph.operands[v] if u in at) for v in used),
            stages=tuple(None if v is None else at[v] for v in (*early, None, *late, None)),
            turn=len(early),
            once=places(graph.cannot_recompute.mask),
            outputs=places(graph.output),
            gradients=places(graph.gradient),
        )

    def __len__(self) -> int:
        return len(self.names)


def kept_values(graph: Graph) -> list[int]:
    """Lists the values that an operator computes and that an output or a gradient depends on."""
    facts = StorageFacts.of(graph)
    wanted = propagate_to_operands(graph.operands, graph.output | graph.gradient, np.ones(len(graph), np.bool_))
    return np.flatnonzero(wanted & facts.computed).tolist()


def schedule_of(graph: Graph, saved: BoolArray) -> tuple[int, ...]:
    """Lists what both passes of one of our plans compute, in the order of `remat.predict.memory`.

    Args:
        graph: a plain one.
        saved: (n,) what the plan saves.
    """
    order, at = Order.of(StorageFacts.of(graph), saved), {v: i for i, v in enumerate(kept_values(graph))}
    return tuple(at[v] for v in [*order.forward.tolist(), *order.backward.tolist()])


@dataclass(frozen=True)
class Replayed:
    """What a schedule costs, beyond computing everything once; and the most bytes that it holds at once."""

    cost: int
    peak_bytes: int


def replay(instance: Instance, runs: Sequence[int]) -> Replayed:
    """Runs a schedule on paper, one computation after the other, and frees each copy after the last that reads it.

    It knows no stages but their order, and nothing of who made the schedule.

    Raises:
        InvalidSchedule: an operand is missing; a value is never computed, or twice where it must not be; or the first
            computations are not in the order of the stages.
    """
    copy_of: dict[int, int] = {}
    last = [*range(len(runs))]
    end = len(runs)
    for step, v in enumerate(runs):
        for u in instance.operands[v]:
            if u not in copy_of:
                raise InvalidSchedule(f"step {step} computes {instance.names[v]!r} without {instance.names[u]!r}")
            last[copy_of[u]] = max(last[copy_of[u]], step)
        if v in copy_of and v in instance.once:
            raise InvalidSchedule(f"step {step} computes {instance.names[v]!r} again")
        if v not in copy_of and v in instance.outputs:
            last[step] = end
        copy_of[v] = step
    for v in instance.gradients & copy_of.keys():
        last[copy_of[v]] = end
    if missing := set(range(len(instance))) - copy_of.keys():
        raise InvalidSchedule(f"nothing computes {instance.names[min(missing)]!r}")
    first = [runs.index(v) for v in instance.stages if v is not None]
    if first != sorted(first):
        raise InvalidSchedule("the first computations are not in the order of the stages")
    alive = [sum(instance.sizes[v] for s, v in enumerate(runs[: at + 1]) if last[s] >= at) for at in range(end)]
    return Replayed(sum(instance.costs[v] for v in runs) - sum(instance.costs), max(alive, default=0))
