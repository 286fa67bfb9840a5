"""Evicts tensors while the forward pass runs, after Kirisame et al. (ICLR 2021), "Dynamic tensor rematerialization".

Nothing is planned: tensors stay in memory until a limit is reached. Then the tensor of the lowest h = cost / (bytes *
staleness) goes, until the next one fits. Its cost is the time to compute it again together with what was evicted around
it: their h_DTR^eq, where evicted neighbours form a component. When a member is computed again, it leaves the component,
and its time is subtracted. Its staleness is the time since it was last read or made.

What nobody needs any more is evicted at once (their "eager eviction"). What is evicted and read by the forward pass is
computed again then.

Changed: their backward pass goes on evicting, and may compute a tensor many times. Here the tensors that are in memory
when the forward pass ends, and that the backward pass reads, are what is saved. So a limit of DTR is no budget: several
limits are tried, and a budget takes the cheapest plan that it allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from experiments.rivals.tensor_instance import FloatArray, TensorInstance
from remat.facts.columns import BoolArray

LIMITS = 65


class OutOfMemory(Exception):
    """What is read at once, and what cannot be computed again, exceeds the limit."""


def plans(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields a plan for each limit: first far apart, then between them."""
    most = max(int(instance.bytes[instance.forward].sum()), 1)  # the forward pass may compute no tensor
    limits = np.geomspace(most, max(most / 100, 1), LIMITS).tolist()
    for i in sorted(range(LIMITS), key=lambda i: -math.gcd(i, LIMITS - 1)):
        try:
            yield Forward(instance, limits[i]).run()
        except OutOfMemory:
            continue


class Forward:
    """Simulates the forward pass within a limit of bytes."""

    def __init__(self, instance: TensorInstance, limit_bytes: float) -> None:
        self._instance, self._limit, k = instance, limit_bytes, len(instance)
        self.in_memory, self.evicted = np.zeros(k, np.bool_), np.zeros(k, np.bool_)
        self._kept = instance.needed | instance.fixed
        self._pins = instance.fixed.astype(np.int64)  # how many reasons there are not to evict a tensor now
        self._touched, self._clock, self._used = np.zeros(k), 0.0, 0
        self._component, self._component_cost = np.arange(k), np.zeros(k)  # a component is named by a member
        self._neighbours: list[set[int]] = [set(read) for read in instance.operands]
        for p, read in enumerate(instance.operands):
            for u in read:
                self._neighbours[u].add(p)
        ends = [(p, u) for p, around in enumerate(self._neighbours) for u in around]
        self._here, self._there = np.array(ends, np.int64).reshape(-1, 2).T
        self._readers_left = [0] * k
        for p in np.flatnonzero(instance.forward).tolist():
            for u in instance.operands[p]:
                self._readers_left[u] += 1

    def run(self) -> BoolArray:
        """Returns (k,) what the backward pass reads and is in memory at the end."""
        for p in np.flatnonzero(self._instance.forward).tolist():
            self._compute(p)
            for u in self._instance.operands[p]:
                self._readers_left[u] -= 1
            self._drop_dead((p, *self._instance.operands[p]))
        return self.in_memory & self._kept

    def _compute(self, p: int) -> None:
        """Computes a tensor, after each operand that is not in memory; operands are pinned until their reader ran."""
        waiting = [(p, iter(self._instance.operands[p]))]
        while waiting:
            q, operands = waiting[-1]
            for u in operands:
                self._pins[u] += 1
                if not self.in_memory[u]:
                    waiting.append((u, iter(self._instance.operands[u])))
                    break
            else:
                self._make(q)
                waiting.pop()
                read = self._instance.operands[q]
                self._pins[list(read)] -= 1
                if q != p:
                    self._drop_dead(read)

    def _drop_dead(self, tensors: Iterable[int]) -> None:
        for u in tensors:
            if self.in_memory[u] and not (self._readers_left[u] or self._kept[u] or self._pins[u]):
                self._evict(u)

    def _make(self, q: int) -> None:
        size = int(self._instance.bytes[q])
        while self._used + size > self._limit:
            self._evict(self._victim())
        self._used += size
        self.in_memory[q] = True
        if self.evicted[q]:
            self.evicted[q] = False
            self._leave_component(q)
        self._clock += float(self._instance.cost[q])
        self._touched[[q, *self._instance.operands[q]]] = self._clock

    def _leave_component(self, q: int) -> None:
        name = self._component[q]
        self._component_cost[name] -= self._instance.cost[q]
        others = self.evicted & (self._component == name)
        if name == q and others.any():
            other = int(others.argmax())
            self._component[others] = other
            self._component_cost[other] = self._component_cost[q]

    def _victim(self) -> int:
        free = np.flatnonzero(self.in_memory & (self._pins == 0))
        if not len(free):
            raise OutOfMemory
        around = self._around()
        stale = self._clock - self._touched[free] + 1
        scores = (self._instance.cost[free] + around[free]) / (self._instance.bytes[free] * stale)
        return int(free[scores.argmin()])

    def _around(self) -> FloatArray:
        """Returns (k,) the times of the evicted components beside each tensor, each component once."""
        k = len(self._instance)
        gone = self.evicted[self._there]
        pairs = np.unique(self._here[gone] * k + self._component[self._there[gone]])
        around = np.zeros(k)
        np.add.at(around, pairs // k, self._component_cost[pairs % k])
        return around

    def _evict(self, p: int) -> None:
        self.in_memory[p], self.evicted[p] = False, True
        self._used -= int(self._instance.bytes[p])
        self._component[p], self._component_cost[p] = p, self._instance.cost[p]
        for root in {int(self._component[u]) for u in self._neighbours[p] if self.evicted[u]} - {p}:
            self._component[self.evicted & (self._component == root)] = p
            self._component_cost[p] += self._component_cost[root]
