"""Computes a lower bound on the peak of every plan: what is alive while an operator runs, whatever is saved.

Three facts hold under every legal plan, in the model of `remat.predict.memory`:

1. The operators on which the outputs depend run in the forward pass, in graph order. Those of the tangents' closure on
   which a gradient depends run in the backward pass, in graph order. All other operators run in between, and change
   neither order.
2. A storage is written to memory if its base cannot be fused, if it is returned, or if an operator of (1) reads it in a
   way that cannot be fused. It is alive from its allocation to that reader; if it is recomputed, or read more than
   once, from the first reader of (1) to the last, because it is never freed in between. Storages of the tangents'
   closure do not depend on the plan.
3. Values that the backward pass needs and must not recompute are saved: alive from the operator of the forward pass
   that computes them to their last reader. Outputs and gradients are held until the end.

So the storages of (2) and (3) that are alive while an operator of (1) runs are a lower bound on every plan's peak. Each
storage counts once, even where a plan might hold it twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph, Region
from remat.predict.memory.lifetimes import alive_bytes
from remat.predict.memory.storages import StorageFacts
from remat.predict.memory.timeline import LiveTensor, Why, listed_tensors
from remat.problem.constraints import base_problem
from remat.problem.feasibility import forced_values
from remat.words import human_bytes, placed

_SHOWN = 5


@dataclass(frozen=True)
class WorkingSet:
    """Holds storages that every legal plan has alive at the same time: a lower bound on the peak of every legal plan.

    Attributes:
        bytes: the total of the storages.
        name, op: the operator during which they are alive; "" for the end of the backward pass.
        backward: whether that operator runs in the backward pass.
        tensors: the storages, the largest first.
        place: the line of the model that computes the value (`remat.Graph.places`).
    """

    bytes: int
    name: str
    op: str
    backward: bool
    tensors: tuple[LiveTensor, ...]
    place: str = ""

    def __str__(self) -> str:
        what = placed(self.name, self.op, self.place)
        where = f"while {what} runs in the" if self.name else "at the end of the"
        head = f"every plan holds {human_bytes(self.bytes)} {where} {'backward' if self.backward else 'forward'} pass:"
        return "\n".join([head, *listed_tensors(self.tensors, _SHOWN)])


def lower_bound(graph: Graph, *, holds_outputs: bool = True) -> WorkingSet:
    """Returns the operator during which every plan holds the most bytes, and the storages of these bytes."""
    n = len(graph)
    facts = StorageFacts.of(graph)
    needed = Necessary.of(facts, holds_outputs)
    at = needed.alive_bytes(n)
    runs = np.concatenate([(graph.region == Region.FORWARD) & facts.computed, facts.live, [True]])
    step = int(np.where(runs, at, -1).argmax())
    alive = np.flatnonzero((needed.start <= step) & (step <= needed.end) & (needed.size > 0))
    largest: list[int] = alive[np.lexsort((needed.base[alive], -needed.size[alive]))].tolist()
    return WorkingSet(
        bytes=int(at[step]),
        name=graph.names[step % n] if step < 2 * n else "",
        op=graph.ops[step % n] if step < 2 * n else "",
        backward=step >= n,
        tensors=tuple(
            LiveTensor(graph.names[b], int(needed.size[i]), needed.why[i], int(needed.start[i]) >= n, graph.places[b])
            for i in largest
            for b in [int(needed.base[i])]
        ),
        place=graph.places[step % n] if step < 2 * n else "",
    )


@dataclass(frozen=True, eq=False)
class AlwaysAlive:
    """Holds the bytes, (n + 2,), that every plan has alive: between the passes, in each backward step, at the end."""

    bytes: IntArray
    # (n,) values that own the storages that are alive from the end of the forward pass until their last reader in the
    # backward pass: outputs, and values that every plan saves.
    held: BoolArray
    # (n,) the earliest position in the graph at which the backward pass of any plan can read a saved value, also for a
    # recomputation; n + 1 for never.
    first_read: IntArray

    @classmethod
    def of(cls, facts: StorageFacts) -> AlwaysAlive:
        n, graph = len(facts), facts.graph
        held = graph.owners((graph.output & ~facts.external) | always_saved(facts))
        passes = Necessary.of(facts, holds_outputs=True).alive_bytes(n)
        # Not the bytes while the last value of the forward pass runs: it may still read unsaved values.
        between = facts.size[held].sum(keepdims=True)
        return cls(np.concatenate([between, passes[n:]]), held, first_read(facts))


def first_read(facts: StorageFacts) -> IntArray:
    """Returns an array (n,): the first position at which any backward pass can read each value; n + 1 for never."""
    first: list[int] = facts.first_use.tolist()
    outside: list[int] = np.flatnonzero(~facts.tangents)[::-1].tolist()
    for v in outside:
        # Values after the first reader of a tangent run at their position; earlier ones, when a reader needs them.
        when = v if v >= facts.first_tangent_reader else first[v]
        for u in facts.arguments[v]:
            first[u] = min(first[u], when)
    return np.array(first, np.int64)


@dataclass(frozen=True, eq=False)
class Necessary:
    """Holds the lifetimes that are part of every plan, over 2n + 1 steps: each pass in graph order, and the end."""

    base: IntArray
    start: IntArray
    end: IntArray
    size: IntArray
    why: tuple[Why, ...]

    @classmethod
    def of(cls, facts: StorageFacts, holds_outputs: bool) -> Necessary:
        spans = _spans(facts, holds_outputs)
        merged: list[tuple[int, int, int, Why]] = []
        for base, start, end, why in sorted(spans, key=lambda span: span[:3]):
            if merged and merged[-1][0] == base and start <= merged[-1][2]:
                _, first, last, reason = merged[-1]
                merged[-1] = base, first, max(last, end), reason
            else:
                merged.append((base, start, end, why))
        columns = np.array([span[:3] for span in merged], np.int64).reshape(-1, 3)
        bases: IntArray = columns[:, 0]
        return cls(bases, columns[:, 1], columns[:, 2], facts.size[bases], tuple(span[3] for span in merged))

    def alive_bytes(self, n: int) -> IntArray:
        return alive_bytes(self.start, self.end, self.size, 2 * n + 1)


# Lifetimes as (base, first step, last step, why); those of one storage may overlap.
def _spans(facts: StorageFacts, holds_outputs: bool) -> list[tuple[int, int, int, Why]]:
    n, graph = len(facts), facts.graph
    must_save = always_saved(facts)
    forward, crossing = _forward_spans(facts, must_save, holds_outputs), _crossing_spans(facts, must_save)
    returned = graph.gradient & ~facts.tangents & ~facts.external
    at_end: list[tuple[int, int, int, Why]] = [(b, 2 * n, 2 * n, "gradient") for b in graph.base[returned].tolist()]
    return forward + crossing + _tangent_spans(facts) + at_end


def always_saved(facts: StorageFacts) -> BoolArray:
    """Returns a mask (n,) of the values that every legal plan saves."""
    problem = base_problem(facts.graph)
    saved = facts.graph.for_all_values(problem.needed & forced_values(problem).not_recomputable)
    return saved & (facts.first_use <= len(facts)) & ~facts.external


def _forward_spans(facts: StorageFacts, must_save: BoolArray, holds_outputs: bool) -> list[tuple[int, int, int, Why]]:
    n, graph = len(facts), facts.graph
    runs = (graph.region == Region.FORWARD) & facts.computed
    reads = runs[facts.readers]
    u, v = facts.producers[reads], facts.readers[reads]
    written = runs & ~facts.fusible & (graph.base == np.arange(n))
    written[u[facts.unfused[reads]]] = True
    bases = graph.owners(written | graph.output | must_save)
    end = np.full(n, -1)
    np.maximum.at(end, graph.base[runs], np.flatnonzero(runs))
    np.maximum.at(end, graph.base[u], v)
    end[graph.base[must_save]] = n - 1
    end[graph.base[graph.output]] = 2 * n if holds_outputs else n - 1
    outputs = set(graph.base[graph.output].tolist())
    saved = set(graph.base[must_save].tolist())
    return [
        (b, int(facts.producer[b]), int(end[b]), "output" if b in outputs else "saved" if b in saved else "transient")
        for b in np.flatnonzero(bases & ~facts.external).tolist()
    ]


# Values outside the tangents' closure are alive from their first reader in it to the last.
def _crossing_spans(facts: StorageFacts, must_save: BoolArray) -> list[tuple[int, int, int, Why]]:
    n, graph = len(facts), facts.graph
    reads = facts.live[facts.readers] & ~facts.tangents[facts.producers]
    u, v = facts.producers[reads], facts.readers[reads]
    first, last = np.full(n, 2 * n), np.full(n, -1)
    np.minimum.at(first, u, v + n)
    np.maximum.at(last, u, kernel_ends(facts)[v] + n)
    first[must_save] = n
    last[must_save & graph.gradient] = 2 * n
    written = ~facts.fusible[graph.base] | must_save
    written[u[facts.unfused[reads]]] = True
    why: list[Why] = ["transient", "saved"]
    return [
        (int(graph.base[a]), int(first[a]), int(last[a]), why[int(must_save[a])])
        for a in np.flatnonzero(written & (last >= 0)).tolist()
    ]


# These are the same under every plan, because the order of the tangents' closure is.
def _tangent_spans(facts: StorageFacts) -> list[tuple[int, int, int, Why]]:
    n, graph = len(facts), facts.graph
    written = _written_by_tangents(facts)
    end = np.full(n, -1)
    live = np.flatnonzero(facts.live)
    np.maximum.at(end, graph.base[live], live + n)
    reads = facts.live[facts.readers] & facts.tangents[facts.producers]
    u, v = facts.producers[reads], facts.readers[reads]
    np.maximum.at(end, graph.base[u], kernel_ends(facts)[v] + n)
    returned = graph.gradient & facts.tangents
    end[graph.base[returned]] = 2 * n
    gradients = set(graph.base[returned].tolist())
    mine = written & facts.live & ~facts.external & (graph.base == np.arange(n))
    return [
        (b, int(facts.producer[b]) + n, int(end[b]), "gradient" if b in gradients else "transient")
        for b in np.flatnonzero(mine).tolist()
    ]


def _written_by_tangents(facts: StorageFacts) -> BoolArray:
    graph = facts.graph
    written = graph.owners(graph.gradient & facts.tangents) | ~facts.fusible
    barred = facts.unfused & facts.live[facts.readers]
    written[graph.base[facts.producers[barred]]] = True
    return written


def kernel_ends(facts: StorageFacts) -> IntArray:
    """Returns an array (n,): for each value of the tangents' closure, the last value of the kernel that computes it."""
    graph = facts.graph
    alone = ~_written_by_tangents(facts)[graph.base] & facts.tangents[graph.base] & ~facts.external
    ran: list[int] = np.where(facts.live, np.arange(len(facts)), -1).tolist()
    in_registers: list[int] = np.flatnonzero(facts.live & alone)[::-1].tolist()
    for v in in_registers:
        ran[v] = max([ran[w] for w in facts.fused_consumers[v]], default=ran[v])
    return np.array(ran, np.int64)
