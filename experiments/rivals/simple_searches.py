"""Tests best known answers by three simple searches: none of them should find a better one in a minute.

Each goes on until `offer` ends it. The first plan that it looks around is the best known one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.random import Generator

from experiments.rivals.tensor_instance import PlanScore, ScorePlan, TensorInstance
from remat import Choice, solve
from remat.facts.columns import BoolArray, IntArray
from remat.improve.equivalence_classes import equivalence_classes
from remat.problem.problem_file import Budget

Search: TypeAlias = Callable[[TensorInstance, Budget, ScorePlan, BoolArray, Generator], None]
"""Offers plans for a budget without an end; takes a mask (k,) of the tensors that the best known plan saves."""

ROUNDS = 3
"""Tensors are alike if the graph around them is, up to this distance."""
SAMPLE = 20
"""Tabu search looks at this many moves in a turn."""
TENURE = 10
"""Tabu search leaves a kind of tensors alone for this many turns after a move."""


def random_restarts(
    instance: TensorInstance, budget: Budget, offer: ScorePlan, best: BoolArray, random: Generator
) -> None:
    """Flips one tensor after the other while the plan gets better, then begins again at a random plan."""
    saved = best.copy()
    while True:
        before, score = None, _badness(offer(saved), budget)
        while score != before:
            before = score
            for p in random.permutation(len(instance)).tolist():
                saved[p] ^= True
                after = _badness(offer(saved), budget)
                if after < score:
                    score = after
                else:
                    saved[p] ^= True
        saved = random.random(len(instance)) < random.random()


def perturbed_multipliers(
    instance: TensorInstance, budget: Budget, offer: ScorePlan, best: BoolArray, random: Generator
) -> None:
    """Finds minimum cuts with a price of a byte that is a little different for each tensor, by bisection."""
    problem = instance.problem
    offer(best)
    while True:
        noise = np.exp(random.choice([0.1, 0.3, 1.0]) * random.standard_normal(len(problem)))
        low, high = 1e-12, 1e3  # nanoseconds a byte
        for _ in range(20):
            price = (low * high) ** 0.5
            priced = problem.priced(
                save_cost=problem.save_cost + np.rint(problem.save_bytes * noise * price).astype(np.int64),
                recompute_cost=problem.recompute_cost,
                cannot_save=problem.cannot_save,
                cannot_recompute=problem.cannot_recompute,
                budget_bytes=None,
            )
            plan = solve(priced).plan
            assert plan is not None  # a problem without a budget has one
            is_within = offer(Choice.from_plan(problem, plan).saved[instance.value]).of(budget) <= budget.bytes
            low, high = (low, price) if is_within else (price, high)


def tabu_over_layers(
    instance: TensorInstance, budget: Budget, offer: ScorePlan, best: BoolArray, random: Generator
) -> None:
    """Saves one tensor of a kind more or less, or all of them or none, and takes the best move, even if it is worse."""
    kinds = _kinds(instance)
    waits = np.zeros(len(kinds), np.int64)
    saved, turn = best.copy(), 0
    while True:
        turn += 1
        free = np.flatnonzero(waits < turn)
        free = free if len(free) else np.arange(len(kinds))
        moves: list[tuple[float, int, BoolArray]] = []
        for kind in random.choice(free, min(SAMPLE, len(free)), replace=False).tolist():
            moved = saved.copy()
            moved[kinds[kind]] = _moved(saved[kinds[kind]], random)
            score = offer(moved)
            excess = max(score.of(budget) / budget.bytes - 1, 0)
            moves.append((score.cost * (1 + 10 * excess), kind, moved))
        _, kind, saved = min(moves, key=lambda move: move[0])
        waits[kind] = turn + TENURE


def _badness(score: PlanScore, budget: Budget) -> tuple[int, int]:
    return max(score.of(budget) - budget.bytes, 0), score.cost


def _kinds(instance: TensorInstance) -> list[IntArray]:
    alike = equivalence_classes(instance.graph, ROUNDS)[instance.graph.plannable[instance.value]]
    return [np.flatnonzero(alike == kind) for kind in np.unique(alike)]


def _moved(saved: BoolArray, random: Generator) -> BoolArray:
    """Saves one tensor more or less, or all, or none."""
    save = not saved.any() or (not saved.all() and random.random() < 0.5)
    others = np.flatnonzero(saved != save)
    moved = saved.copy()
    moved[others if random.random() < 0.5 else random.choice(others)] = save
    return moved
