"""Searches for the cheapest plan whose peak memory keeps a limit, with a proven lower bound on its cost.

Peak memory is no sum over saved values: recomputed values are alive for a while, too, so that saving less may take more
memory. No `Problem` can state that. But at any one moment, the values that are saved and not yet read are alive, beside
those that every plan needs then. To limit the bytes of the former is a relaxation, a byte budget whose bound holds for
every plan that keeps the limit; `remat.improve.step_bound` has further ones. The plans themselves come from
`remat.improve.peak_plans`, or from `remat.improve.step_search` if the graph records its calls.

If the graph does not record its calls, the peak is that of `remat.predict.memory.Simulator`, which an exact solver can
state moment by moment (`Solver.within_peak`). It goes on from the plan that was found, and mostly proves an optimum for
graphs of up to 1,300 values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_BUDGET_SOLVER, QUICK_BUDGET_SOLVER, find_solver
from remat.answer.solution import FlowCertificate, Solution, Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import Infeasible, InvalidOption, InvalidPlan, LimitReached
from remat.facts.columns import IntArray, is_whole
from remat.facts.graph import Graph
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import Progress, check_progress, ended_early, is_over, limit_for
from remat.improve.step_bound import has_dead_gradients, step_bounds
from remat.improve.step_predictor import StepPredictor
from remat.improve.step_search import StepPlans
from remat.predict.buffers import records_calls, step_floor
from remat.predict.device_timeline import timeline
from remat.predict.in_flight import other_calls_bytes
from remat.predict.memory import Simulator, lower_bound
from remat.predict.memory.bound import AlwaysAlive
from remat.predict.memory.storages import StorageFacts
from remat.problem.feasibility import check_feasible
from remat.problem.features import check_features, features_of
from remat.problem.problem import Problem
from remat.proof.budget import check_budget, flow_solver
from remat.proof.certify import check_plan, proven_bound
from remat.proof.hull import Hull
from remat.words import human_bytes

NAME = "peak-search"

Measure: TypeAlias = Callable[[Graph, Plan, int], int | None]
"""Maps a graph, a plan, and the limit of its peak in bytes to the measured peak; None if it cannot be measured."""

measuring: ContextVar[Measure | None] = ContextVar("measuring", default=None)

MEASURED = 5
"""At most this many plans are measured."""


class Plans(Protocol):
    """Finds plans of one graph, or of several together, whose peak memory is predicted."""

    @property
    def default_peak_bytes(self) -> Any:
        """Returns the peak of PyTorch's default plan in bytes, an integer; without such a plan, that of another."""
        ...

    @property
    def default(self) -> Any:
        """Returns a legal plan that saves what PyTorch's default plan saves, or another plan if there is none."""
        ...

    @property
    def smallest(self) -> Any:
        """Returns the plan with the smallest peak found."""
        ...

    def within(self, limit_bytes: int, /) -> Any:
        """Returns the best plan found with a peak of at most `limit_bytes`; None if there is none."""
        ...

    def next_within(self, limit_bytes: int, tighter_bytes: int, tried: Sequence[Any], /) -> Any:
        """Returns the best plan that may keep a limit when measured, though the plans `tried` did not; None if none.

        Candidates are plans within the tighter limit, and plans found in another way than those tried.
        """
        ...


_Plan = TypeVar("_Plan")


@contextmanager
def measuring_with(measure: Measure | None) -> Generator[None]:
    """Makes the searches in this block and this thread measure the peak of a plan before they choose it.

    Args:
        measure: measures the peak of a plan; with None nothing is measured.
    """
    token = measuring.set(measure)
    try:
        yield
    finally:
        measuring.reset(token)


def relaxation(graph: Graph, problem: Problem, limit_bytes: int) -> Problem:
    """Poses a problem with a byte budget that every plan with a peak of at most `limit_bytes` keeps.

    At any one moment, at least two things are alive: what every plan needs then, and what is saved and cannot have been
    read yet. Of all moments this takes the one when the cheapest plan has most alive. A plan may save a view without
    the value that owns its storage, so only owners count.
    """
    facts = StorageFacts.of(graph)
    if has_dead_gradients(facts):
        return replace(problem, budget_bytes=None)
    floor = AlwaysAlive.of(facts)
    owner = graph.base == np.arange(len(graph))
    size = np.where(owner & ~floor.held & ~facts.external, graph.bytes, 0)
    saved = graph.for_all_values(flow_solver().minimum_cut(replace(problem, budget_bytes=None)).choice.saved)
    step = _tightest(facts, floor, np.where(saved, size, 0))
    counted = np.where(floor.first_read >= step, size, 0)
    budget = max(limit_bytes - int(floor.bytes[step]), 0)
    return replace(problem, save_bytes=counted[graph.plannable], budget_bytes=budget)


def between_passes(graph: Graph, problem: Problem, limit_bytes: int) -> Problem:
    """Poses a problem with a byte budget that every plan keeps if the peak of its compiled step is within the limit.

    A kernel may write its result over what it reads. But what is saved, and the outputs, are alive between the two
    passes whatever the kernels are.
    """
    facts = StorageFacts.of(graph)
    if has_dead_gradients(facts):
        return replace(problem, budget_bytes=None)
    held = np.zeros(len(graph), np.bool_)
    held[graph.base[graph.output]] = True
    owner = (graph.base == np.arange(len(graph))) & ~facts.external
    size = np.where(owner & ~held, graph.bytes, 0)
    budget = max(limit_bytes - int(facts.size[held & owner].sum()), 0)
    return replace(problem, save_bytes=size[graph.plannable], budget_bytes=budget)


def _tightest(facts: StorageFacts, floor: AlwaysAlive, saved_bytes: IntArray) -> int:
    # Moment 0 is between the passes, and moment v + 1 is while the value v is computed.
    unread = np.zeros_like(floor.bytes)
    np.add.at(unread, floor.first_read, saved_bytes)
    first_read_later = unread[::-1].cumsum()[::-1]  # at i: the bytes that are first read at i or later
    runs = np.concatenate([[True], facts.live, [False]])
    return int(np.where(runs, floor.bytes + first_read_later, -1).argmax())


def fit_peak(
    graph: Graph,
    problem: Problem,
    limits: tuple[int | Fraction, ...],
    solver: str | Solver | None = None,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
    progress: Progress | None = None,
    predictor: StepPredictor | None = None,
    in_flight: int = 1,
) -> Solution:
    """Finds the cheapest plan whose peak keeps the limits: that of the compiled step, if the graph records its calls.

    Args:
        problem: the costs and bans of the graph, without a budget.
        limits: limits of `remat.timeline(graph, plan).peak_bytes`, as in `CostModel.peak_limits`; the smallest counts.
        solver: finds plans between the vertices of the convex hull; it must take byte budgets. It then searches on
            from the best plan by `Solver.within_peak`, if the graph does not record its calls. None takes `lagrangian`
            for the former, and `portfolio` for the latter.
        time_limit_s: seconds for each problem that `solver` solves, if it takes a limit.
        throw: whether to raise if no plan is found; if False, a solution without a plan is returned.
        progress: called with the number of plans simulated so far, and with the pair (peak in bytes, cost) of the last
            plan.
        predictor: ranks plans by the time of their step (`remat.improve.step_ranking`); None ranks them by cost, as
            for a graph that does not record its calls.
        in_flight: how many calls are alive at the same time; limits are for all of them
            (`remat.predict.in_flight.peak_in_flight`).

    Returns:
        a solution. In a block of `measuring_with`, its plan also keeps the limit when measured. Only if the limit is a
        fraction and no plan keeps it, the plan is the one with the smallest measured peak. The bound is that of
        `relaxation`, or a higher one that `Solver.within_peak` claims; if the graph records its calls, it is the
        highest one of `between_passes` and `remat.improve.step_bound`. Except for that claim, a flow proves it. The
        plan is optimal if its cost equals the bound.

    Raises:
        Infeasible: the bans leave no plan; or an operator needs more memory than the limit in every plan: the message
            names it, and its tensors.
        LimitReached: no plan was found that keeps the limit, though there may be one.
        UnsupportedProblem: the problem also has a budget, or a host to offload to; or `solver` takes no byte budget, or
            no time limit.
        InvalidOption: a limit is neither a whole number nor a `Fraction`; or `progress` is no function.
    """
    check_features(features_of(problem), "a limit on peak memory")
    check_progress(progress)
    start, chosen = time.perf_counter(), find_solver(QUICK_BUDGET_SOLVER if solver is None else solver)
    chosen.accept(replace(problem, budget_bytes=0), time_limit_s=time_limit_s)
    try:
        simulated = PeakPlans(graph, problem, chosen, time_limit_s, progress, in_flight)
        plans = simulated if not records_calls(graph) else StepPlans(simulated, predictor)
        least = step_floor(graph) if records_calls(graph) else lower_bound(graph)
        limit_bytes = tightest_limit(limits, plans, least.bytes)
        if least.bytes > limit_bytes:
            raise Infeasible(f"no plan has a peak of at most {limit_bytes} bytes: {least}\nRaise the budget.")
        relaxed, bound, certificate = _bounded(_relaxations(graph, problem, limit_bytes, in_flight), limit_bytes)
    except Infeasible as conflict:
        if throw:
            raise
        claim = Termination(TerminationReason.INFEASIBLE, detail=str(conflict))
        return Solution(None, None, claim, None, NAME, is_proven=True)
    was_cut_short = is_over()  # then a fraction may be that of the smallest peak so far, which a search would lower
    measure = measuring.get()

    def measured(one: PeakPlan) -> int | None:
        if measure is None:
            return None
        plan, others = one.choice.plan(problem), 0
        if in_flight > 1:  # only one call is measured
            others = other_calls_bytes(graph, timeline(graph, plan), in_flight)
        alone = measure(graph, plan, limit_bytes - others)
        return None if alone is None else alone + others

    taken, best = checked_plan(plans, measured, limit_bytes, limits)
    if best is None:
        answer = _none_found(limit_bytes, plans.smallest.peak_bytes if taken is None else taken, least.bytes)
    else:
        plan = best.choice.plan(problem)
        cost = check_plan(problem, plan)
        is_proven = cost == proven_bound(relaxed, certificate) and not was_cut_short
        claim = Termination(TerminationReason.OPTIMAL, bound) if is_proven else replace(_ended(), bound=bound)
        answer = Solution(plan, cost, claim, certificate, NAME, is_proven=is_proven)
    if not (answer.is_optimal or records_calls(graph) or in_flight > 1 or measure or is_over()):
        exact = find_solver(DEFAULT_BUDGET_SOLVER if solver is None else solver)
        answer = _searched_on(graph, problem, limit_bytes, answer, exact, time_limit_s)
    if answer.plan is None and throw:
        is_infeasible = answer.termination.reason is TerminationReason.INFEASIBLE
        raise (Infeasible if is_infeasible else LimitReached)(answer.termination.detail)
    return replace(answer, solve_time_s=time.perf_counter() - start)


def _none_found(limit_bytes: int, smallest_bytes: int, least_bytes: int) -> Solution:
    ended = _ended()
    detail = (
        f"{ended.detail and f'{ended.detail}; '}no plan was found with a peak of at most {limit_bytes} bytes. The "
        f"smallest found is {smallest_bytes} ({human_bytes(smallest_bytes)}), and none is below {least_bytes} "
        f"({human_bytes(least_bytes)}); raise the budget"
    )
    return Solution(None, None, replace(ended, reason=TerminationReason.NO_PLAN_FOUND, detail=detail), None, NAME)


def _searched_on(
    graph: Graph, problem: Problem, limit_bytes: int, answer: Solution, solver: Solver, time_limit_s: float | None
) -> Solution:
    """Returns the better of an answer and of what `Solver.within_peak` finds from there, with the higher bound."""
    left_s = limit_for(solver, math.inf if time_limit_s is None else time_limit_s)
    more = solver.within_peak(
        graph,
        problem,
        limit_bytes,
        None if answer.plan is None else Choice.from_plan(problem, answer.plan),
        time_limit_s=None if left_s == math.inf else left_s,
    )
    if more is None:
        return answer
    if more.termination.reason is TerminationReason.INFEASIBLE and answer.plan is None:
        detail = f"no plan has a peak of at most {limit_bytes} bytes ({more.certificate}): {answer.termination.detail}"
        return replace(answer, termination=Termination(TerminationReason.INFEASIBLE, detail=detail))
    if more.plan is None:
        return answer
    peak_bytes = Simulator(graph).peak(graph.for_all_values(Choice.from_plan(problem, more.plan).saved))
    if peak_bytes > limit_bytes:
        raise InvalidPlan(f"solver {solver.name!r}: its plan has a peak of {peak_bytes} bytes, above {limit_bytes}")
    cost = check_plan(problem, more.plan)
    # Of equal bounds the first one, which a flow proves; an answer without a plan has none.
    proof = max(answer, more, key=lambda one: -1 if one.bound is None else one.bound)
    if proof.bound == cost:
        claim = Termination(TerminationReason.OPTIMAL, cost)
    else:
        claim = replace(_ended(), bound=proof.bound, limit=more.termination.limit)
    return Solution(more.plan, cost, claim, proof.certificate, NAME, is_proven=proof is answer and claim.bound == cost)


def _ended() -> Termination:
    return ended_early() if is_over() else Termination(TerminationReason.FEASIBLE)


def checked_plan(
    plans: Plans, measure: Callable[[_Plan], int | None], limit_bytes: int, limits: Sequence[int | Fraction]
) -> tuple[int | None, _Plan | None]:
    """Finds a plan that keeps a limit when measured, too, and returns (measured bytes or None, plan or None).

    If a plan exceeds the limit by a factor when measured, the next one is searched within a limit that is smaller by
    this factor. But the error of one plan says little about others: plans found in another way are measured instead if
    they are better (`next_within`). For a fraction, PyTorch's default plan is measured, too, because the smallest
    predictions are often too low. If no plan keeps the limit, a limit in bytes gives no plan, and a fraction the plan
    with the smallest measured peak.

    Args:
        plans: where plans come from.
        measure: measures the peak of a plan in bytes, or returns None if it cannot.
        limit_bytes: the limit.
        limits: as the user gave them.
    """
    plan, tried = plans.within(limit_bytes), list[tuple[int, Any]]()
    is_share = all(isinstance(limit, Fraction) for limit in limits)
    while plan is not None and len(tried) < MEASURED:
        taken = measure(plan)
        if taken is None or taken <= limit_bytes:
            return taken, plan
        tried.append((taken, plan))
        others = _alternatives(plans, limit_bytes, tried, with_default=is_share)
        plan = next((one for one in others if one is not None and not any(one is old for _, old in tried)), None)
    taken, least = min(tried, key=lambda one: one[0]) if tried else (None, plan)
    return taken, least if is_share or not tried else None


def _alternatives(
    plans: Plans, limit_bytes: int, tried: Sequence[tuple[int, Any]], *, with_default: bool
) -> Iterator[Any]:
    left = MEASURED - len(tried)
    if left > 2:
        tighter_bytes = min(one.peak_bytes * limit_bytes // taken for taken, one in tried)
        yield plans.next_within(limit_bytes, tighter_bytes, [one for _, one in tried])
    if left > 1:
        yield plans.smallest
    if with_default:
        yield plans.default


def tightest_limit(limits: Sequence[int | Fraction], plans: Plans, least_bytes: int) -> int:
    """Returns the smallest limit in bytes; a fraction of the default plan's peak is never below the least peak found.

    Args:
        limits: as the user gave them.
        plans: where plans come from.
        least_bytes: a lower bound on the peak of every plan.
    """
    for limit in limits:
        if not isinstance(limit, Fraction) and not is_whole(limit):
            raise InvalidOption(
                f"CostModel.peak_limits must hold whole numbers of bytes, or Fractions of a peak, got {limit!r}"
            )
    # Fractions are exact, while a double loses bytes past 2^53, and a number of numpy would overflow.
    sizes = [
        math.floor(limit * plans.default_peak_bytes) if isinstance(limit, Fraction) else int(limit) for limit in limits
    ]
    if min(sizes) < least_bytes or plans.within(min(sizes)) is None:
        # A fraction never asks for less than this. A peak that is predicted too low may be below what every plan needs.
        smallest = max(plans.smallest.peak_bytes, least_bytes)
        floors = [smallest if isinstance(limit, Fraction) else 0 for limit in limits]
        sizes = [*map(max, sizes, floors)]
    return min(sizes)


def _relaxations(graph: Graph, problem: Problem, limit_bytes: int, in_flight: int) -> list[Problem]:
    # Of several calls, each alone keeps the limit, and what waits between the passes is there once for each of them.
    waiting = between_passes(graph, problem, limit_bytes // in_flight)
    if not records_calls(graph):
        return [relaxation(graph, problem, limit_bytes), *([waiting] if in_flight > 1 else [])]
    return [waiting, *step_bounds(graph, problem, limit_bytes)]


def _bounded(relaxations: Sequence[Problem], limit_bytes: int) -> tuple[Problem, int, FlowCertificate]:
    try:
        bounds = [(relaxed, *_proven(relaxed)) for relaxed in relaxations]
    except Infeasible as conflict:
        raise Infeasible(
            f"no plan has a peak of at most {limit_bytes} bytes. At the tightest step, with the memory that every "
            f"plan holds, {conflict}"
        ) from None
    return max(bounds, key=lambda one: one[1])


def _proven(relaxed: Problem) -> tuple[int, FlowCertificate]:
    check_feasible(relaxed)
    check_budget(relaxed)
    cut, budget_bytes = flow_solver().minimum_cut(relaxed), relaxed.budget_bytes
    if budget_bytes is None or cut.choice.saved_bytes(relaxed) <= budget_bytes:
        return cut.weight, cut.certificate
    edge = Hull(replace(relaxed, budget_bytes=None), flow_solver()).edge_at(budget_bytes)
    assert edge is not None  # the cheapest choice does not fit
    return edge.bound(budget_bytes), edge.certificate
