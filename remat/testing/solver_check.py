"""Checks that a solver meets its contract."""

from __future__ import annotations

import dataclasses
from itertools import permutations, product

import numpy as np
from hypothesis import strategies as st

from remat.answer.choice import Choice
from remat.answer.registry import FALLBACK_SOLVER
from remat.answer.solution import Solution, TerminationReason
from remat.answer.solver import Solver
from remat.errors import Infeasible, UnsupportedProblem
from remat.facts.columns import common_divisor
from remat.problem.features import Feature, features_of
from remat.problem.problem import Problem
from remat.proof.solve import solve
from remat.testing.strategies import problems
from remat.testing.trials import for_all, is_hashable, require, require_options


def check_solver(solver: type[Solver] | Solver, *, max_examples: int = 100) -> None:
    """Checks that a solver meets its contract, on random problems of up to 8 values and some of 20 to 30 values.

    - Its options are a frozen, hashable dataclass with a readable repr.
    - Its plans are legal and have the stated cost; its proofs are valid (`remat.proof.certify`).
    - If it is `exact`, no plan is cheaper than its own. In any case no plan costs less than its bound, and it claims
      OPTIMAL only for optimal plans, and INFEASIBLE only if there is no plan.
    - The same is true with offloading, and with budgets of some values, if it declares these features.
    - It accepts what it declares (`features`, `largest_capacity`, `max_values`), refuses the rest with
      `UnsupportedProblem`, and returns the same plan for the same problem.

    Args:
        solver: a class, checked with its default options, or a configured instance.
        max_examples: the number of problems for each combination of a budget, offloading, and budgets of some values.

    Raises:
        AssertionError: the contract is broken; the message says how, with code that makes the problem.
    """
    instance = solver() if isinstance(solver, type) else solver
    require_options(instance)
    require(is_hashable(instance), f"{instance!r} must be hashable, by its options")
    size = min(instance.max_values or 8, 8)
    for offload, budget, rows in product((False, True), repeat=3):
        largest = size if not offload else min(size, 6)  # three choices for each value, and all plans are compared
        few = min(2, size)
        drawn = problems(min_values=few, max_values=largest, budget=budget, offload=offload, rows=rows, feasible=None)
        for_all(drawn, max_examples, instance, lambda problem: _check_answer(instance, problem))
    if size >= 4:
        for_all(st.sampled_from(_crossings()), 24, instance, lambda problem: _check_answer(instance, problem))
    if instance.max_values is None:
        drawn = problems(min_values=20, max_values=30, largest=1000)
        for_all(drawn, max(max_examples // 10, 1), instance, lambda problem: _check_larger(instance, problem))
    _check_refusals(instance)


def _check_answer(solver: Solver, problem: Problem) -> None:
    for feature in features_of(problem):
        if feature not in solver.features:
            require(_refuses(solver, problem), f"{solver!r} must refuse {feature.value} with UnsupportedProblem")
            return
    best = _cheapest(problem)
    try:
        first, second = (solve(dataclasses.replace(problem), solver, throw=False) for _ in range(2))
    except UnsupportedProblem as error:
        require(_is_large(solver, problem), f"{solver!r} refuses what it declares to take ({error})")
    except Infeasible:
        require(best is None, f"remat.solve finds no plan, but one costs {best}")
    else:
        _check_claims(solver, problem, first, best)
        is_deterministic = (first.plan, first.termination) == (second.plan, second.termination)
        require(is_deterministic, f"{solver!r} is not deterministic: it returns {first}, then {second}")


# 24 problems of two inputs, two needed values and three uses, in every order. A search that sends flow from the input
# with two uses along the wrong one must take that flow back. Random problems hardly ever need this: of 400, none caught
# a search that cannot do it.
def _crossings() -> list[Problem]:
    return [
        Problem.of([1] * 4, edges=uses, needed=[2, 3], cannot_recompute={0: "an input", 1: "an input"})
        for two, v in product((0, 1), (2, 3))
        for uses in permutations([(two, v), (two, 5 - v), (1 - two, 5 - v)])
    ]


# Compares with another solver's proof, because these problems are too large to try all plans.
def _check_larger(solver: Solver, problem: Problem) -> None:
    reference, answer = solve(problem, FALLBACK_SOLVER), solve(problem, solver)
    require(reference.is_proven, f"{FALLBACK_SOLVER} gives no proof")
    what = f"{solver!r} claims OPTIMAL at cost {answer.objective}, but a plan costs {reference.objective}"
    require(answer.objective == reference.objective or not answer.is_optimal, what)


# Checks what `remat.certify` cannot: whether the claims are true.
def _check_claims(solver: Solver, problem: Problem, answer: Solution, best: int | None) -> None:
    claim, bound, cost = answer.termination.reason, answer.bound, answer.objective
    what = f"{solver!r} claims {claim.name} at cost {cost} with the bound {bound}, but"
    if best is None:
        require(
            claim in (TerminationReason.INFEASIBLE, TerminationReason.LIMIT, TerminationReason.NO_PLAN_FOUND),
            f"{what} there is no plan",
        )
        return
    require(claim is not TerminationReason.INFEASIBLE, f"{what} a plan costs {best}")
    require(bound is None or bound <= best, f"{what} a plan costs {best}")
    require(cost == best or not (solver.exact or answer.is_optimal), f"{what} a plan costs {best}")
    require(answer.is_optimal or not solver.exact, f"{what} it declares itself exact")
    require(answer.solver == solver.name, f"{solver!r} signs its solution as {answer.solver!r}")
    if answer.plan is not None:
        ordered = Choice.from_plan(problem, answer.plan).plan(problem)
        require(answer.plan == ordered, f"{solver!r} must list names in the problem's order; use Choice.plan")


def _cheapest(problem: Problem) -> int | None:
    costs: list[int] = []
    can_offload = np.zeros(len(problem), np.bool_) if problem.offload is None else ~problem.offload.banned.mask
    options = [(False,) if banned else (False, True) for banned in problem.cannot_recompute.mask.tolist()]
    for flags in product(*options):
        recomputed = np.array(flags, np.bool_)
        saved = problem.needed.copy()
        saved[problem.producers[recomputed[problem.consumers]]] = True
        saved &= ~recomputed
        if (saved & problem.cannot_save.mask).any():
            continue
        hosts = saved & can_offload
        for hosted in product(*[(False, True) if host else (False,) for host in hosts.tolist()]):
            choice = Choice(saved, recomputed, np.array(hosted, np.bool_))
            if choice.keeps_budget(problem):
                costs.append(choice.cost(problem))
    return min(costs, default=None)


def _refuses(solver: Solver, problem: Problem, time_limit_s: float | None = None) -> bool:
    try:
        solve(problem, solver, time_limit_s=time_limit_s, throw=False)
    except (UnsupportedProblem, Infeasible) as error:
        return isinstance(error, UnsupportedProblem)
    return False


# Whether the prices, or the bytes that break ties, may exceed `largest_capacity`.
def _is_large(solver: Solver, problem: Problem) -> bool:
    copies = [] if problem.offload is None else [problem.offload.cost]
    prices = np.concatenate([problem.save_cost, problem.recompute_cost, *copies])
    units = int(prices.sum()) // common_divisor(prices)
    return solver.largest_capacity is not None and max(units, int(problem.save_bytes.sum())) >= solver.largest_capacity


def _check_refusals(solver: Solver) -> None:
    small = Problem.of([3], needed=[0], cannot_recompute={0: "an input"})
    takes_limit = Feature.TIME_LIMIT in solver.features
    word = "take" if takes_limit else "refuse (with UnsupportedProblem)"
    require(_refuses(solver, small, time_limit_s=60) != takes_limit, f"{solver!r} must {word} a time limit")
    if solver.max_values is not None:
        large = Problem.of([1] * (solver.max_values + 1))
        require(_refuses(solver, large), f"{solver!r} must refuse more than {solver.max_values} values")
