"""The classical baselines: which expensive values to save is a knapsack, and the rest is a cut.

This is how PyTorch's partitioner keeps a memory budget (`choose_saved_values_set` in
`torch/_functorch/partitioners.py` of PyTorch 2.13): it takes the values that are expensive to
recompute for independent items, although recomputing a value may need others recomputed, and
saving one may make another worthless. Hence no claim of optimality.
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
"""Into how many parts at most the dynamic program divides the knapsack, as in PyTorch."""


@dataclass(frozen=True)
class Knapsack(Solver):
    """Three cuts and a knapsack.

    1. The cheapest plan, whatever it saves. If it fits the budget it is optimal, and proven so.
    2. The fewest bytes that a plan can save. The rest of the budget is the knapsack.
    3. The items: values with a price on recomputation that the first plan does not recompute,
       whether it saves them or does without them. `_pick` fills the knapsack.
    4. Of the plans that do not recompute what was picked, the one that saves the fewest bytes. It
       fits the budget: the plan of 2 that saves what was picked, too, is one of them.

    PyTorch counts the bytes of the graph's inputs in the place of 2, and so may miss its budget.
    """

    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.BUDGET, Feature.OFFLOAD})

    @abstractmethod
    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        """(k,) items whose sizes add up to `capacity` at most, and whose values add up to much.

        Args:
            sizes: (k,) bytes of each item, from 0 to `capacity`.
            values: (k,) what saving each item is worth; positive, and less than 2**62 together.
            capacity: bytes.
        """

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        cheapest = flow_solver().minimum_cut(problem)
        if problem.budget_bytes is None or cheapest.choice.saved_bytes(problem) <= problem.budget_bytes:
            return self._solution(problem, cheapest.choice, cheapest)
        return self._solution(problem, self.choice(problem, cheapest), cheapest)

    def choice(self, problem: Problem, cheapest: Cut) -> Choice:
        """What fits the budget, where the cheapest plan does not."""
        assert problem.budget_bytes is not None
        capacity = problem.budget_bytes - least_bytes(problem).weight
        items = np.flatnonzero(_is_item(problem, cheapest) & (problem.save_bytes <= capacity))
        worth = problem.recompute_cost[items] - problem.save_cost[items]
        kept = np.zeros(len(problem), np.bool_)
        kept[items] = self._pick(problem.save_bytes[items], worth, capacity)
        rest = replace(problem, cannot_recompute=problem.cannot_recompute.also(kept, "picked to be saved"))
        return flow_solver().minimum_cut(rest, BY_BYTES).choice

    def _solution(self, problem: Problem, choice: Choice, cheapest: Cut) -> Solution:
        """A choice as a plan, bounded by the cheapest choice without a budget."""
        plan, cost = choice.plan(problem), choice.cost(problem)
        reason = TerminationReason.OPTIMAL if cost == cheapest.weight else TerminationReason.FEASIBLE
        return Solution(plan, cost, Termination(reason, cheapest.weight), cheapest.certificate, self.name)


@dataclass(frozen=True)
class GreedyKnapsack(Knapsack):
    """Picks what is worth most a byte first, and whatever still fits."""

    name: ClassVar[str] = "knapsack-greedy"

    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        return _filled(np.zeros(len(sizes), np.bool_), sizes, values, capacity)


@dataclass(frozen=True)
class DynamicKnapsack(Knapsack):
    """Picks by dynamic programming over 10,000 slots at most.

    A slot is the greatest common divisor of the sizes where that is coarse enough, and the picks
    are the best there are. Else sizes are rounded up to slots, where PyTorch rounds them to the
    nearest, so that what is picked fits; and what the rounding leaves over is filled greedily.
    """

    name: ClassVar[str] = "knapsack-dp"

    def _pick(self, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
        common = int(np.gcd.reduce(sizes)) if len(sizes) else 0
        slot_bytes = max(common, -(-capacity // _SLOTS), 1)
        picked = _best_picks(-(-sizes // slot_bytes), values, capacity // slot_bytes)
        return _filled(picked, sizes, values, capacity)


def _is_item(problem: Problem, cheapest: Cut) -> BoolArray:
    """(n,) the values that may be saved rather than recomputed, and were not recomputed so far."""
    # What the backward pass would recompute if it saved only what it cannot recompute.
    wanted = Choice.from_saved(problem, forced_values(problem).not_recomputable).recomputed
    is_dear = problem.recompute_cost > problem.save_cost
    return wanted & is_dear & ~cheapest.choice.recomputed & ~problem.cannot_save.mask


def _best_picks(lengths: IntArray, values: IntArray, slots: int) -> BoolArray:
    """(k,) the items that are worth most together, of those that fit, in O(k * slots)."""
    most = np.zeros(slots + 1, np.int64)  # most[j]: what the items seen so far are worth in j slots
    took = np.zeros((len(lengths), slots // 8 + 1), np.uint8)  # a bit a slot: the item was worth taking
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


def _filled(picked: BoolArray, sizes: IntArray, values: IntArray, capacity: int) -> BoolArray:
    """(k,) what was picked, and of the rest what is worth most a byte and still fits."""
    filled = picked.copy()
    left = capacity - int(sizes[picked].sum())
    with np.errstate(divide="ignore"):
        ratio = values / sizes  # infinite for an item without bytes, which comes first
    for i in np.argsort(-ratio, kind="stable").tolist():
        if not filled[i] and sizes[i] <= left:
            filled[i] = True
            left -= int(sizes[i])
    return filled
