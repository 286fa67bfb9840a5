"""The cheapest plan within a limit of the simulated peak, and a proof that there is none: by OR-Tools' CP-SAT.

The program of `solvers.peak_program` states memory at a few moments, so that its optimum is a bound. Its plan is
simulated. If that fits, it is optimal; if not, the moments at which it needs too much are added, and CP-SAT solves
again. Where all of them are stated already, this plan alone is excluded.

Most budgets of problems of up to 1,300 values are proven within 20 s, few of more than 2,300. There it is mostly the
time limit that ends the search, and the bound may be lower than others.
"""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from itertools import islice
from typing import NamedTuple

import numpy as np

from remat.plugin import (
    BoolArray,
    Choice,
    ClaimedBound,
    Graph,
    Problem,
    Solution,
    Termination,
    TerminationReason,
    UnsupportedProblem,
)
from remat.predict.memory import Simulator
from solvers.cpsat_backend import new_backend, run_search
from solvers.peak_program import BETWEEN, Moment, PeakProgram, keeps_all, moment_of

NAME = "cpsat-peak"

CERTIFICATE = ClaimedBound("CP-SAT, of memory at some moments")

_AT_ONCE = 8
"""How many moments to add for one plan."""


def cheapest_within_peak(
    graph: Graph,
    problem: Problem,
    limit_bytes: int,
    known: Choice | None = None,
    *,
    time_limit_s: float | None = None,
    workers: int = 1,
) -> Solution | None:
    """Finds the cheapest plan with a simulated peak within a limit, and a bound on the cost of all of them.

    Args:
        graph: the joint graph.
        problem: its costs and bans, without a budget.
        limit_bytes: of `remat.timeline(graph, plan).peak_bytes`.
        known: a plan that fits. None that costs as much is looked for.
        time_limit_s: wall time in seconds; none, if left out.
        workers: threads of CP-SAT.

    Returns:
        the plan, or `known` if none is cheaper. It is optimal if its cost is the bound, by the word of CP-SAT. None if
        the backward pass has operators on which no gradient depends: no program states what torch drops then.
    """
    start = time.perf_counter()
    if not keeps_all(graph, problem):
        return None
    program = PeakProgram(graph, problem, limit_bytes)
    program.add(BETWEEN)
    simulator, best, bound, limit = Simulator(graph), known, 0, None
    if best is not None:
        program.require_less(best.cost(problem))
    while best is None or bound < best.cost(problem):
        left_s = None if time_limit_s is None else time_limit_s - (time.perf_counter() - start)
        found = _solved(program, left_s, workers)
        bound = max(bound, found.bound)
        if found.is_infeasible:
            if best is None:
                return Solution(None, None, Termination(TerminationReason.INFEASIBLE), CERTIFICATE, NAME)
            bound = best.cost(problem)
            break
        if found.saved is None:
            limit = "time"
            break
        moments = _too_full(simulator, found.saved, limit_bytes)
        if not moments:
            best = Choice.from_saved(problem, found.saved[graph.plannable])
            program.require_less(best.cost(problem))
        elif not any(list(islice(filter(program.add, moments), _AT_ONCE))):
            program.exclude(found.saved)
    seconds = time.perf_counter() - start
    if best is None:
        return Solution(None, None, Termination(TerminationReason.LIMIT, bound, limit), CERTIFICATE, NAME, seconds)
    plan, cost = best.plan(problem), best.cost(problem)
    claim = Termination(TerminationReason.OPTIMAL if bound == cost else TerminationReason.FEASIBLE, bound, limit)
    return Solution(plan, cost, claim, CERTIFICATE, NAME, seconds)


class _Found(NamedTuple):
    """What CP-SAT says of a program: a bound on the cost, and (n,) what its plan saves, if it has found one."""

    bound: int
    saved: BoolArray | None
    is_infeasible: bool = False


def _solved(program: PeakProgram, time_limit_s: float | None, workers: int) -> _Found:
    from ortools.sat.python import cp_model

    backend = new_backend(workers)
    if time_limit_s is not None:
        backend.parameters.max_time_in_seconds = max(time_limit_s, 0)
    status = run_search(backend, program.program)
    if status == cp_model.INFEASIBLE:
        return _Found(0, None, is_infeasible=True)
    if status == cp_model.MODEL_INVALID:
        raise UnsupportedProblem(f"CP-SAT refuses the program ({program.program.validate()[:200]}); use coarser units")
    response = backend.response_proto
    bound = max(response.inner_objective_lower_bound, 0) * program.unit
    has_plan = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return _Found(bound, program.read(np.array(response.solution, np.int64)) if has_plan else None)


def _too_full(simulator: Simulator, saved: BoolArray, limit_bytes: int) -> list[Moment]:
    """Lists moments at which a plan needs more than the limit: the peak, and where it needs more than just before."""
    order, alive = simulator.alive(saved)
    rises = alive > np.concatenate([[0], alive[:-1]])
    rises &= alive >= np.concatenate([alive[1:], [0]])
    over = np.flatnonzero(rises & (alive > limit_bytes))
    steps = over[np.argsort(-alive[over], kind="stable")].tolist()
    return [moment_of(simulator.facts, order, step) for step in steps]
