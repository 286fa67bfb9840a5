"""Computes exactly the Pareto front of saved bytes and recompute time over all decisions about regions.

What one layer passes to another is kept, so no decision in a layer changes what another layer computes again. So the
decisions of each layer are compared one by one, and the layers are added like the items of a knapsack: of two sums, one
that saves more bytes at no less cost is dropped. This is Nemhauser and Ullmann's method (1969). It needs no solver, and
equal layers do not slow it down, while an integer program has to exclude each of their permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import IntArray
from remat.improve.region_problem import RegionProblem

_MOST_DECISIONS = 10
"""A layer with more decisions is left to an integer program: each one doubles the plans to compare."""

_MOST_POINTS = 200_000
"""With more trade-offs, an integer program is used, too: each layer multiplies their number by that of its own."""


@dataclass(frozen=True, eq=False)
class RegionFront:
    """Holds the trade-offs, by ascending bytes and descending cost.

    Attributes:
        saved_bytes, cost: the bytes and the cost of each trade-off.
        compared: how many decisions about single layers were compared.
    """

    saved_bytes: IntArray
    cost: IntArray
    compared: int
    _regions: RegionProblem
    _layers: Sequence[_Layer]
    _steps: Sequence[tuple[IntArray, IntArray]]  # for each layer: the trade-off before it, and its own pattern

    @classmethod
    def of(cls, regions: RegionProblem) -> RegionFront | None:
        """Compares all decisions; returns None if there are too many, or if layers depend on each other."""
        members = _members(regions)
        if regions.layers_interact or max(map(len, members)) > _MOST_DECISIONS:
            return None
        layers, constant = _layers(regions, members)
        sizes, costs = (np.array([total], np.int64) for total in constant)
        steps: list[tuple[IntArray, IntArray]] = []
        for layer in layers:
            size = (sizes[:, None] + layer.saved_bytes).ravel()
            cost = (costs[:, None] + layer.cost).ravel()
            best = _undominated(size, cost)
            if len(best) > _MOST_POINTS:
                return None
            sizes, costs = size[best], cost[best]
            steps.append((best // len(layer.cost), layer.patterns[best % len(layer.cost)]))
        return cls(sizes, costs, sum(1 << len(each) for each in members), regions, layers, steps)

    def within(self, limit_bytes: int) -> int | None:
        """Returns the position of the cheapest trade-off within a number of bytes; None if there is none."""
        position = int(np.searchsorted(self.saved_bytes, limit_bytes, "right")) - 1
        return None if position < 0 else position

    def saves(self, position: int) -> tuple[bool, ...]:
        """Returns for each region whether the trade-off at a position saves it."""
        of_group = np.zeros(max(self._regions.groups) + 1, np.bool_)
        for layer, (before, pattern) in zip(reversed(self._layers), reversed(self._steps), strict=True):
            of_group[layer.groups] = _flags(int(pattern[position]), len(layer.groups))
            position = int(before[position])
        return tuple(of_group[list(self._regions.groups)].tolist())


@dataclass(frozen=True, eq=False)
class _Layer:
    groups: Sequence[int]
    patterns: IntArray  # bit i of a pattern: groups[i] is saved
    saved_bytes: IntArray
    cost: IntArray


def _members(regions: RegionProblem) -> list[list[int]]:
    """Returns the decisions of each layer; a single list of all decisions if layers share one."""
    if len({*regions.groups}) < len(regions.groups):
        return [sorted({*regions.groups})]
    of_layer: dict[str, list[int]] = {}
    for group, layer in zip(regions.groups, regions.layer_of, strict=True):
        of_layer.setdefault(layer, []).append(group)
    return list(of_layer.values())


def _layers(regions: RegionProblem, members: Sequence[Sequence[int]]) -> tuple[list[_Layer], tuple[int, int]]:
    problem = regions.problem
    position = {group: i for i, groups in enumerate(members) for group in groups}
    # The number of a value's layer among `members`; values in no layer, or in one without decisions, come last.
    layer_of_scope = np.full(len(regions.layers) + 1, len(members), np.int64)
    for layer, group in zip(regions.layer_of, regions.groups, strict=True):
        layer_of_scope[regions.layers.index(layer) + 1] = position[group]
    owner = layer_of_scope[regions.scope]
    count = 1 << max(map(len, members))
    sizes, costs = (np.zeros((count, len(members) + 1), np.int64) for _ in range(2))
    for pattern in range(count):
        of_group = np.zeros(max(regions.groups) + 1, np.bool_)
        for groups in members:
            of_group[groups] = _flags(pattern % (1 << len(groups)), len(groups))
        choice = regions.choice(of_group[list(regions.groups)].tolist())
        np.add.at(sizes[pattern], owner[choice.saved], problem.save_bytes[choice.saved])
        np.add.at(costs[pattern], owner[choice.saved], problem.save_cost[choice.saved])
        np.add.at(costs[pattern], owner[choice.recomputed], problem.recompute_cost[choice.recomputed])
    layers: list[_Layer] = []
    for i, groups in enumerate(members):
        own_sizes, own_costs = sizes[: 1 << len(groups), i], costs[: 1 << len(groups), i]
        best = _undominated(own_sizes, own_costs)
        layers.append(_Layer(groups, best, own_sizes[best], own_costs[best]))
    return layers, (int(sizes[0, -1]), int(costs[0, -1]))


def _undominated(sizes: IntArray, costs: IntArray) -> IntArray:
    """Returns the positions of the points on the Pareto front of (size, cost), by ascending size."""
    order = np.lexsort((costs, sizes))
    least_before = np.minimum.accumulate(np.append(np.iinfo(np.int64).max, costs[order][:-1]))
    return order[costs[order] < least_before]


def _flags(pattern: int, count: int) -> list[bool]:
    return [bool(pattern >> i & 1) for i in range(count)]
