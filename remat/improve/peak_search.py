"""Searches for the fastest plan whose peak memory fits a budget, with a proven bound.

Peak memory is no sum over saved values: what is recomputed is alive for a while, too, so that saving
less may take more. No `Problem` can state that. But at any one step what is saved, and not read yet,
is alive beside what every plan needs there. That is a byte budget: a *relaxation*, whose bound holds
for every plan with a peak that fits; `remat.improve.step_bound` has more of them. The plans themselves
come from `remat.improve.peak_plans`, or from `remat.improve.step_plans`, where the graph knows its calls.
A solver may go on from there by a program of its own (`Solver.within_peak`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.registry import QUICK_BUDGET_SOLVER, find_solver
from remat.answer.solution import FlowCertificate, Solution, Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import Infeasible, InvalidOption, LimitReached, UnsupportedProblem
from remat.facts.columns import IntArray, is_whole
from remat.facts.graph import Graph
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import Progress, check_progress, ended_early, is_over, limit_for
from remat.improve.step_bound import step_bounds
from remat.improve.step_plans import StepPlans
from remat.predict.buffers import records_calls, step_floor
from remat.predict.memory import lower_bound
from remat.predict.memory.bound import AlwaysAlive
from remat.predict.memory.storages import Storages
from remat.problem.feasibility import check_feasible
from remat.problem.problem import Problem
from remat.proof.budget import check_budget, flow_solver
from remat.proof.certify import check_plan, proven_bound
from remat.proof.hull import Hull
from remat.words import human_bytes

NAME = "peak-search"

Measure: TypeAlias = Callable[[Graph, Plan, int], int | None]
"""From a graph, a plan and the limit that it is to keep to its peak in bytes; None if there is no way to know it."""

measuring: ContextVar[Measure | None] = ContextVar("measuring", default=None)

MEASURED = 4
"""How many plans are measured at most."""


@contextmanager
def measuring_with(measure: Measure | None) -> Generator[None]:
    """Has each plan that is found within a limit of the peak, in this thread, measured once before it is taken."""
    token = measuring.set(measure)
    try:
        yield
    finally:
        measuring.reset(token)


def relaxation(graph: Graph, problem: Problem, limit_bytes: int) -> Problem:
    """Poses a problem with a byte budget that every plan with a peak of at most `limit_bytes` solves.

    At any one step, what is alive is at least what every plan needs there, and what is saved and
    cannot have been read yet. Of all steps this takes the one where that is most under the cheapest
    plan. A plan may save a view alone, so only the value that owns a storage counts.
    """
    facts = Storages.of(graph)
    dead = facts.tangents & facts.computed & ~facts.live
    if dead.any():  # torch never computes it, so it drops saved values that only this would read
        return replace(problem, budget_bytes=None)
    floor = AlwaysAlive.of(facts)
    owner = graph.base == np.arange(len(graph))
    size = np.where(owner & ~floor.held & ~facts.foreign, graph.bytes, 0)
    saved = graph.for_all_values(flow_solver().minimum_cut(replace(problem, budget_bytes=None)).choice.saved)
    step = _tightest(facts, floor, np.where(saved, size, 0))
    counted = np.where(floor.first_read >= step, size, 0)
    budget = max(limit_bytes - int(floor.bytes[step]), 0)
    return replace(problem, save_bytes=counted[graph.plannable], budget_bytes=budget)


def between_passes(graph: Graph, problem: Problem, limit_bytes: int) -> Problem:
    """Poses a problem with a byte budget that every plan solves whose compiled step stays within `limit_bytes`.

    Kernels may write over what they read, but what is saved, and the outputs, are alive between the passes whatever the
    kernels are.
    """
    facts = Storages.of(graph)
    if (facts.tangents & facts.computed & ~facts.live).any():  # as in `relaxation`
        return replace(problem, budget_bytes=None)
    held = np.zeros(len(graph), np.bool_)
    held[graph.base[graph.output]] = True
    owner = (graph.base == np.arange(len(graph))) & ~facts.foreign
    size = np.where(owner & ~held, graph.bytes, 0)
    budget = max(limit_bytes - int(facts.size[held & owner].sum()), 0)
    return replace(problem, save_bytes=size[graph.plannable], budget_bytes=budget)


def _tightest(facts: Storages, floor: AlwaysAlive, saved_bytes: IntArray) -> int:
    """Finds the moment with the most bytes alive: 0 for between the passes, v + 1 while the value v runs."""
    unread = np.zeros_like(floor.bytes)
    np.add.at(unread, floor.first_read, saved_bytes)
    after = unread[::-1].cumsum()[::-1]  # at i: what is first read at i or later
    runs = np.concatenate([[True], facts.live, [False]])
    return int(np.where(runs, floor.bytes + after, -1).argmax())


def fit_peak(
    graph: Graph,
    problem: Problem,
    limits: tuple[int | Fraction, ...],
    solver: str | Solver = QUICK_BUDGET_SOLVER,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
    progress: Progress | None = None,
) -> Solution:
    """Finds the fastest plan whose peak is within the limits: of the compiled step, if the graph knows its calls.

    Args:
        graph: the joint graph.
        problem: its costs and bans, without a budget.
        limits: of `remat.timeline(graph, plan).peak_bytes`, as in `CostModel.peak_limits`; the tightest counts.
        solver: who looks for plans between the vertices of the frontier; takes byte budgets.
        time_limit_s: for each budget that `solver` solves, if it takes a limit.
        throw: raise if no plan is found; if False, return a solution without one.
        progress: called with the number of plans looked at so far; and of the last one the peak, in bytes, and the
            cost.

    Returns:
        a solution whose plan keeps the limit by `measuring_with`, too; of a fraction, the lowest of those measured.
        Its bound is that of `relaxation`; or, if the graph knows its calls, the highest one of `between_passes` and
        `remat.improve.step_bound`, with the flow that proves it. It is optimal if it costs that.
        A solver that searches within peaks itself (`Solver.within_peak`: `cpsat`) goes on from the plan that is found,
        and its bound, where that is higher, stands by its word.

    Raises:
        Infeasible: the bans leave no plan; or the message names the operator that needs more, whatever the
            plan, and its tensors.
        LimitReached: the search found no plan that fits, though there may be one.
        UnsupportedProblem: the problem has a budget, too, or a host to offload to; or `solver` takes no budget, or no
            time limit.
        InvalidOption: a limit is neither a whole number nor a `Fraction`; or `progress` is no function.
    """
    if problem.budget_bytes is not None:
        raise UnsupportedProblem(
            f"a limit on peak memory cannot be combined with a budget of saved bytes ({problem.budget_bytes}); "
            f"keep one of them"
        )
    problem.require_two_choices("a limit on peak memory")
    check_progress(progress)
    start, chosen = time.perf_counter(), find_solver(solver)
    chosen.accept(replace(problem, budget_bytes=0), time_limit_s=time_limit_s)
    try:
        simulated = PeakPlans(graph, problem, chosen, time_limit_s, progress)
        plans = StepPlans(simulated) if records_calls(graph) else simulated
        least = step_floor(graph) if records_calls(graph) else lower_bound(graph)
        limit_bytes = _tightest_limit(limits, plans, least.bytes)
        if least.bytes > limit_bytes:
            raise Infeasible(f"no plan has a peak of at most {limit_bytes} bytes: {least}\nRaise the budget.")
        relaxed, bound, certificate = _bounded(_relaxations(graph, problem, limit_bytes), limit_bytes)
    except Infeasible as conflict:
        if throw:
            raise
        claim = Termination(TerminationReason.INFEASIBLE, detail=str(conflict))
        return Solution(None, None, claim, None, NAME, is_proven=True)
    is_fraction = all(isinstance(limit, Fraction) for limit in limits)
    was_cut_short = is_over()  # then a fraction may be that of the smallest peak so far, which a search would lower
    taken, best = _measured(plans, graph, problem, limit_bytes, is_fraction=is_fraction)
    choice = None if best is None else best.choice
    exact = None
    if not records_calls(graph):
        exact = chosen.within_peak(graph, problem, limit_bytes, choice, time_limit_s=limit_for(chosen, time_limit_s))
    if exact is not None and exact.plan is not None:
        choice = Choice.from_plan(problem, exact.plan)
    if choice is None:
        smallest = plans.smallest.peak_bytes if taken is None else taken
        conflict = _no_plan(exact, limit_bytes, _not_found(limit_bytes, smallest, least.bytes))
        if throw:
            raise conflict
        reason = TerminationReason.INFEASIBLE if isinstance(conflict, Infeasible) else TerminationReason.NO_PLAN_FOUND
        return Solution(None, None, Termination(reason, detail=str(conflict)), None, NAME)
    plan = choice.plan(problem)
    cost, seconds = check_plan(problem, plan), time.perf_counter() - start
    if exact is not None and (exact.bound or 0) > bound:
        return Solution(plan, cost, exact.termination, exact.certificate, NAME, seconds)
    is_proven = cost == proven_bound(relaxed, certificate) and not was_cut_short
    claim = Termination(TerminationReason.OPTIMAL, bound) if is_proven else replace(_ended(), bound=bound)
    return Solution(plan, cost, claim, certificate, NAME, seconds, is_proven=is_proven)


def _ended() -> Termination:
    return ended_early() if is_over() else Termination(TerminationReason.FEASIBLE)


def _measured(
    plans: PeakPlans | StepPlans, graph: Graph, problem: Problem, limit_bytes: int, *, is_fraction: bool
) -> tuple[int | None, PeakPlan | None]:
    """Finds a plan that keeps a limit, by `measuring_with`, too, with what it takes by that, if that is known.

    Each plan is sought within a limit that is tighter by as much as the last one took too much. Where none keeps it:
    the one that takes least, for a fraction; else none, with what that one takes.
    """
    measure, plan, tried = measuring.get(), plans.within(limit_bytes), list[tuple[int, PeakPlan]]()
    while plan is not None and measure is not None and len(tried) < MEASURED:
        taken = measure(graph, plan.choice.plan(problem), limit_bytes)
        if taken is None or taken <= limit_bytes:
            return taken, plan
        tried.append((taken, plan))
        tighter = plans.within(plan.peak_bytes * limit_bytes // taken) if len(tried) < MEASURED - 1 else None
        plan = plans.smallest if tighter is None else tighter
        if any(plan is other for _, other in tried):
            break
    taken, least = min(tried, key=lambda one: one[0]) if tried else (None, plan)
    return taken, least if is_fraction or not tried else None


def _no_plan(exact: Solution | None, limit_bytes: int, detail: str) -> Infeasible | LimitReached:
    if exact is None or exact.termination.reason is not TerminationReason.INFEASIBLE:
        return LimitReached(f"{detail}; raise the budget")
    return Infeasible(f"no plan has a peak of at most {limit_bytes} bytes ({exact.certificate}). Raise the budget.")


def _tightest_limit(limits: tuple[int | Fraction, ...], plans: PeakPlans | StepPlans, least_bytes: int) -> int:
    """Reads limits: a fraction is one of the fastest plan's peak, but at least the smallest peak that is found."""
    for limit in limits:
        if not isinstance(limit, Fraction) and not is_whole(limit):
            raise InvalidOption(
                f"CostModel.peak_limits must hold whole numbers of bytes, or Fractions of a peak, got {limit!r}"
            )
    most = plans.cheapest.peak_bytes
    # In fractions: a double would lose bytes past 2^53. And a number of numpy would wrap.
    sizes = [math.floor(limit * most) if isinstance(limit, Fraction) else int(limit) for limit in limits]
    if min(sizes) < least_bytes or plans.within(min(sizes)) is None:
        smallest = plans.smallest.peak_bytes
        floors = [smallest if isinstance(limit, Fraction) else 0 for limit in limits]
        sizes = [*map(max, sizes, floors)]
    return min(sizes)


def _relaxations(graph: Graph, problem: Problem, limit_bytes: int) -> list[Problem]:
    if not records_calls(graph):
        return [relaxation(graph, problem, limit_bytes)]
    return [between_passes(graph, problem, limit_bytes), *step_bounds(graph, problem, limit_bytes)]


def _bounded(relaxations: Sequence[Problem], limit_bytes: int) -> tuple[Problem, int, FlowCertificate]:
    """Finds the relaxation with the highest bound on the cost, and the flow that proves it."""
    try:
        bounds = [(relaxed, *_proven(relaxed)) for relaxed in relaxations]
    except Infeasible as conflict:
        raise Infeasible(
            f"no plan has a peak of at most {limit_bytes} bytes. At the tightest step, beside what every plan holds, "
            f"{conflict}"
        ) from None
    return max(bounds, key=lambda found: found[1])


def _proven(relaxed: Problem) -> tuple[int, FlowCertificate]:
    check_feasible(relaxed)
    check_budget(relaxed)
    cut, budget_bytes = flow_solver().minimum_cut(relaxed), relaxed.budget_bytes
    if budget_bytes is None or cut.choice.saved_bytes(relaxed) <= budget_bytes:
        return cut.weight, cut.certificate
    edge = Hull(replace(relaxed, budget_bytes=None), flow_solver()).edge_at(budget_bytes)
    assert edge is not None  # the cheapest choice does not fit
    return edge.bound(budget_bytes), edge.certificate


def _not_found(limit_bytes: int, smallest_bytes: int, least_bytes: int) -> str:
    early = f"{ended_early().detail}; " if is_over() else ""
    return (
        f"{early}no plan was found with a peak of at most {limit_bytes} bytes. The smallest found is {smallest_bytes} "
        f"({human_bytes(smallest_bytes)}), and none is below {least_bytes} ({human_bytes(least_bytes)})"
    )
