"""Implements `remat.choose`, which finds a checked plan for a graph under a cost model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from remat.answer.choice import Choice
from remat.answer.option_text import option_text
from remat.answer.registry import (
    DEFAULT_BUDGET_SOLVER,
    DEFAULT_COST_MODEL,
    QUICK_BUDGET_SOLVER,
    find_costmodel,
    find_solver,
)
from remat.answer.solution import Solution, StepEstimate, Termination, TerminationReason
from remat.answer.solver import Solver, check_time_limit
from remat.errors import UnsupportedProblem
from remat.facts.graph import Graph
from remat.improve.for_device import for_device
from remat.improve.offload_search import fit_offload
from remat.improve.peak_rise import peak_rise
from remat.improve.peak_search import fit_peak
from remat.improve.progress import Progress, check_progress, ending_within, limit_for
from remat.improve.step_predictor import StepPredictor, predictor_for
from remat.improve.step_ranking import ByStepTime
from remat.improve.subproblem import Subproblem
from remat.predict.offloading import StepClock
from remat.problem.costmodel import CostModel
from remat.problem.problem import Problem
from remat.proof.certify import check_plan
from remat.proof.solve import solve


def choose(
    graph: Graph,
    cost_model: str | CostModel = DEFAULT_COST_MODEL,
    solver: str | Solver | None = None,
    *,
    device: str | None = None,
    time_limit_s: float | None = None,
    throw: bool = True,
    progress: Progress | None = None,
) -> Solution:
    """Poses the problem of a graph under a cost model, and returns the best plan that the solver finds.

    Two things cannot be stated in a `Problem`, so a search finds the plan: a limit on peak memory
    (`remat.improve.peak_search`), and the time that copies to a host add to a step (`remat.improve.offload_search`). If
    a budget of saved memory raises the peak above that of PyTorch's default plan, a warning says so.

    Args:
        cost_model: a registered name or an instance.
        solver: a registered name or an instance; None takes the default of `remat.solve`.
        device: "cpu", or the name of a GPU, such as "h100": kernels, peaks and times are predicted for it. None takes
            the device that the estimator of the cost model names, or else the device of the graph.
        time_limit_s: wall time in seconds, for solvers that support a limit. If the peak is limited, None makes a short
            search: some forty predicted steps, and more of small graphs. With a limit, the search goes on until the
            time is up or nothing makes the step faster; computing its lower bound takes additional time. If no plan so
            far keeps the limit of the peak, those that PyTorch gives in one line are still tried.
        throw: whether to raise if there is no plan; if False, a solution without a plan is returned.
        progress: called if the peak is limited, with the number of plans simulated so far, and with the pair (peak in
            bytes, cost) of the last plan.

    Raises:
        InvalidOption: `progress` is no function; or the estimator of the cost model names another device.
        UnknownName: no device is known by this name.
        Infeasible, LimitReached, UnsupportedProblem: see `remat.solve`, and `remat.improve.peak_search.fit_peak`. A
            limit on a whole device is not supported, either: a graph does not know all that the device holds.
    """
    check_progress(progress)
    check_time_limit(time_limit_s)
    model = find_costmodel(cost_model)
    if device is not None:
        graph, model = for_device(graph, device), model.on_device(device)
    if model.device_limits:
        raise UnsupportedProblem(
            f"{option_text(model)} limits all memory of training, and a graph shows only a part of that memory: call "
            f"remat.compile or remat.forecast"
        )
    problem = model.pose_without_peak(graph)
    solution = search(graph, problem, model, solver, time_limit_s=time_limit_s, throw=throw, progress=progress)
    if model.saved_limits and not model.peak_limits and solution.plan is not None:
        part = Subproblem(graph, problem, 1 if problem.rows else model.calls_in_flight)
        rise = peak_rise([part], [Choice.from_plan(problem, solution.plan)])
        if rise is not None:
            warnings.warn(rise, stacklevel=2)
    return solution


def search(
    graph: Graph,
    problem: Problem,
    cost_model: CostModel,
    solver: str | Solver | None = None,
    *,
    limits: Sequence[int | Fraction] | None = None,
    hides_copies: bool = True,
    time_limit_s: float | None = None,
    throw: bool = True,
    progress: Progress | None = None,
) -> Solution:
    """Finds a plan by the search that the budget of a cost model needs. No other function chooses between the searches.

    Args:
        problem: the problem of the graph under the cost model, without a limit on peak memory.
        cost_model: says what is limited, and on which device copies run.
        solver: as for `choose`.
        limits: limits to use instead of those of the cost model, of saved bytes or of the peak, for all calls in
            flight together.
        hides_copies: whether copies of what is offloaded run at the same time as kernels.
        time_limit_s, throw, progress: as for `choose`.

    Raises:
        Infeasible, LimitReached, UnsupportedProblem: as for `choose`.
    """
    quick = find_solver(QUICK_BUDGET_SOLVER if solver is None else solver)
    if cost_model.limits_peak:
        peaks = cost_model.peak_limits if limits is None else tuple(limits)
        with ending_within(time_limit_s):
            limit_s = limit_for(quick, time_limit_s)
            predictor = predictor_for(graph, cost_model)
            graph = graph if predictor is None else predictor.graph
            solution = fit_peak(
                graph,
                problem,
                peaks,
                solver,
                time_limit_s=limit_s,
                throw=throw,
                progress=progress,
                predictor=predictor,
                in_flight=cost_model.calls_in_flight,
            )
            return solution if predictor is None else _with_step(graph, solution, predictor)
    if limits is not None:
        problem = replace(problem, budget_bytes=min(map(int, limits)) // cost_model.calls_in_flight)
    device: Any = cost_model.offload_device
    if device is not None and hides_copies:
        clock = StepClock.of(graph, device)
        limit_s = limit_for(quick, None) if time_limit_s is None else time_limit_s
        return fit_offload(problem, clock, quick, time_limit_s=limit_s, throw=throw)
    if problem.budgets and time_limit_s is None:
        time_limit_s = limit_for(find_solver(DEFAULT_BUDGET_SOLVER if solver is None else solver), None)
    solution = solve(problem, solver, time_limit_s=time_limit_s, throw=throw)
    if problem.budget_bytes is None or problem.offload is not None or solution.plan is None:
        return solution
    predictor = predictor_for(graph, cost_model)
    if predictor is None:
        return solution
    with ending_within(time_limit_s):
        return _with_step(graph, _fastest(problem, solution, predictor), predictor)


def _fastest(problem: Problem, solution: Solution, predictor: StepPredictor) -> Solution:
    assert solution.plan is not None
    assert problem.budget_bytes is not None
    additive = Choice.from_plan(problem, solution.plan)
    best = ByStepTime(problem, predictor).fastest_within_saved(problem.budget_bytes, additive)
    if best.key == additive.key:
        return solution
    plan = best.plan(problem)
    termination = Termination(TerminationReason.FEASIBLE, solution.bound)
    return replace(solution, plan=plan, objective=check_plan(problem, plan), termination=termination, is_proven=False)


def _with_step(graph: Graph, solution: Solution, predictor: StepPredictor) -> Solution:
    if solution.plan is None:
        return solution
    ns = predictor.ns(Choice.from_plan(graph, solution.plan).saved)
    return replace(solution, step=StepEstimate(predictor.device.name, ns))
