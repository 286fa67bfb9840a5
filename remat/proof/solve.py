"""Defines `remat.solve`, the entry point to every solver, which checks every answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

from remat.answer import registry
from remat.answer.solution import Solution, Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import CertificateRejected, Infeasible, InvalidPlan, LimitReached
from remat.facts.columns import is_frozen, separate_view
from remat.facts.lazy_field import Deferred
from remat.problem.feasibility import check_feasible, forced_values
from remat.problem.problem import Problem
from remat.proof.budget import check_budget
from remat.proof.certify import certify_for, check_is_problem

_T = TypeVar("_T")


def solve(
    problem: Problem, solver: str | Solver | None = None, *, time_limit_s: float | None = None, throw: bool = True
) -> Solution:
    """Solves a problem and certifies the answer.

    Before it calls the solver, this function checks whether any plan exists, also within each single budget.

    Args:
        problem: the problem.
        solver: a registered name (`remat plugins solvers` lists them) or a configured instance; by default "ortools",
            and "portfolio" for a problem with a budget. Without OR-Tools, SciPy's or NetworkX's maximum flow replaces
            "ortools", with one warning.
        time_limit_s: wall time in seconds; only for solvers that support it.
        throw: whether to raise an error if there is no plan; if False, return a solution without a plan.

    Returns:
        a solution whose plan is legal and has the stated cost. `is_proven` tells whether its optimality was verified,
        too. The plan has the signature of its graph (`Plan.graph`).

    Raises:
        UnknownName, NotInstalled, UnsupportedProblem: the solver cannot be used for this problem.
        Infeasible: no plan exists; the message names the rules that contradict each other, or the fewest bytes that a
            plan can save.
        LimitReached: the solver found no plan: a limit stopped it, or it is a heuristic.
        InvalidPlan, CertificateRejected: the solver's answer is wrong, which is a bug in the solver.
    """
    check_is_problem(problem)
    if solver is None:
        solver = _default_solver(problem)
    algorithm, own_copy = registry.find_solver(solver), _copy(problem)
    algorithm.accept(own_copy, time_limit_s=time_limit_s)
    rules = forced_values(problem)
    try:
        check_feasible(problem, rules)
        check_budget(problem, rules)
    except Infeasible as conflict:
        if throw:
            raise
        claim = Termination(TerminationReason.INFEASIBLE, detail=str(conflict))
        return Solution(None, None, claim, None, algorithm.name, is_proven=True)
    start = time.perf_counter()
    solution = algorithm._solve(own_copy, time_limit_s=time_limit_s)  # pyright: ignore[reportPrivateUsage]
    solve_time_s = time.perf_counter() - start
    try:
        is_proven = certify_for(problem, solution)
    except (InvalidPlan, CertificateRejected) as error:
        raise type(error)(f"the answer of {algorithm!r} is wrong: {error}") from None
    plan = None if solution.plan is None else replace(solution.plan, graph=Deferred(lambda: problem.signature))
    solution = replace(solution, plan=plan, is_proven=is_proven, solve_time_s=solve_time_s)
    # Of one budget without ties, `check_budget` has found a plan.
    may_be_infeasible = problem.tied is not None or len(problem.budgets) > 1
    if solution.termination.reason is TerminationReason.INFEASIBLE and may_be_infeasible:
        if throw:
            rows = ", ".join(repr(row.name) for row in problem.rows)
            ties = "" if problem.tied is None else ", and every tied group as a whole"
            raise Infeasible(f"no plan keeps every budget{rows and f' ({rows})'}{ties}, says {solution.solver}")
        return solution
    if solution.termination.reason is TerminationReason.INFEASIBLE:
        raise CertificateRejected(f"{algorithm.name} claims INFEASIBLE, but no rule stands in the way of a plan")
    if solution.plan is None and throw:
        raise LimitReached(_nothing_found(solution))
    return solution


def _default_solver(problem: Problem) -> str:
    if problem.budgets:
        return registry.DEFAULT_BUDGET_SOLVER
    if not registry.default_is_missing():
        return registry.DEFAULT_SOLVER
    *first, last = (name for name in registry.FALLBACK_SOLVERS if name in registry.usable_solvers())
    return next((name for name in first if _is_within(problem, registry.find_solver(name).largest_capacity)), last)


# Whether the solver can represent the sum of prices, and of the bytes and values that break ties.
def _is_within(problem: Problem, largest: int | None) -> bool:
    copies = () if problem.offload is None else (problem.offload.cost,)
    totals = (problem.save_cost, problem.recompute_cost, problem.save_bytes, *copies)
    return largest is None or sum(int(prices.sum()) for prices in totals) + len(problem) <= largest


# A copy for a solver, so that the solver cannot change the problem. The columns share memory, which is not writable.
# The arrays are separate, because the strides of an array can be set.
def _copy(problem: Problem) -> Problem:
    copy = _copy_attributes(problem)
    vars(copy).pop("index", None)  # a dictionary, which the solver could change
    for label in ("cannot_save", "cannot_recompute"):
        vars(copy)[label] = _copy_attributes(vars(copy)[label])
    if copy.offload is not None:
        vars(copy)["offload"] = offload = _copy_attributes(copy.offload)
        vars(offload)["banned"] = _copy_attributes(offload.banned)
    vars(copy)["rows"] = tuple(map(_copy_attributes, copy.rows))
    return copy


def _copy_attributes(thing: _T) -> _T:
    copy = object.__new__(type(thing))  # `copy.copy` takes three times as long
    state: dict[str, Any] = vars(thing)
    vars(copy).update({name: separate_view(value) if is_frozen(value) else value for name, value in state.items()})
    return copy


def _nothing_found(solution: Solution) -> str:
    if solution.termination.reason is TerminationReason.NO_PLAN_FOUND:
        return f"{solution.solver} is a heuristic, and found no plan, though there may be one; take an exact solver"
    return (
        f"{solution.solver} found no plan within its {solution.termination.limit} limit; "
        f"raise it, or choose a faster solver"
    )
