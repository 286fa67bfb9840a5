"""States what every plan must recompute whose compiled step stays within a limit of memory: problems that bound it.

At a moment of the backward pass some values are in memory, whatever the plan: arguments and results of a call of a
library, or what a kernel reads and writes. The operators that depend on what is computed there come later. What they
need of the forward pass is in memory at that moment, or is recomputed after it. So a plan recomputes at least what the
cheapest choice does that keeps no more than the limit leaves: a `Problem` with a byte budget. What it keeps may have
been saved or recomputed before; the latter counts as free.

Three facts about memory make this a proof (`remat.predict.buffers`):

- *What is kept takes its bytes.* But a copy may share the memory of its source: so it is recomputed for free. And the
  parts of a concatenation lie in the whole: they count nothing.
- *A kernel reads from memory.* A result of it depends on values that are in memory before, and no call of a library is
  between the two. Of all sets of values from which it can be computed so, one of the fewest bytes is found by a cut.
- *It writes over what it reads only if that is nearly as large*, and read where it writes
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
from remat.predict.memory.storages import Storages
from remat.problem.problem import Problem
from remat.proof.budget import least_bytes
from remat.proof.certify import proven_weight

_LEAST_SHARE = 0.95
"""How much of a buffer a result must fill that is written over it."""

_CALLS = 2
"""How many calls to look at, those with the most memory first; and the one kernel that writes most."""


@dataclass(frozen=True, eq=False)
class ProgramPoint:
    """What is in memory at a moment whatever the plan, and what comes later.

    Attributes:
        bytes: of what is in memory.
        known: (n,) values whose memory may be among these bytes.
        later: (n,) operators of the backward pass that surely run later.
    """

    bytes: int
    known: BoolArray
    later: BoolArray


def step_bounds(graph: Graph, problem: Problem, limit_bytes: int) -> Iterator[Problem]:
    """Poses problems with a byte budget: no plan within the limit costs less than the best choice of each.

    Args:
        graph: the joint graph; it knows its calls.
        problem: costs and bans, without a budget.
        limit_bytes: of the peak of the compiled step.
    """
    facts = Storages.of(graph)
    if (facts.tangents & facts.computed & ~facts.live).any():  # torch drops what only this would read
        return
    sizes = _sizes(facts)
    for moment in _moments(facts, sizes):
        read = moment.later[graph.consumers] & ~facts.tangents[graph.producers]
        needed = np.zeros(len(graph), np.bool_)
        needed[graph.producers[read]] = True
        size = np.where(moment.known[graph.base], 0, sizes)
        again = np.where(graph.view | _is_op(graph, "aten.clone"), 0, graph.for_all_values(problem.recompute_cost))
        ours = graph.plannable
        yield replace(
            problem,
            save_cost=np.zeros(len(ours), np.int64),
            recompute_cost=again[ours],
            save_bytes=size[ours],
            needed=needed[ours],
            cannot_save=_no_memory(graph).take(ours),
            budget_bytes=max(limit_bytes - moment.bytes, 0),
        )


def _sizes(facts: Storages) -> IntArray:
    """(n,) bytes that a value takes at least if it is kept; of inputs, and parts of concatenations, none."""
    graph = facts.graph
    part = np.zeros(len(graph), np.bool_)
    part[graph.base[graph.producers[_is_op(graph, "aten.cat")[graph.consumers]]]] = True
    return np.where(facts.foreign | part[graph.base], 0, np.minimum(graph.bytes, facts.size))


def _is_op(graph: Graph, name: str) -> BoolArray:
    return np.fromiter((op.startswith(f"{name}.") for op in graph.ops), np.bool_, len(graph))


def _no_memory(graph: Graph) -> Bans:
    several = [v for v in range(len(graph)) if graph.dtypes[v] == ""]
    return Bans.of(len(graph), dict.fromkeys(several, "several results"))


def _moments(facts: Storages, sizes: IntArray) -> list[ProgramPoint]:
    """Finds moments with much memory: calls, and kernels that write the arguments of calls."""
    graph, called = facts.graph, surely_called(facts)
    calls = np.flatnonzero(called & facts.live).tolist()
    arguments = {int(graph.base[u]) for v in calls for u in graph.operands[v]}
    written = [w for w in arguments if facts.live[w] and not called[w] and not graph.tuple_element[w]]
    moments = [_call(facts, v) for v in sorted(calls, key=lambda v: -_argument_bytes(facts, v))[:_CALLS]]
    if written:
        moments.append(_kernel(facts, called, sizes, max(written, key=lambda w: (sizes[w], -w))))
    return moments


def _argument_bytes(facts: Storages, call: int) -> int:
    return int(facts.size[_storages(facts, call)].sum())


def _storages(facts: Storages, call: int) -> list[int]:
    found = {int(facts.graph.base[u]) for u in (call, *facts.graph.operands[call])}
    return [base for base in found if not facts.foreign[base]]


def _call(facts: Storages, v: int) -> ProgramPoint:
    graph = facts.graph
    known = np.zeros(len(graph), np.bool_)
    known[_storages(facts, v)] = True
    size = sum(min(int(graph.bytes[u]), int(facts.size[u])) for u in _storages(facts, v))
    return ProgramPoint(size, known, descendants(graph, v) & facts.live)


def _kernel(facts: Storages, called: BoolArray, sizes: IntArray, w: int) -> ProgramPoint:
    """A kernel that writes the argument of a call has that in memory, and what it depends on."""
    graph = facts.graph
    cone = np.zeros(len(graph), np.bool_)
    cone[w] = True
    cone = propagate_to_operands(graph.operands, cone, facts.computed & ~called)
    known = np.zeros(len(graph), np.bool_)
    known[graph.base[cone]] = True
    cone[w] = False
    beside = int(sizes[w]) + _fewest_bytes(facts, called, sizes, cone, w)
    for old in _hosts(facts, cone, w):
        over = int(sizes[w]) + _fewest_bytes(facts, called, np.where(graph.base == old, 0, sizes), cone, w)
        if over < beside and may_be_written_over(Fuser(graph), old, w):
            beside = over
    return ProgramPoint(beside, known, descendants(graph, w) & facts.live)


def _hosts(facts: Storages, cone: BoolArray, w: int) -> list[int]:
    """Lists storages that are so large that `w` could be written over them."""
    graph, least = facts.graph, int(facts.size[w])
    fits = (least <= facts.size) | (least <= graph.bytes)
    fits &= (_LEAST_SHARE * facts.size <= least) | (_LEAST_SHARE * graph.bytes <= least)
    return np.unique(graph.base[cone & fits & (graph.base != w) & ~facts.foreign]).tolist()


def _fewest_bytes(facts: Storages, called: BoolArray, sizes: IntArray, cone: BoolArray, w: int) -> int:
    """Counts the fewest bytes from which the arguments of `w` can be computed without a call of a library."""
    graph = facts.graph
    ours = np.flatnonzero(cone)
    place = np.cumsum(cone) - 1
    inside = cone[graph.producers] & cone[graph.consumers]
    needed = np.zeros(len(graph), np.bool_)
    needed[list(graph.operands[w])] = True
    nothing = np.zeros(len(ours), np.int64)
    fixed = np.flatnonzero((called | ~facts.computed)[ours]).tolist()
    problem = Problem(
        names=tuple(graph.names[v] for v in ours.tolist()),
        save_cost=nothing,
        recompute_cost=nothing,
        save_bytes=sizes[ours],
        producers=place[graph.producers[inside]],
        consumers=place[graph.consumers[inside]],
        needed=needed[ours],
        cannot_save=Bans.none(len(ours)),
        cannot_recompute=Bans.of(len(ours), dict.fromkeys(fixed, "a call, or given")),
    )
    return proven_weight(problem, least_bytes(problem).certificate)
