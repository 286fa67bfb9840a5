"""Compares all plans one by one, for tests: slow, but too simple to be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.plugin import (
    Choice,
    Enumeration,
    Feature,
    IntArray,
    Problem,
    Solution,
    Solver,
    Termination,
    TerminationReason,
    UnsupportedProblem,
)

_LARGEST_WITH_OFFLOADING = 10
"""The most values with offloading, which have a million candidates."""


@dataclass(frozen=True)
class Exhaustive(Solver):
    """Compares all 2^n choices of what to recompute, each with all choices of what to offload, if that is allowed.

    The recomputed values determine the saved ones: a value must be saved if it is needed or an operand of a recomputed
    value, and is not recomputed itself. Saving more values only costs more.
    """

    name: ClassVar[str] = "exhaustive"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.TIME_LIMIT}
    max_values: ClassVar[int | None] = 16

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        n = len(problem)
        recompute = np.arange(2**n, dtype=np.int64)  # bit v of a choice: v is recomputed
        host = np.zeros_like(recompute)  # bit v: v is offloaded
        if problem.offload is not None:
            if n > _LARGEST_WITH_OFFLOADING:
                raise UnsupportedProblem(
                    f"solver {self.name!r} takes up to {_LARGEST_WITH_OFFLOADING} values with offloading, got {n}"
                )
            recompute, host = np.repeat(recompute, 2**n), np.tile(recompute, 2**n)
        available = recompute | _bits(problem.needed)
        for u, v in zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True):
            available |= ((recompute >> v) & 1) << u
        save = available & ~recompute

        legal = (save & _bits(problem.cannot_save.mask) == 0) & (recompute & _bits(problem.cannot_recompute.mask) == 0)
        legal &= host & ~save == 0
        for group in problem.tied_groups:
            legal &= (save & (bits := sum(1 << v for v in group.tolist())) == 0) | (recompute & bits == 0)
        copies = np.zeros(n, np.int64)
        if problem.offload is not None:
            legal &= host & _bits(problem.offload.banned.mask) == 0
            copies = problem.offload.cost
        saved_bytes = _weigh(save & ~host, problem.save_bytes)
        for _, sizes, limit in problem.budgets:
            legal &= _weigh(save & ~host, sizes) <= limit
        certificate = Enumeration(len(recompute))
        if not legal.any():
            return Solution(None, None, Termination(TerminationReason.INFEASIBLE), certificate, self.name)
        cost = _weigh(save & ~host, problem.save_cost) + _weigh(recompute, problem.recompute_cost)
        cost += _weigh(host, copies)
        tensors = _weigh(save, np.ones(n, np.int64))
        legal_choices = np.flatnonzero(legal)
        keys = [key[legal_choices] for key in (host, recompute, tensors, saved_bytes, cost)]
        best = int(legal_choices[np.lexsort(keys)[0]])
        saved, hosted = (((bits[best] >> np.arange(n)) & 1).astype(np.bool_) for bits in (save, host))
        plan = Choice.from_saved(problem, saved, hosted).plan(problem)
        value = int(cost[best])
        return Solution(plan, value, Termination(TerminationReason.OPTIMAL, value), certificate, self.name)


def _bits(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> np.int64:
    return np.int64(sum(1 << int(v) for v in np.flatnonzero(mask)))


def _weigh(choices: IntArray, weights: IntArray) -> IntArray:
    total = np.zeros(len(choices), np.int64)
    for v, weight in enumerate(weights.tolist()):
        total += ((choices >> v) & 1) * weight
    return total
