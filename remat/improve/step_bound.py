"""Poses relaxations: problems whose optimum bounds what every plan recomputes if its compiled step keeps a limit.

At a moment of the backward pass some values are in memory in every plan: the arguments and results of a library call,
or what a kernel reads and writes. The operators that depend on them run later. What these operators need of the forward
pass is in memory at that moment, or is recomputed afterwards. So a plan costs at least as much as the cheapest choice
that keeps no more bytes than the limit leaves: a `Problem` with a byte budget. In this problem "saved" means in memory
at that moment; a value may have been recomputed before that, which counts as free.

Three facts about memory make this a proof (`remat.predict.buffers`):

- *A value in memory takes its bytes.* But a copy may share the memory of its source, so a copy is recomputed for free.
  And the parts of a concatenation lie in the memory of the result, so they count 0 bytes, unless they are pieces of
  other values: these are copied.
- *A kernel reads from memory.* Its result depends on values that are in memory before, with no library call between the
  two. A minimum cut finds the fewest bytes of a set of values from which the result can be computed so.
- *A kernel writes over what it reads only if that is nearly as large*, and read where it writes
  (`remat.predict.buffers.overwritten`). Otherwise the result takes memory beside what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from remat.facts.bans import Bans
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.facts.uses import propagate_to_operands
from remat.predict.buffers.floor import surely_called
from remat.predict.buffers.overwritten import descendants, may_be_written_over
from remat.predict.kernels import Fuser
from remat.predict.memory.storages import StorageFacts
from remat.problem.problem import Problem
from remat.proof.budget import least_bytes
from remat.proof.certify import proven_weight

# A result is written over a buffer only if it fills at least this part of it.
_LEAST_SHARE = 0.95
# This many library calls are looked at, those with the most memory first; and the one kernel that writes most.
_CALLS = 2


@dataclass(frozen=True, eq=False)
class ProgramPoint:
    """Describes a moment of the backward pass: what is in memory then under every plan, and which operators run later.

    Attributes:
        bytes: the bytes in memory.
        may_be_counted: (n,) values whose memory may be among these bytes.
        later: (n,) operators of the backward pass that surely run later.
    """

    bytes: int
    may_be_counted: BoolArray
    later: BoolArray


def step_bounds(graph: Graph, problem: Problem, limit_bytes: int) -> Iterator[Problem]:
    """Poses relaxations with a byte budget: no plan that keeps the limit costs less than the best choice of each.

    The graph must record its calls, and the problem has no budget. `limit_bytes` limits the peak of the compiled step.
    """
    facts = StorageFacts.of(graph)
    if has_dead_gradients(facts):
        return
    sizes = _sizes(facts)
    for moment in _moments(facts, sizes):
        read = moment.later[graph.consumers] & ~facts.tangents[graph.producers]
        needed = np.zeros(len(graph), np.bool_)
        needed[graph.producers[read]] = True
        size = np.where(moment.may_be_counted[graph.base], 0, sizes)
        recompute = np.where(graph.view | _is_op(graph, "aten.clone"), 0, graph.for_all_values(problem.recompute_cost))
        plannable = graph.plannable
        yield replace(
            problem,
            save_cost=np.zeros(len(plannable), np.int64),
            recompute_cost=recompute[plannable],
            save_bytes=size[plannable],
            needed=needed[plannable],
            cannot_save=_no_memory(graph).take(plannable),
            budget_bytes=max(limit_bytes - moment.bytes, 0),
        )


def has_dead_gradients(facts: StorageFacts) -> bool:
    """Says if a part of the backward pass leads to no gradient.

    Torch does not compute that part, and drops saved values that only that part would read. So such values may never be
    in memory, and the bounds of this module would not be valid.
    """
    return bool((facts.tangents & facts.computed & ~facts.live).any())


def _sizes(facts: StorageFacts) -> IntArray:
    graph = facts.graph
    # At least this many bytes a value takes in memory. Inputs are there anyway, and parts of a concatenation lie in it,
    # unless the part is a view that shows only a piece of a value, or shows it in another shape: that is copied
    # (`ConcatKernel.realize_into`). But Inductor replaces pieces of one value that are put together again by the value
    # (`splitwithsizes_cat_replace`).
    part = np.zeros(len(graph), np.bool_)
    for v in np.flatnonzero(_is_op(graph, "aten.cat")):
        together = len({int(graph.base[u]) for u in graph.operands[v]}) == 1
        for u in graph.operands[v]:
            part[graph.base[u]] |= together or graph.shapes[u] == graph.shapes[graph.base[u]]
    return np.where(facts.external | part[graph.base], 0, np.minimum(graph.bytes, facts.size))


def _is_op(graph: Graph, name: str) -> BoolArray:
    return np.fromiter((op.startswith(f"{name}.") for op in graph.ops), np.bool_, len(graph))


def _no_memory(graph: Graph) -> Bans:
    several = [v for v in range(len(graph)) if graph.dtypes[v] == ""]
    return Bans.of(len(graph), dict.fromkeys(several, "several results"))


def _moments(facts: StorageFacts, sizes: IntArray) -> list[ProgramPoint]:
    # Much memory is taken by calls, and by kernels that write the arguments of calls.
    graph, called = facts.graph, surely_called(facts)
    calls = np.flatnonzero(called & facts.live).tolist()
    arguments = {int(graph.base[u]) for v in calls for u in graph.operands[v]}
    written = [w for w in arguments if facts.live[w] and not called[w] and not graph.tuple_element[w]]
    moments = [
        _call(facts, v) for v in sorted(calls, key=lambda v: -int(facts.size[_storages(facts, v)].sum()))[:_CALLS]
    ]
    if written:
        moments.append(_kernel(facts, called, sizes, max(written, key=lambda w: (sizes[w], -w))))
    return moments


def _storages(facts: StorageFacts, call: int) -> list[int]:
    bases = {int(facts.graph.base[u]) for u in (call, *facts.graph.operands[call])}
    return [base for base in bases if not facts.external[base]]


def _call(facts: StorageFacts, v: int) -> ProgramPoint:
    graph = facts.graph
    counted = np.zeros(len(graph), np.bool_)
    counted[_storages(facts, v)] = True
    size = sum(min(int(graph.bytes[u]), int(facts.size[u])) for u in _storages(facts, v))
    return ProgramPoint(size, counted, descendants(graph, v) & facts.live)


# While a kernel writes `w`, the argument of a call, memory holds `w` and values from which it can be computed.
def _kernel(facts: StorageFacts, called: BoolArray, sizes: IntArray, w: int) -> ProgramPoint:
    graph = facts.graph
    cone = np.zeros(len(graph), np.bool_)
    cone[w] = True
    cone = propagate_to_operands(graph.operands, cone, facts.computed & ~called)
    counted = np.zeros(len(graph), np.bool_)
    counted[graph.base[cone]] = True
    cone[w] = False
    peak = int(sizes[w]) + _fewest_bytes(facts, called, sizes, cone, w)
    for old in _large_enough(facts, cone, w):
        overwriting = int(sizes[w]) + _fewest_bytes(facts, called, np.where(graph.base == old, 0, sizes), cone, w)
        if overwriting < peak and may_be_written_over(Fuser(graph), old, w):
            peak = overwriting
    return ProgramPoint(peak, counted, descendants(graph, w) & facts.live)


def _large_enough(facts: StorageFacts, cone: BoolArray, w: int) -> list[int]:
    graph, least = facts.graph, int(facts.size[w])
    fits = (least <= facts.size) | (least <= graph.bytes)
    fits &= (_LEAST_SHARE * facts.size <= least) | (_LEAST_SHARE * graph.bytes <= least)
    return np.unique(graph.base[cone & fits & (graph.base != w) & ~facts.external]).tolist()


def _fewest_bytes(facts: StorageFacts, called: BoolArray, sizes: IntArray, cone: BoolArray, w: int) -> int:
    # A cut finds the fewest bytes from which the arguments of `w` can be computed without a library call.
    graph = facts.graph
    members = np.flatnonzero(cone)
    place = np.cumsum(cone) - 1
    inside = cone[graph.producers] & cone[graph.consumers]
    needed = np.zeros(len(graph), np.bool_)
    needed[list(graph.operands[w])] = True
    nothing = np.zeros(len(members), np.int64)
    fixed = np.flatnonzero((called | ~facts.computed)[members]).tolist()
    problem = Problem(
        names=tuple(graph.names[v] for v in members.tolist()),
        save_cost=nothing,
        recompute_cost=nothing,
        save_bytes=sizes[members],
        producers=place[graph.producers[inside]],
        consumers=place[graph.consumers[inside]],
        needed=needed[members],
        cannot_save=Bans.none(len(members)),
        cannot_recompute=Bans.of(len(members), dict.fromkeys(fixed, "a call, or an input")),
    )
    return proven_weight(problem, least_bytes(problem).certificate)
