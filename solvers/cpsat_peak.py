"""Finds the cheapest plan within a limit of the simulated peak, or proves that there is none, by OR-Tools' CP-SAT.

The program of `peak_program` limits memory at a few moments, so that its optimum is a lower bound. The first moments
are those at which the incumbent needs the most. The plan of the optimum is simulated. If it fits the limit, it is
optimal. If not, the moments at which it needs too much are added, and CP-SAT solves again. If the program has all of
these moments already, it excludes this one plan.

Few moments at a time are faster than many: each adds some literals for every value. Without the moments of the
incumbent, half of the memory of GPT-2 (1,253 values, its fused attention) took 14 s instead of 2 s.
"""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from remat import Choice, Graph, Problem, Solution, TerminationReason, UnsupportedProblem
from remat.improve.progress import ended_early
from remat.plugin import BoolArray, ClaimedBound, Termination
from remat.predict.memory import Simulator
from solvers.cpsat_backend import new_backend, run_search
from solvers.peak_program import BETWEEN, Moment, PeakProgram, moment_of, needs_gradients_only

NAME = "cpsat-peak"

CERTIFICATE = ClaimedBound("CP-SAT, of memory at some moments")

_AT_ONCE = 4
"""The most moments to add for one plan."""

_NEAR = 0.8
"""A moment of the incumbent is added if it needs more than this share of the limit."""


def cheapest_within_peak(
    graph: Graph,
    problem: Problem,
    limit_bytes: int,
    incumbent: Choice | None = None,
    *,
    time_limit_s: float | None = None,
    workers: int = 1,
) -> Solution | None:
    """Finds the cheapest plan within a limit of the simulated peak: see `Solver.within_peak`.

    The answer is None if the backward pass has operators on which no gradient depends: torch drops these, which no
    program states.
    """
    start = time.perf_counter()
    if not needs_gradients_only(graph, problem):
        return None
    program = PeakProgram(graph, problem, limit_bytes)
    program.add(BETWEEN)
    simulator, best, bound, limit = Simulator(graph), incumbent, 0, None
    if best is not None:
        program.require_less(best.cost(problem))
        _add(program, _too_full(simulator, graph.for_all_values(best.saved), int(_NEAR * limit_bytes)))
    while best is None or bound < best.cost(problem):
        left_s = None if time_limit_s is None else time_limit_s - (time.perf_counter() - start)
        outcome = _solved(program, left_s, workers)
        bound = max(bound, outcome.bound)
        if outcome.is_infeasible:
            if best is None:
                return Solution(None, None, Termination(TerminationReason.INFEASIBLE), CERTIFICATE, NAME)
            bound = best.cost(problem)
            break
        if outcome.saved is None:
            limit = ended_early().limit
            break
        moments = _too_full(simulator, outcome.saved, limit_bytes)
        if not moments:
            best = Choice.from_saved(problem, outcome.saved[graph.plannable])
            program.require_less(best.cost(problem))
        elif not _add(program, moments):
            program.exclude(outcome.saved)
    seconds = time.perf_counter() - start
    if best is None:
        return Solution(None, None, Termination(TerminationReason.LIMIT, bound, limit), CERTIFICATE, NAME, seconds)
    plan, cost = best.plan(problem), best.cost(problem)
    claim = Termination(TerminationReason.OPTIMAL if bound == cost else TerminationReason.FEASIBLE, bound, limit)
    return Solution(plan, cost, claim, CERTIFICATE, NAME, seconds)


def _add(program: PeakProgram, moments: Iterable[Moment]) -> bool:
    return any(list(islice(filter(program.add, moments), _AT_ONCE)))


class _Outcome(NamedTuple):
    """Holds CP-SAT's answer: a bound on the cost, and (n,) what its plan saves, if it found one."""

    bound: int
    saved: BoolArray | None
    is_infeasible: bool = False


def _solved(program: PeakProgram, time_limit_s: float | None, workers: int) -> _Outcome:
    from ortools.sat.python import cp_model

    backend = new_backend(workers)
    if time_limit_s is not None:
        backend.parameters.max_time_in_seconds = max(time_limit_s, 0)
    status = run_search(backend, program.program)
    if status == cp_model.INFEASIBLE:
        return _Outcome(0, None, is_infeasible=True)
    if status == cp_model.MODEL_INVALID:
        raise UnsupportedProblem(f"CP-SAT refuses the program ({program.program.validate()[:200]}); use coarser units")
    response = backend.response_proto
    bound = max(response.inner_objective_lower_bound, 0) * program.unit
    has_plan = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return _Outcome(bound, program.read(np.array(response.solution, np.int64)) if has_plan else None)


def _too_full(simulator: Simulator, saved: BoolArray, limit_bytes: int) -> list[Moment]:
    """Lists moments at which a plan needs more than the limit: local maxima of its memory, the largest first."""
    order, alive = simulator.alive(saved)
    rises = alive > np.concatenate([[0], alive[:-1]])
    rises &= alive >= np.concatenate([alive[1:], [0]])
    over = np.flatnonzero(rises & (alive > limit_bytes))
    steps = over[np.argsort(-alive[over], kind="stable")].tolist()
    return [moment_of(simulator.facts, order, step) for step in steps]
