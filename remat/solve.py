"""`remat.solve`: one entry point for every solver, with every answer checked."""

from __future__ import annotations

import time
from dataclasses import replace

from remat.certify import certify
from remat.errors import Infeasible, InvalidOption, InvalidProblem, LimitReached
from remat.feasibility import check_feasible
from remat.problem import Problem
from remat.registry import DEFAULT_SOLVER, find_solver
from remat.solution import Reason, Solution, Termination
from remat.solver import Solver


def solve(
    problem: Problem,
    solver: str | Solver = DEFAULT_SOLVER,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
) -> Solution:
    """Solves a problem and certifies the answer.

    Args:
        problem: what to solve.
        solver: a registered name (`remat solvers` lists them) or a configured instance.
        time_limit_s: wall time in seconds; only for solvers that support it.
        throw: raise if there is no plan; if False, return a solution without one.

    Returns:
        a solution whose plan is legal and costs what it says. `is_proven` tells whether its
        optimality was verified, too.

    Raises:
        UnknownName, NotInstalled, UnsupportedProblem: the solver cannot be used for this.
        Infeasible: no plan exists; the message names the rules that contradict each other.
        LimitReached: the limit stopped the solver before it had a plan.
        InvalidPlan, CertificateRejected: the solver's answer is wrong. That is a bug in the solver.
    """
    chosen = find_solver(solver)
    if not isinstance(problem, Problem):  # pyright: ignore[reportUnnecessaryIsInstance]  # the likeliest slip
        raise InvalidProblem(
            f"solve() takes a remat.Problem, got {type(problem).__name__}; "
            f"a graph is posed first: cost_model.pose(graph)"
        )
    if time_limit_s is not None and not _is_positive(time_limit_s):
        raise InvalidOption(f"time_limit_s must be a positive number of seconds, got {time_limit_s!r}")
    chosen.accept(problem, time_limit_s=time_limit_s)
    try:
        check_feasible(problem)
    except Infeasible as conflict:
        if throw:
            raise
        return Solution(None, None, Termination(Reason.INFEASIBLE, detail=str(conflict)), None, chosen.name)
    start = time.perf_counter()
    solution = chosen._solve(problem, time_limit_s=time_limit_s)  # pyright: ignore[reportPrivateUsage]
    solution = replace(solution, solve_time_s=time.perf_counter() - start)
    solution = replace(solution, is_proven=certify(problem, solution))
    if solution.plan is None and throw:
        _raise(problem, solution)
    return solution


def _is_positive(number: object) -> bool:
    return isinstance(number, (int, float)) and number > 0


def _raise(problem: Problem, solution: Solution) -> None:
    if solution.termination.reason is Reason.INFEASIBLE:
        raise Infeasible(
            f"no plan fits the budget of {problem.budget_bytes} bytes, says {solution.solver}; raise the budget"
        )
    raise LimitReached(
        f"{solution.solver} found no plan within its {solution.termination.limit} limit; "
        f"raise it, or choose a faster solver"
    )
