"""Rounds a linear relaxation, after Jain et al. (MLSys 2020), "Checkmate: breaking the memory wall with optimal tensor
rematerialization", section 5: a linear program with fractions, and two phases of rounding.

First, what is saved is rounded: to 1 from a threshold on (theirs: 0.5, or at random; here the best of six). Second,
what must then be computed again follows. As theirs, the linear program gets another limit than the budget (they leave a
tenth), since rounding may need more. Here the limit is found by bisection: it falls until a rounded plan fits, and
rises until none does.

Changed: their variables say for each stage of the schedule what is computed and what is in memory: n^2 of each. Here a
value is computed at most twice, at places that are known, so a variable for each value says whether it is saved, and
one whether it is computed again. For a budget of saved bytes, there is one row of memory. For one of the peak, there
are rows for `MOMENTS` nodes of the backward pass: what is saved and still read later, what was computed again and is
still read, as if what it is computed from were there; and what the backward pass holds beside. What a compiler keeps in
registers takes no memory unless it is saved. This is not yet the memory of the benchmark; bisection makes up for a part
of the difference.
"""

# SciPy ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from typing import Any

import numpy as np

from experiments.rivals.backward_memory import held_beside, in_registers
from experiments.rivals.tensor_instance import LIMIT_S, FloatArray, ScorePlan, TensorInstance
from remat import Problem
from remat.facts.columns import BoolArray, IntArray
from remat.problem.problem_file import Budget

THRESHOLDS = (0.5, 0.9, 0.7, 0.3, 0.1, 0.01)
PARTS, HALVINGS = (0.1, 2.0), 10
"""The limits of the linear program, as parts of the budget."""

MOMENTS = 60


def within(instance: TensorInstance, budget: Budget, offer: ScorePlan) -> None:
    """Offers the rounded plans of each limit and each threshold."""
    low, high = PARTS
    part, end = 1.0, time.process_time() + LIMIT_S
    rows, other_bytes = _memory(instance, budget)
    for _ in range(HALVINGS):
        left_s = end - time.process_time()
        if left_s <= 0:
            return
        limits = np.maximum(part * budget.bytes - other_bytes, 0)
        solved = relaxation(instance.problem, rows, limits, left_s)
        saved = [] if solved is None else [solved[1][instance.value] >= threshold for threshold in THRESHOLDS]
        memory = [offer(tensors).of(budget) for tensors in saved]
        if memory and min(memory) > budget.bytes:
            high = part
        else:  # a plan fits, or the limit is so low that no plan is known to fit
            low = part
        part = (low + high) / 2


def relaxation(
    problem: Problem, rows: FloatArray, limits: FloatArray, time_limit_s: float
) -> tuple[float, FloatArray] | None:
    """Solves the linear relaxation: the least cost, and (n,) to which part each value is saved; None if there is none.

    Args:
        problem: of n values.
        rows: (m, 2, n) what each row of memory counts of what is saved, and of what is computed again.
        limits: (m,) of the rows.
        time_limit_s: of the solver.
    """
    from scipy import optimize, sparse

    n, uses = len(problem), len(problem.producers)
    # Variables: what is saved, s, and what is computed again, a: of each value at most one, and of needed ones one.
    each, arcs = sparse.identity(n, format="csr"), np.arange(uses)
    available = sparse.csr_matrix((np.ones(uses), (arcs, problem.producers)), (uses, n))
    again = sparse.csr_matrix((np.ones(uses), (arcs, problem.consumers)), (uses, n))
    scale = np.maximum(limits, 1)[:, None]
    memory = sparse.csr_matrix(np.concatenate([rows[:, 0], rows[:, 1]], axis=1) / scale)
    matrix: Any = sparse.vstack([sparse.hstack([-available, again - available]), sparse.hstack([each, each]), memory])
    most = np.concatenate([np.zeros(uses), np.ones(n), limits / scale[:, 0]])
    needed = np.flatnonzero(problem.needed)
    upper = np.concatenate([~problem.cannot_save.mask, ~problem.cannot_recompute.mask]).astype(float)
    prices = np.concatenate([problem.save_cost, problem.recompute_cost]).astype(float)
    unit = max(prices.max(initial=0), 1)
    solved: Any = optimize.linprog(
        prices / unit,
        A_ub=matrix,
        b_ub=most,
        A_eq=sparse.hstack([each, each]).tocsr()[needed],
        b_eq=np.ones(len(needed)),
        bounds=np.column_stack([np.zeros(2 * n), upper]),
        method="highs",
        options={"time_limit": time_limit_s},
    )
    return (solved.fun * unit, solved.x[:n]) if solved.status == 0 else None


def _memory(instance: TensorInstance, budget: Budget) -> tuple[FloatArray, IntArray]:
    """Returns the rows of memory, (m, 2, n), and the bytes, (m,), that are in memory beside what they count."""
    sizes, n = instance.bytes.astype(float), len(instance.problem)
    if budget.of == "saved":
        return np.stack([instance.problem.save_bytes.astype(float), np.zeros(n)])[None], np.zeros(1, np.int64)
    registers = in_registers(instance)
    asked, until = _lifetimes(instance, registers)
    at = np.unique(asked[instance.needed])
    at = at[np.linspace(0, len(at) - 1, min(MOMENTS, len(at))).astype(np.int64)]
    rows = np.zeros((len(at), 2, n))
    for row, moment in zip(rows, at.tolist(), strict=True):
        row[0, instance.value] = sizes * (until >= moment)
        row[1, instance.value] = sizes * ~registers * ((asked <= moment) & (until >= moment))
    return rows, held_beside(instance)[at]


def _lifetimes(instance: TensorInstance, registers: BoolArray) -> tuple[IntArray, IntArray]:
    """Returns (k,) the nodes of the backward pass from which and until which each tensor is read.

    What the backward pass does not read is read by what is computed from it. A tensor that is read is taken to be
    computed again for its own readers only: who asks for it before depends on the plan.
    """
    first, last = instance.first_read.copy(), instance.last_read.copy()
    for p in range(len(instance) - 1, -1, -1):
        if first[p] <= len(instance.graph):
            for u in instance.operands[p]:
                last[u] = max(last[u], last[p] if registers[p] else first[p])
                if not instance.needed[u]:
                    first[u] = min(first[u], first[p])
    return first, last
