"""States an instance of the benchmark in the words of the papers: tensors in one order, each with bytes and a time.

The papers know operators that make one tensor each. An instance has views, tuples and inputs beside. So a *tensor* here
is a value that takes memory if it is saved, and may be saved. A view is read as the tensor that it is a view of; what
can be neither saved nor read as a tensor (a tuple) is computed again together with each tensor that is made from it.
Methods choose tensors to save; `TensorInstance.plan` adds what must be saved, and leaves out what the backward pass
never reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat import Choice, Graph, Problem
from remat.facts.columns import BoolArray, IntArray
from remat.plugin import forced_values
from remat.problem.problem_file import Budget

FloatArray: TypeAlias = NDArray[np.float64]

LIMIT_S = 30.0
"""Seconds of processor time that a method has for a budget."""


class PlanScore(NamedTuple):
    """Holds the cost of a plan, and its memory in bytes."""

    cost: int
    saved_bytes: int
    peak_bytes: int

    def of(self, budget: Budget) -> int:
        """Returns the bytes that a budget limits."""
        return self.saved_bytes if budget.of == "saved" else self.peak_bytes


ScorePlan: TypeAlias = Callable[[BoolArray], PlanScore]
"""Takes a mask (k,) of the tensors that a plan saves, and scores the whole plan."""


@dataclass(frozen=True, eq=False)
class TensorInstance:
    """Holds k tensors, in the order in which they are computed.

    Attributes:
        graph, problem: what is asked about, without a budget.
        value: (k,) the position of each tensor among the n values of the problem.
        bytes, cost: (k,) what it takes in memory, and the time to compute it once more.
        operands: the tensors that it is computed from.
        forward: (k,) the forward pass computes it in any case.
        fixed: (k,) it cannot be computed again.
        last_forward: (k,) the position of the last value of the forward pass that reads it; its own without any.
        first_read, last_read: (k,) the nodes of the backward pass that read it first and last, or a view of it; if
            there is none: the number of nodes plus one, and -1.
    """

    graph: Graph
    problem: Problem
    value: IntArray
    bytes: IntArray
    cost: IntArray
    operands: tuple[tuple[int, ...], ...]
    forward: BoolArray
    fixed: BoolArray
    last_forward: IntArray
    first_read: IntArray
    last_read: IntArray

    @classmethod
    def of(cls, graph: Graph, problem: Problem) -> TensorInstance:
        """Finds the tensors of a graph."""
        nodes, n = graph.plannable, len(problem)
        in_forward = graph.in_forward[nodes]
        is_tensor = ~graph.leaf[nodes] & (problem.save_bytes > 0) & ~problem.cannot_save.mask
        value = np.flatnonzero(is_tensor)
        number = np.full(n, -1)
        number[value] = np.arange(len(value))
        stands_for: list[tuple[int, ...]] = []  # the tensors that are read where a value is read
        beside: list[frozenset[int]] = []  # what is computed again with each reader of a value
        cost, operands, last_forward = problem.recompute_cost[value].copy(), list[tuple[int, ...]](), value.copy()
        for v, arguments in enumerate(problem.operands):
            tensors = tuple(sorted({p for u in arguments for p in stands_for[u]}))
            others = frozenset[int]().union(*(beside[u] for u in arguments))
            if in_forward[v]:
                last_forward[list(tensors)] = v
            if number[v] >= 0:
                operands.append(tensors)
                cost[number[v]] += problem.recompute_cost[list(others)].sum()
            stands_for.append((int(number[v]),) if number[v] >= 0 else tensors)
            beside.append(frozenset() if number[v] >= 0 else others | {v})
        first, last = np.full(len(value), len(graph) + 1), np.full(len(value), -1)
        place = np.full(len(graph), -1)
        place[nodes] = np.arange(n)
        backward = graph.in_tangents[graph.consumers] & (place[graph.producers] >= 0)
        read: list[int] = place[graph.producers[backward]].tolist()
        readers: list[int] = graph.consumers[backward].tolist()
        reads = list(zip(read, readers, strict=True))
        reads += [(v, len(graph)) for v in np.flatnonzero(problem.needed & graph.gradient[nodes]).tolist()]
        for v, reader in reads:
            if problem.needed[v]:
                for p in stands_for[v]:
                    first[p], last[p] = min(first[p], reader), max(last[p], reader)
        return cls(
            graph,
            problem,
            value,
            problem.save_bytes[value],
            cost,
            tuple(operands),
            in_forward[value],
            forced_values(problem).not_recomputable[value],
            last_forward,
            first,
            last,
        )

    def __len__(self) -> int:
        return len(self.value)

    @cached_property
    def needed(self) -> BoolArray:
        """Returns a mask (k,) of the tensors that the backward pass reads."""
        return self.last_read >= 0

    @cached_property
    def asked_at(self) -> IntArray:
        """Returns (k,) the node of the backward pass that asks first for a tensor if nothing is saved."""
        asked, nodes = self.first_read.copy(), self.graph.plannable[self.value]
        for p in range(len(self) - 1, -1, -1):
            if asked[p] <= len(self.graph) and not self.forward[p]:
                asked[p] = min(asked[p], nodes[p])  # it runs at its own place
            for u in self.operands[p]:
                asked[u] = min(asked[u], asked[p])
        return asked

    @cached_property
    def always(self) -> BoolArray:
        """Returns a mask (n,) of the values that are saved whenever they are read: they must be, or take no memory."""
        must = forced_values(self.problem).not_recomputable | (self.problem.save_bytes == 0)
        return must & ~self.problem.cannot_save.mask

    def crossing(self, sizes: IntArray) -> IntArray:
        """Sums sizes (k,) over the tensors that cross a cut behind each tensor; fixed tensors do not count."""
        free = np.flatnonzero(self.forward & ~self.fixed)
        change = np.zeros(len(self.problem) + 1, np.int64)
        np.add.at(change, self.value[free], sizes[free])
        np.add.at(change, self.last_forward[free], -sizes[free])
        return change.cumsum()[self.value]

    def plan(self, saved: BoolArray) -> Choice:
        """Returns the plan that saves these tensors, (k,), what must be saved, and nothing that is not read."""
        every = self.always.copy()
        every[self.value[saved]] = True
        return Choice.from_saved(self.problem, every)
