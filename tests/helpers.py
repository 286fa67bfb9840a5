"""What several tests share: the solvers to test, and a slow, obvious reading of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from remat import Problem
from remat.answer.registry import find_solver, solver_names
from remat.plugin import Feature, FlowSolver, Solver
from solvers import NetworkX, SciPy
from solvers.networkx_cut import FLOW_FUNCS

SOLVERS: list[Solver] = [find_solver(name) for name in solver_names()]
"""Every registered solver, with its default options."""

CONFIGURED: list[Solver] = [
    *SOLVERS,
    *(NetworkX(flow_func=name) for name in FLOW_FUNCS[1:]),
    SciPy(method="edmonds_karp"),
]
"""Every registered solver, and the ones with an algorithm to choose once for each other choice."""

EXACT = [solver for solver in CONFIGURED if solver.exact]
FLOW = [solver for solver in CONFIGURED if isinstance(solver, FlowSolver)]
BUDGET = [solver for solver in EXACT if Feature.BUDGET in solver.features]

each = partial(pytest.mark.parametrize, "solver", ids=repr)
"""`@each(SOLVERS)` runs a test once for each solver of the list."""


def largest_price(solver: Solver, values: int) -> int:
    """The largest price with which `values` values never exceed what the solver can count to."""
    return min(2**34, (solver.largest_capacity or 2**62) // (4 * values) - 1)


def most_values(solver: Solver, wanted: int) -> int:
    """`wanted`, or as many as the solver takes."""
    return min(wanted, solver.max_values or wanted)


class Choice(NamedTuple):
    """A plan as sets of positions, with what it costs and saves."""

    cost: int
    saved_bytes: int
    saved: frozenset[int]
    recomputed: frozenset[int]


def is_legal(problem: Problem, saved: frozenset[int], recomputed: frozenset[int]) -> bool:
    """Runs the backward pass, value by value, with what the plan says."""
    memory = set(saved)
    for v in sorted(recomputed):
        arguments = set(problem.producers[problem.consumers == v].tolist())
        if v in saved or problem.cannot_recompute.reason(v) is not None or not arguments <= memory:
            return False
        memory.add(v)
    needed = set(np.flatnonzero(problem.needed).tolist())
    size = sum(int(problem.save_bytes[v]) for v in saved)
    fits = problem.budget_bytes is None or size <= problem.budget_bytes
    return fits and needed <= memory and all(problem.cannot_save.reason(v) is None for v in saved)


def every_plan(problem: Problem) -> Iterator[Choice]:
    """All legal plans, out of the 3^n ways to save, recompute or ignore each value."""
    for choice in product("-sr", repeat=len(problem)):
        saved = frozenset(v for v, what in enumerate(choice) if what == "s")
        recomputed = frozenset(v for v, what in enumerate(choice) if what == "r")
        if is_legal(problem, saved, recomputed):
            cost = sum(int(problem.save_cost[v]) for v in saved)
            cost += sum(int(problem.recompute_cost[v]) for v in recomputed)
            yield Choice(cost, sum(int(problem.save_bytes[v]) for v in saved), saved, recomputed)
