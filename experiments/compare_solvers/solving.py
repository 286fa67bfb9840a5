"""Solves a case: reads the graph, poses the problem once, and lets every solver solve and prove it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from numbers import Integral
from typing import Any

from experiments.compare_solvers.case import SolverCase
from experiments.compare_solvers.rows import one_line
from remat import CostModel, Graph, GraphBuilder, Problem, Solution, UnsupportedProblem, solve
from remat.answer.plan_facts import PlanFacts
from remat.errors import InvalidPlan, RematError
from remat.facts.corpus import Corpus
from remat.plugin import Feature, Solver
from remat.views.compare import warm_up

_SHOWN_DIGITS = 16
"""So many digits of a plan's hash are enough to tell a thousand plans apart."""


def steps(case: SolverCase) -> Iterator[dict[str, Any]]:
    """Yields a message after each step: columns about the problem; then, by solver, "started" and those of its answer.

    If the problem cannot be posed, one message says why: a `status` and a `note`.
    """
    graph = Corpus.open(case.folder).graph(case.instance)
    try:
        problem, pose_s = _posed(case.cost_model.plugin, graph)
    except RematError as error:
        yield _failure(error)
        return
    yield {"pose_s": round(pose_s, 6), "budget_bytes": problem.budget_bytes}
    for _, solver in case.solvers:
        try:
            warm_up(solver)
            yield {"started": solver.name}
            yield _answer(graph, problem, solver, case, pose_s)
        except Exception as error:  # a solver that fails in a way of its own must not end the comparison
            yield _failure(error)


def _posed(model: CostModel, graph: Graph) -> tuple[Problem, float]:
    """Poses the problem, and returns it with the seconds that took, without imports."""
    with suppress(RematError):
        model.pose(_trifle())
    start = time.perf_counter()
    problem = model.pose(graph)
    return problem, time.perf_counter() - start


def _trifle() -> Graph:
    g = GraphBuilder()
    y = g.op("exp", g.input("x", bytes=4))
    g.output(y)
    g.gradient(g.op("mul", g.tangent("dy", bytes=4), y))
    return g.build()


def _answer(graph: Graph, problem: Problem, solver: Solver, case: SolverCase, pose_s: float) -> dict[str, Any]:
    """Makes the columns about one solver's answer; all repeats give the same one."""
    limit_s = case.time_limit_s if Feature.TIME_LIMIT in solver.features else None
    solves: list[float] = []
    checks: list[float] = []
    while True:
        start = time.perf_counter()
        solution = solve(problem, solver, time_limit_s=limit_s, throw=False)
        took = time.perf_counter() - start
        solves.append(solution.solve_time_s)
        checks.append(took - solution.solve_time_s)
        if len(solves) >= case.repeats or sum(solves) + sum(checks) + took > case.time_limit_s / 2:
            break
    solve_s, certify_s = statistics.median(solves), statistics.median(checks)
    return _facts(graph, solution) | {
        "solve_s": round(solve_s, 6),
        "certify_s": round(certify_s, 6),
        "total_s": round(pose_s + solve_s + certify_s, 6),
        "repeats": len(solves),
    }


def _facts(graph: Graph, solution: Solution) -> dict[str, Any]:
    ended = solution.termination
    stopped = f"stopped by the {ended.limit} limit" if ended.limit else ""
    note = ended.detail or stopped or ("" if solution.plan else ended.reason.value)
    about = {
        "status": ended.reason.name.lower(),
        "bound": None if solution.bound is None else _whole("bound", solution.bound),
        "certified": solution.is_proven,
        "note": one_line(note),
        "stopped": ended.limit is not None,
    }
    if solution.plan is None:
        return about
    assert solution.objective is not None  # `certify` has compared it with the plan
    return about | {
        "objective": _whole("objective", solution.objective),
        "gap": solution.gap,
        "saved_bytes": PlanFacts.of(graph, solution.plan).saved_bytes,
        "plan": solution.plan.digest[:_SHOWN_DIGITS],
    }


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, UnsupportedProblem):
        return {"status": "refused", "note": one_line(str(error))}
    return {"status": "error", "note": one_line(f"{type(error).__name__}: {error}")}


def _whole(name: str, number: object) -> int:
    """Converts a price to what a table holds. A solver may say anything; what cannot be kept fails its row alone."""
    if not isinstance(number, Integral) or isinstance(number, bool):
        raise InvalidPlan(f"the {name} must be an integer, got {number!r}")
    if not -(2**63) <= int(number) < 2**63:
        raise OverflowError(f"the {name} must fit a table's 64 bits, got {number}")
    return int(number)
