"""Implements the classical baselines: a knapsack chooses which expensive values to save, and a cut does the rest.

PyTorch's partitioner handles a memory budget like this (`choose_saved_values_set` in `torch/_functorch/partitioners.py`
of PyTorch 2.13): it treats the values that are expensive to recompute as independent items. But recomputing a value may
require recomputing others, and saving one may make another worthless. So these solvers do not claim optimality.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat import Choice, Problem, Solution, TerminationReason
from remat.answer.solver import Cut
from remat.plugin import BoolArray, Feature, IntArray, Solver, Termination, forced_values
from remat.problem.multipliers import BY_BYTES
from remat.proof.budget import flow_solver, least_bytes

_SLOTS = 10_000
"""The most parts into which the dynamic program divides the knapsack, as in PyTorch."""


@dataclass(frozen=True)
class Knapsack(Solver):
    """Solves with three cuts and a knapsack.

    1. The first cut is the cheapest plan, whatever it saves. If it fits the budget, it is proven optimal.
    2. The second cut gives the fewest bytes that a plan can save. The rest of the budget is the knapsack.
    3. The items are the values with a recompute cost that the first plan does not recompute. `_pick` fills the
       knapsack.
    4. Of the plans that do not recompute a picked item, the third cut finds the one that saves the fewest bytes. It
       fits the budget: the plan of step 2 that also saves the picked items is one of them.

    In step 2, PyTorch uses the bytes of the graph's inputs instead, and so may exceed its budget.
    """

    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.BUDGET, Feature.OFFLOAD})

    @abstractmethod
    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        """Returns a mask (k,) of items whose sizes add up to at most `capacity`, with the largest total value found.

        Args:
            sizes: (k,) bytes of each item, from 0 to `capacity`.
            values: (k,) the worth of saving each item; positive, and less than 2**62 together.
        """

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        cheapest = flow_solver().minimum_cut(problem)
        if problem.budget_bytes is None or cheapest.choice.saved_bytes(problem) <= problem.budget_bytes:
            return self._solution(problem, cheapest.choice, cheapest)
        return self._solution(problem, self.choice(problem, cheapest), cheapest)

    def choice(self, problem: Problem, cheapest: Cut) -> Choice:
        """Returns a choice within the budget, for a problem whose cheapest plan exceeds the budget."""
        assert problem.budget_bytes is not None
        capacity = problem.budget_bytes - least_bytes(problem).weight
        items = np.flatnonzero(_is_item(problem, cheapest) & (problem.save_bytes <= capacity))
        worth = problem.recompute_cost[items] - problem.save_cost[items]
        is_picked = np.zeros(len(problem), np.bool_)
        is_picked[items] = self._pick(problem.save_bytes[items], worth, capacity)
        rest = replace(problem, cannot_recompute=problem.cannot_recompute.also(is_picked, "picked to be saved"))
        return flow_solver().minimum_cut(rest, BY_BYTES).choice

    # The bound is the cost of the cheapest choice without a budget.
    def _solution(self, problem: Problem, choice: Choice, cheapest: Cut) -> Solution:
        plan, cost = choice.plan(problem), choice.cost(problem)
        reason = TerminationReason.OPTIMAL if cost == cheapest.weight else TerminationReason.FEASIBLE
        return Solution(plan, cost, Termination(reason, cheapest.weight), cheapest.certificate, self.name)


@dataclass(frozen=True)
class GreedyKnapsack(Knapsack):
    """Picks items by falling worth per byte, and skips those that do not fit."""

    name: ClassVar[str] = "knapsack-greedy"

    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        return _fill_greedily(np.zeros(len(sizes), np.bool_), sizes, values, capacity)


@dataclass(frozen=True)
class DynamicKnapsack(Knapsack):
    """Picks the items by dynamic programming, with the budget divided into at most 10,000 slots.

    A slot is the greatest common divisor of the sizes if that is large enough, and then the picks are optimal.
    Otherwise sizes are rounded up to slots, so that the picks fit (PyTorch rounds to the nearest slot), and the space
    lost by rounding is filled greedily.
    """

    name: ClassVar[str] = "knapsack-dp"

    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        common = int(np.gcd.reduce(sizes)) if len(sizes) else 0
        slot_bytes = max(common, -(-capacity // _SLOTS), 1)
        picked = _best_picks(-(-sizes // slot_bytes), values, capacity // slot_bytes)
        return _fill_greedily(picked, sizes, values, capacity)


# (n,) values that may be saved instead of recomputed, but are not recomputed in the cheapest plan.
def _is_item(problem: Problem, cheapest: Cut) -> BoolArray:
    # Values that are recomputed if only non-recomputable values are saved.
    recomputable = Choice.from_saved(problem, forced_values(problem).not_recomputable).recomputed
    is_dear = problem.recompute_cost > problem.save_cost
    return recomputable & is_dear & ~cheapest.choice.recomputed & ~problem.cannot_save.mask


# The optimal items by dynamic programming, in O(k * slots).
def _best_picks(lengths: IntArray, values: IntArray, slots: int) -> BoolArray:
    most = np.zeros(slots + 1, np.int64)  # most[j]: the worth of the best items so far in j slots
    took = np.zeros((len(lengths), slots // 8 + 1), np.uint8)  # one bit for each slot: the item was worth taking
    pairs = list(zip(lengths.tolist(), values.tolist(), strict=True))
    for i, (length, value) in enumerate(pairs):
        if length <= slots:
            taking = most[: slots + 1 - length] + value
            leaving = most[length:]
            took[i] = np.packbits(np.concatenate([np.zeros(length, np.bool_), taking > leaving]))
            most[length:] = np.maximum(taking, leaving)
    picked = np.zeros(len(lengths), np.bool_)
    for i in reversed(range(len(lengths))):
        if took[i, slots // 8] & (0x80 >> slots % 8):
            picked[i] = True
            slots -= pairs[i][0]
    return picked


# Adds items to the picked ones, in the order of worth per byte, if they still fit.
def _fill_greedily(picked: BoolArray, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
    filled = picked.copy()
    left = capacity - int(sizes[picked].sum())
    with np.errstate(divide="ignore"):
        ratio = values / sizes  # infinite for an item without bytes, which comes first
    for i in np.argsort(-ratio, kind="stable").tolist():
        if not filled[i] and sizes[i] <= left:
            filled[i] = True
            left -= int(sizes[i])
    return filled
