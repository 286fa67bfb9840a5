"""Implements `remat.choose`, which takes a graph and a cost model to a checked plan."""

from __future__ import annotations

import warnings
from typing import Any

from remat.answer.choice import Choice
from remat.answer.option_text import spelled
from remat.answer.registry import DEFAULT_COST_MODEL, QUICK_BUDGET_SOLVER, find_costmodel, find_solver
from remat.answer.solution import Solution
from remat.answer.solver import Solver, check_time_limit
from remat.errors import UnsupportedProblem
from remat.facts.graph import Graph
from remat.improve.offload_search import fit_offload
from remat.improve.peak_rise import peak_rise
from remat.improve.peak_search import fit_peak
from remat.improve.progress import Progress, check_progress, ending_within, limit_for
from remat.improve.together import Part
from remat.predict.offloading import StepClock
from remat.problem.costmodel import CostModel
from remat.proof.solve import solve


def choose(
    graph: Graph,
    cost_model: str | CostModel = DEFAULT_COST_MODEL,
    solver: str | Solver | None = None,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
    progress: Progress | None = None,
) -> Solution:
    """Poses the problem of a graph under a cost model, and returns the best plan.

    A budget of saved memory that makes the peak higher is warned about (`remat.improve.peak_rise`). Two things no
    `Problem` can state, and a plan is searched for: a limit on peak memory (`remat.improve.peak_search`), and what
    copies to a host add to the step (`remat.improve.offload_search`).

    Args:
        graph: the joint graph.
        cost_model: a registered name or an instance.
        solver: a registered name or an instance; when left out, that of `remat.solve`.
        time_limit_s: wall time in seconds, for solvers that support it; and for a search for a peak, which then ends
            with the best plan so far. What proves a bound for that plan comes on top.
        throw: raise if there is no plan; if False, return a solution without one.
        progress: called while a peak is searched for, with the number of plans looked at so far; and of the last one
            the peak, in bytes, and the cost.

    Raises:
        InvalidOption: `progress` is no function.
        Infeasible, LimitReached, UnsupportedProblem: see `remat.solve`, and `remat.improve.peak_search.fit_peak`.
            A limit on a whole device is not supported, either: it takes more than a graph.
    """
    check_progress(progress)
    check_time_limit(time_limit_s)
    model = find_costmodel(cost_model)
    if not model.limits_peak:
        posed = model.pose(graph)
        device: Any = model.offload_device
        if device is not None:
            search_with, clock = QUICK_BUDGET_SOLVER if solver is None else solver, StepClock.of(graph, device)
            solution = fit_offload(posed, clock, search_with, time_limit_s=time_limit_s, throw=throw)
        else:
            solution = solve(posed, solver, time_limit_s=time_limit_s, throw=throw)
        if model.saved_limits and solution.plan is not None:
            rise = peak_rise([Part(graph, posed)], [Choice.from_plan(posed, solution.plan)], solver)
            if rise is not None:
                warnings.warn(str(rise), stacklevel=2)
        return solution
    if model.device_limits:
        raise UnsupportedProblem(
            f"{spelled(model)} limits all that training holds, of which a graph knows a part; it is for "
            f"remat.compile and remat.forecast"
        )
    problem = model.pose_without_peak(graph)
    search_with = find_solver(QUICK_BUDGET_SOLVER if solver is None else solver)
    with ending_within(time_limit_s):
        limit_s = limit_for(search_with, time_limit_s)
        return fit_peak(
            graph, problem, model.peak_limits, search_with, time_limit_s=limit_s, throw=throw, progress=progress
        )
