"""Finds the plans of PyTorch's `activation_memory_budget` from a graph, without PyTorch, as torch 2.13 does by default.

A budget is a share of what PyTorch's default plan saves. PyTorch lifts its rules one after the other until a minimum
cut keeps the budget. If no cut does, a knapsack decides which of the values that none of these cuts may recompute are
recomputed after all, and one more cut follows (`choose_saved_values_set` in `torch/_functorch/partitioners.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.errors import Infeasible, InvalidProblem
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver

UNCOUNTED_PRODUCTS = frozenset({"aten._int_mm.default", "aten._scaled_mm_v2.default"})
"""Matrix products without a formula in torch's flop counter: to its partitioner they are as cheap as anything else."""

TWENTIETHS = tuple(i / 20 for i in range(1, 19))

_WIDE = '"used_far_apart":false,"long_fusible_chain":false,"materialized_in_backward":false'
# What each cut lifts: nothing, the rules about fusion with the backward pass, and those about operators, too.
_CUTS = (
    DEFAULT_STEP_MODEL,
    f"{DEFAULT_STEP_MODEL},rules={{{_WIDE}}}",
    f'{DEFAULT_STEP_MODEL},rules={{{_WIDE},"not_fusible":false}}',
)
# Memory is counted in this many parts of what the default plan saves (`dp_knapsack`).
_PARTS = 10_000


def torch_budget_plans(graph: Graph, budgets: Iterable[float] = TWENTIETHS) -> Iterator[tuple[float, BoolArray]]:
    """Yields pairs (budget, mask (n,) of what PyTorch saves), by falling budgets; a repeated plan is left out.

    It yields nothing if annotations of the user contradict PyTorch's rules.
    """
    with suppress(Infeasible, InvalidProblem):
        yield from _plans(graph, sorted(budgets, reverse=True))


def _plans(graph: Graph, budgets: list[float]) -> Iterator[tuple[float, BoolArray]]:
    problems = [find_costmodel(cut).pose(graph) for cut in _CUTS]
    cuts = [_saved(graph, problem) for problem in problems]
    # PyTorch counts all inputs as saved, but of its own plans only those that the backward pass needs.
    input_bytes = int(graph.bytes[graph.input & ~graph.in_tangents].sum())
    most, *others = (int(graph.bytes[cut].sum()) - input_bytes for cut in cuts)
    if most <= 0:
        return
    shares = [saved_bytes / most for saved_bytes in others]
    knapsack: _Knapsack | None = None
    before: BoolArray | None = None
    for budget in budgets:
        fitting = [cut for cut, share in zip(cuts[1:], shares, strict=True) if share < budget]
        if fitting:
            saved = fitting[0]
        else:
            knapsack = knapsack or _Knapsack(graph, problems[-1], most, max(budgets))
            saved = knapsack.plan(budget)
        if before is None or (saved != before).any():
            yield budget, (before := saved)


def _saved(graph: Graph, problem: Problem) -> BoolArray:
    return graph.for_all_values(flow_solver().minimum_cut(problem).choice.saved)


class _Knapsack:
    """Decides which of the values that no cut may recompute are saved, so that the least arithmetic is repeated."""

    def __init__(self, graph: Graph, problem: Problem, most_bytes: int, largest: float) -> None:
        self.graph, self.problem = graph, problem
        elements = graph.tuple_element[graph.consumers]
        size = graph.bytes.copy()  # a tuple weighs what its elements do
        np.add.at(size, graph.producers[elements], graph.bytes[graph.consumers[elements]])
        # What must not run twice stays banned, though PyTorch recomputes some of it, and would draw other numbers.
        lawful = ~(graph.cannot_recompute.mask | graph.input[graph.base])
        values = np.flatnonzero(problem.cannot_recompute.mask & lawful[graph.plannable])
        size = size[graph.plannable]
        self.items: IntArray = values[np.argsort(-size[values], kind="stable")]
        self.weights: list[int] = np.rint(_PARTS * size[self.items] / most_bytes).astype(np.int64).tolist()
        # torch's counter knows products and the like alone; all else counts 1 (`estimate_runtime`).
        counted = graph.compute_bound & [op not in UNCOUNTED_PRODUCTS for op in graph.ops]
        arithmetic = np.where(counted, np.maximum(graph.flops, 1), 1)[graph.plannable]
        self.taken = _table(self.weights, arithmetic[self.items], largest)

    def plan(self, budget: float) -> BoolArray:
        capacity, recomputed = round(budget * _PARTS), np.zeros(len(self.problem), np.bool_)
        for i in reversed(range(len(self.items))):
            if self.taken[i, capacity]:
                capacity -= self.weights[i]
            else:
                recomputed[self.items[i]] = True
        bans = self.problem.cannot_recompute.without(recomputed)
        return _saved(self.graph, replace(self.problem, cannot_recompute=bans))


def _table(weights: list[int], gains: IntArray, largest: float) -> NDArray[np.bool_]:
    """Computes for each item and each capacity whether the item is taken; one table answers all budgets."""
    best = np.zeros(round(largest * _PARTS) + 1, np.float32)  # torch adds in single precision
    taken = np.zeros((len(weights), len(best)), np.bool_)
    for i, (weight, gain) in enumerate(zip(weights, gains.astype(np.float32), strict=True)):
        with_item = best.copy()
        if weight < len(best):
            np.maximum(best[weight:], best[: len(best) - weight] + gain, out=with_item[weight:])
        taken[i], best = with_item != best, with_item
    return taken
