"""Chooses what layers keep, as torchtitan's pull request 4636 of September 2026 does, without offloads.

Its candidates are the storages of each layer that the backward pass reads. What a layer passes on, and what is outside
of layers, stays. A candidate costs the time of its own operator, run alone, as if what this operator reads were there.
An outer linear program gives each layer a budget, and "greedy" or "ILP" spends it. All else in a layer is recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress

import numpy as np

import remat
from remat import Graph, Problem
from remat.facts.columns import BoolArray, IntArray
from remat.improve.one_liners import layer_paths, layers_of
from remat.plugin import forced_values
from remat.predict.time import DeviceProfile

Spend = Callable[[IntArray, IntArray, int], BoolArray]
"""Decides which of k candidates are kept, (k,), by their times, their sizes, and the most bytes."""


@dataclass(frozen=True)
class Candidates:
    """Holds k candidates of a graph, in the order in which they are computed.

    Attributes:
        makers: the positions in the graph of the operators.
        values: of what each of them saves: more than one where the operator makes a tuple.
        times_ns: (k,) the time of the operator as a kernel of its own.
        sizes_bytes: (k,) what saving the candidate takes.
        layers: (k,) the number of its layer.
    """

    makers: tuple[int, ...]
    values: tuple[tuple[int, ...], ...]
    times_ns: IntArray
    sizes_bytes: IntArray
    layers: IntArray

    @classmethod
    def of(cls, graph: Graph, problem: Problem, stays: BoolArray, device: DeviceProfile) -> Candidates:
        """Collects the candidates of a graph, except for the values (n,) that stay in memory anyway.

        Args:
            problem: what it forbids to save or to recompute is no candidate; its prices are times on the device, but
                those of what fuses are without the operands and the result that a kernel of its own reads and writes.
        """
        maker, layers = _makers(graph), layers_of(graph)
        forward, read = graph.with_elements(graph.in_forward), np.zeros(len(graph), np.bool_)
        read[graph.producers[forward[graph.producers] & ~forward[graph.consumers]]] = True
        free, times = np.zeros(len(graph), np.bool_), np.zeros(len(graph), np.int64)
        free[graph.plannable] = ~forced_values(problem).not_recomputable & ~problem.cannot_save.mask
        times[graph.plannable] = problem.recompute_cost
        times = np.maximum(times, _memory_ns(graph, maker, device))
        found: dict[int, list[int]] = {}
        for value in np.flatnonzero(graph.owners(read) & free & ~stays & (layers[maker] >= 0)).tolist():
            found.setdefault(int(maker[value]), []).append(value)
        makers = list(found)
        sizes = np.array([graph.bytes[values].sum() for values in found.values()], np.int64)
        return cls(tuple(makers), tuple(map(tuple, found.values())), times[makers], sizes, layers[makers])

    def cost(self, selected: BoolArray) -> int:
        """Adds up the times of what is not selected: what greedy and ILP both minimize."""
        return int(self.times_ns[~selected].sum())

    def saved(self, selected: BoolArray, stays: BoolArray) -> BoolArray:
        """Returns (n,) the values that are saved with these candidates."""
        saved = stays.copy()
        saved[[value for values in compress(self.values, selected) for value in values]] = True
        return saved

    def spend(self, spend: Spend, budgets: dict[int, int]) -> BoolArray:
        """Spends the budget of each layer on the candidates of this layer; layers that are equal get equal answers."""
        selected, selections = np.zeros(len(self.values), np.bool_), dict[object, BoolArray]()
        for layer, budget in budgets.items():
            own = np.flatnonzero(self.layers == layer)
            times, sizes = self.times_ns[own], self.sizes_bytes[own]
            key = times.tobytes(), sizes.tobytes(), budget
            if key not in selections:
                selections[key] = spend(times, sizes, budget)
            selected[own] = selections[key]
        return selected

    def layer_bytes(self) -> dict[int, int]:
        """Returns the bytes of all candidates of each layer."""
        layers: list[int] = np.unique(self.layers).tolist()
        return {layer: int(self.sizes_bytes[self.layers == layer].sum()) for layer in layers}

    def uniform(self, budget_bytes: int) -> dict[int, int]:
        """Gives each layer the same share of its bytes."""
        sizes = self.layer_bytes()
        return {layer: budget_bytes * size // sum(sizes.values()) for layer, size in sizes.items()}

    def one_after_another(self, budget_bytes: int) -> dict[int, int]:
        """Lets the first layers keep everything, until nothing is left.

        To the outer program, this split is as good as the uniform one: it takes the time of a layer as proportional to
        the bytes that it recomputes.
        """
        budgets: dict[int, int] = {}
        for layer, size in self.layer_bytes().items():
            budgets[layer] = min(size, budget_bytes)
            budget_bytes -= budgets[layer]
        return budgets


def greedy(times: IntArray, sizes: IntArray, budget_bytes: int) -> BoolArray:
    """Recomputes the cheapest per byte, as long as what goes fits into what must go; then the smallest of the rest."""
    selected = np.ones(len(sizes), np.bool_)
    excess = int(sizes.sum()) - budget_bytes
    for i in np.argsort(times / np.maximum(sizes, 1), kind="stable").tolist():
        if sizes[i] <= excess:
            selected[i] = False
            excess -= int(sizes[i])
    if excess > 0:
        selected[min(np.flatnonzero(selected), key=lambda i: sizes[i])] = False
    return selected


def exact(times: IntArray, sizes: IntArray, budget_bytes: int) -> BoolArray:
    """Solves the integer program of one layer."""
    problem = knapsack(times, sizes, budget_bytes)
    solution = remat.solve(problem, "cpsat")
    assert solution.is_optimal
    assert solution.plan is not None
    return remat.Choice.from_plan(problem, solution.plan).saved


def knapsack(times: IntArray, sizes: IntArray, budget_bytes: int) -> Problem:
    """States what greedy and ILP are both given: candidates that do not depend on each other."""
    free = [0] * len(times)
    return Problem.of(
        free, needed=range(len(times)), recompute_cost=times.tolist(), save_bytes=sizes, budget_bytes=budget_bytes
    )


def equal_layers(graph: Graph, problem: Problem) -> IntArray:
    """Ties what a uniform budget decides alike: values with the same place in their layers.

    A place is the path of the module, the operator, the bytes, and the number among equal ones. What is settled
    anyway is in no group.

    Returns:
        for each value of the problem, the number of its group; -1 for those in no group.
    """
    layers, settled = layers_of(graph)[_makers(graph)], np.ones(len(graph), np.bool_)
    settled[graph.plannable] = forced_values(problem).not_recomputable | problem.cannot_save.mask
    tied, groups, numbers = np.full(len(graph), -1), dict[object, int](), Counter[object]()
    prefixes = layer_paths(graph.modules)
    for value in np.flatnonzero((layers >= 0) & ~settled).tolist():
        place = graph.modules[value].removeprefix(prefixes[value]), graph.ops[value], int(graph.bytes[value])
        tied[value] = groups.setdefault((place, numbers[place, layers[value]]), len(groups))
        numbers[place, layers[value]] += 1
    return tied[graph.plannable]


def _memory_ns(graph: Graph, makers: IntArray, device: DeviceProfile) -> IntArray:
    """Returns (n,) the time in which each operator reads its operands and writes its result, with a launch."""
    moved = np.zeros(len(graph), np.int64)
    np.add.at(moved, makers, graph.bytes)
    np.add.at(moved, graph.consumers, graph.bytes[graph.producers])
    return np.rint(1e9 * moved / device.reached_bytes_per_s + device.launch_ns).astype(np.int64)


def _makers(graph: Graph) -> IntArray:
    """Returns (n,) the operators that make values: that of the whole tuple for its elements."""
    makers, element = np.arange(len(graph)), graph.tuple_element[graph.consumers]
    makers[graph.consumers[element]] = graph.producers[element]
    return makers
