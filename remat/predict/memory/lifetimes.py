"""Computes the lifetime of each storage under a plan: see `remat.predict.memory` for the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray, any_set, mask_of
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Holds the k storages that are in memory at some time, over T steps.

    A storage appears twice if it exists twice: a storage of the forward pass whose base is recomputed while a view of
    it is saved, and an offloaded storage before and after its time on the host.
    """

    base: IntArray  # (k,) the value that owns the storage
    backward: BoolArray  # (k,) allocated in the backward pass
    start: IntArray  # (k,) the step that allocates it
    end: IntArray  # (k,) the last step that needs it; T if it is held after the last step
    size: IntArray  # (k,) bytes
    # (k,) what the storage holds; `saved` is a value saved on the device.
    output: BoolArray
    saved: BoolArray
    gradient: BoolArray
    offloaded: BoolArray

    @classmethod
    def of(
        cls, facts: StorageFacts, order: Order, holds_outputs: bool, offloaded: BoolArray | None = None
    ) -> Lifetimes:
        """Computes the lifetimes under a plan, in time linear in the graph.

        Args:
            offloaded: (n,) the saved values that wait on the host; None means none.
        """
        n, graph = len(facts), facts.graph
        steps = len(order.forward) + len(order.backward)
        away = np.zeros(n, np.bool_) if offloaded is None else offloaded[graph.base] & order.saved
        on_device = order.saved & ~away
        place = _backward_storage(facts, order, on_device)
        written = _written(facts, order, place)
        start, end = np.full(2 * n, steps), np.full(2 * n, -1)
        for values, at, where in (
            (order.forward, order.forward_at, graph.base),
            (order.backward, order.backward_at, place),
        ):
            made = at[facts.producer[values]]
            np.minimum.at(start, where[values], np.where(made >= 0, made, at[values]))
            np.maximum.at(end, where[values], at[values])
            inside = at[facts.readers] >= 0
            u, v = facts.producers[inside], facts.readers[inside]
            np.maximum.at(end, where[u], _ran(facts, values, at, written[where])[v])
            if where is place and any_set(away):
                np.minimum.at(start, place[u[away[u]]], at[v[away[u]]])
        outputs = graph.base[graph.output]  # outputs and gradients outlive their last reader
        end[outputs] = steps if holds_outputs else np.maximum(end[outputs], len(order.forward) - 1)
        end[place[graph.gradient]] = steps
        returned = place[graph.gradient & away]  # an unread value comes back at the end of the backward pass
        start[returned] = np.minimum(start[returned], max(steps - 1, len(order.forward)))
        owner = np.arange(2 * n) % n
        alive = np.flatnonzero(written & (start < steps) & ~facts.external[owner])
        hosted = np.concatenate([graph.base[away], place[away]])
        held = {
            "output": outputs,
            "saved": graph.base[on_device],
            "gradient": place[graph.gradient],
            "offloaded": hosted,
        }
        marks = {name: np.isin(alive, storages) for name, storages in held.items()}
        return cls(owner[alive], alive >= n, start[alive], end[alive], facts.size[owner[alive]], **marks)


def alive_bytes(start: IntArray, end: IntArray, size: IntArray, steps: int) -> IntArray:
    """Returns the bytes of the storages that are alive during each step.

    Args:
        start, end: (k,) the first and the last step of each storage; the last is at most `steps`.
    """
    change = np.zeros(steps + 2, np.int64)
    np.add.at(change, start, size)
    np.subtract.at(change, end + 1, size)
    return change.cumsum()[:steps]


def _backward_storage(facts: StorageFacts, order: Order, on_device: BoolArray) -> IntArray:
    """Returns an array (n,) of the storage of each value in the backward pass.

    It is the position of the base if the forward pass saved it and it stays `on_device`; plus n if the backward pass
    recomputes it or copies it back. A view has the storage of its parent.
    """
    base = facts.graph.base
    place = np.where(on_device, base, base + len(facts))
    parent: list[int] = facts.parent.tolist()
    follows = order.recomputed | (facts.live & ~facts.tangents[base])
    for v in np.flatnonzero(follows & (facts.parent >= 0)).tolist():
        place[v] = place[parent[v]]
    return place


def _written(facts: StorageFacts, order: Order, place: IntArray) -> BoolArray:
    n, graph = len(facts), facts.graph
    written = mask_of(graph.base[graph.output | order.saved], 2 * n)
    written[place[graph.gradient | order.saved]] = True
    owners = np.flatnonzero(~facts.fusible)
    written[owners] = written[owners + n] = True
    written[np.flatnonzero(facts.external)] = written[np.flatnonzero(facts.external) + n] = True
    for at, where in ((order.forward_at, graph.base), (order.backward_at, place)):
        barred = facts.unfused & (at[facts.readers] >= 0)
        written[where[facts.producers[barred]]] = True
    return written


def _ran(facts: StorageFacts, values: IntArray, at: IntArray, written: BoolArray) -> IntArray:
    """Returns an array (n,): the last step that needs the operands of each value of this pass.

    It is the last step of the value's kernel, which includes the consumers with which it is fused, up to the next call.
    A value in registers belongs to the kernels of all its consumers, wherever they are.
    """
    calls = np.full(len(facts), -1)
    calls[values] = facts.calls[values].cumsum()
    segment: list[int] = calls.tolist()
    here: list[int] = np.where(written, at, -1).tolist()
    ran: list[int] = at.tolist()
    in_registers: list[bool] = (~written).tolist()
    fused = facts.fused_consumers
    backwards: list[int] = values[facts.joins[values]][::-1].tolist()
    for v in backwards:
        near, far, now = here[v], ran[v], segment[v]
        for w in fused[v]:
            if here[w] > near and segment[w] == now:
                near = here[w]
            if ran[w] > far:  # noqa: PLR1730  # the inner loop of a search: a call of `max` takes longer
                far = ran[w]
        here[v] = near
        ran[v] = far if in_registers[v] else near
    return np.array(ran, np.int64)
