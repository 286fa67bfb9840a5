"""Looks for answers to the rows of the benchmark with the solvers of the library."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

import remat
from experiments.benchmark.annealing import Annealer
from experiments.benchmark.answers import RESUMED, Answer, Answers, merged
from experiments.benchmark.instances import Posed
from experiments.rivals import checkmate_rounding
from experiments.rivals.best_plans import Best, OutOfTime
from experiments.rivals.tensor_instance import TensorInstance
from remat import Choice, Problem, Solution, TerminationReason, solve
from remat.improve.peak_plans import PeakPlan
from remat.improve.peak_search import fit_peak, relaxation
from remat.plugin import ClaimedBound, Termination
from remat.problem.problem_file import Budget
from solvers import CPSAT, Portfolio

_TURNS = (CPSAT(bound_first=True), CPSAT(), CPSAT(count_sizes=False))


def saved_answer(posed: Posed, budget: Budget, time_limit_s: float) -> Answer:
    """The default solver's answer to a budget of saved bytes."""
    start = time.perf_counter()
    solution = _solved(replace(posed.problem, budget_bytes=budget.bytes), time_limit_s)
    assert solution.plan is not None  # the budget is at least what some plan saves
    choice = Choice.from_plan(posed.problem, solution.plan)
    return answer(budget, choice, "portfolio", time.perf_counter() - start, solution)


def resumed_answer(posed: Posed, budget: Budget, known: Answer, time_limit_s: float) -> Answer:
    """What is known about a budget of saved bytes, after CP-SAT has gone on from there in three ways."""
    problem, best = replace(posed.problem, budget_bytes=budget.bytes), known
    start = time.perf_counter()
    for turn, search in enumerate(_TURNS, start=1):
        left_s = time_limit_s * turn / len(_TURNS) - (time.perf_counter() - start)
        more = search.search(problem, _as_solution(posed, best), time_limit_s=max(left_s, 0))
        if more.plan is None:
            found = {**best, **_claims(0, more, f"{RESUMED}: ")}
        else:
            found = answer(budget, Choice.from_plan(problem, more.plan), RESUMED, 0, more, f"{RESUMED}: ")
            found["objective"] = more.objective
        best = merged(best, found)
        if best["status"] == "optimal":
            break
    return {**best, "seconds": math.ceil(time.perf_counter() - start)}


def _choice(posed: Posed, known: Answer) -> Choice:
    saved = np.zeros(len(posed.problem), np.bool_)
    saved[known["saved"]] = True
    return Choice.from_saved(posed.problem, saved)


def _as_solution(posed: Posed, known: Answer) -> Solution:
    plan = _choice(posed, known).plan(posed.problem)
    claim = Termination(TerminationReason.FEASIBLE, known["bound"])
    return Solution(plan, known["objective"], claim, ClaimedBound("CP-SAT"), "cpsat")


def peak_answers(posed: Posed, plans: Sequence[PeakPlan], solver: str, seconds: float) -> Iterator[Answer]:
    """The cheapest of some plans for each budget of the peak, without a bound.

    Args:
        posed: the instance.
        plans: what was found.
        solver: who found it.
        seconds: how long it took.
    """
    for budget in posed.budgets:
        fits = [plan for plan in plans if plan.peak_bytes <= budget.bytes]
        if budget.of == "peak" and fits:
            yield answer(budget, min(fits, key=lambda plan: plan.cost).choice, solver, seconds)


def peak_ratio(posed: Posed, budget: Budget, known: Answer) -> float:
    """What the library's plan for a budget of the peak costs, over the best known answer; infinite without a plan."""
    by_value = replace(posed.graph, arguments=("",) * len(posed.graph))  # the benchmark knows no calls of operators
    cost = fit_peak(by_value, posed.problem, (budget.bytes,), throw=False).objective
    return math.inf if cost is None else max(cost, 1) / max(known["objective"], 1)


def peak_bound(posed: Posed, budget: Budget, known: Answer, time_limit_s: float) -> Answer:
    """What is known about a budget of the peak, with a bound: what every plan costs whose peak is within it.

    At one step, what is saved and not yet read is alive beside what every plan needs there (`relaxation`). That is a
    budget of bytes, so its bound, by the default solver, is one of the peak; and its plan may happen to fit.
    """
    start = time.perf_counter()
    relaxed = relaxation(posed.graph, posed.problem, budget.bytes)
    solution = _solved(relaxed, time_limit_s)
    seconds = time.perf_counter() - start
    if solution.plan is not None:
        choice = Choice.from_plan(posed.problem, solution.plan)
        if choice.cost(posed.problem) < known["objective"] and _peak(posed, choice) <= budget.bytes:
            return answer(budget, choice, "peak-search", seconds, solution, "at one step: ")
    return {**known, **_claims(seconds, solution, "at one step: ")}


def peak_proof(posed: Posed, budget: Budget, known: Answer, time_limit_s: float) -> Answer | None:
    """What is known about a budget of the peak, after CP-SAT has looked for what is cheaper; None if it cannot."""
    start, before = time.perf_counter(), _choice(posed, known)
    solution = CPSAT().within_peak(posed.graph, posed.problem, budget.bytes, before, time_limit_s=time_limit_s)
    if solution is None or solution.plan is None:
        return None
    seconds = time.perf_counter() - start
    if solution.objective == known["objective"]:
        return {**known, **_claims(seconds, solution, f"{RESUMED}: ")}
    choice = Choice.from_plan(posed.problem, solution.plan)
    return answer(budget, choice, RESUMED, seconds, solution, f"{RESUMED}: ")


def annealed_answers(
    posed: Posed, answers: Answers, annealer: Annealer, steps: int, seed: int, *, relaxed: bool
) -> Iterator[Answer]:
    """Offers cheaper plans for each budget of the peak, the smallest first, and yields those that were taken.

    Args:
        relaxed: whether annealing begins at the rounded plan of a linear program (`relaxed_start`).
    """
    done = set[int]()
    for budget in sorted(posed.budgets, key=lambda budget: budget.bytes):
        known = answers.of(posed.name).get(budget.name)
        if budget.of != "peak" or known is None or budget.bytes in done:
            continue
        done.add(budget.bytes)
        begin = time.perf_counter()
        start = relaxed_start(posed, budget) if relaxed else known["saved"]
        if start is None:
            continue
        cost, _, saved = annealer.improved(posed.checked, budget.bytes, start, steps, seed)
        if cost < known["objective"]:
            claims, first = _claims(time.perf_counter() - begin, None), "checkmate, rounded; " if relaxed else ""
            found = {**_named(budget, saved, f"{first}anneal, {steps} steps, seed {seed}"), "objective": cost, **claims}
            answers.offer(posed, found)
            yield found


def relaxed_start(posed: Posed, budget: Budget) -> list[int] | None:
    """What the cheapest plan by Checkmate's relaxation with rounding saves within a budget; None if there is none."""
    instance = TensorInstance.of(posed.graph, posed.problem)
    best = Best(instance, [budget])
    with suppress(OutOfTime):
        checkmate_rounding.within(instance, budget, best.offer)
    found = best.found.get(budget.name)
    return None if found is None else np.flatnonzero(found[1].saved).tolist()


def answer(
    budget: Budget, choice: Choice, solver: str, seconds: float, solution: Solution | None = None, what: str = ""
) -> Answer:
    """An answer as solution.schema.json has it; what is recomputed follows, and is left out."""
    return _named(budget, np.flatnonzero(choice.saved).tolist(), solver) | _claims(seconds, solution, what)


def _named(budget: Budget, saved: list[int], solver: str) -> Answer:
    return {
        "budget": budget.name,
        "saved": saved,
        "solver": solver,
        "version": remat.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _claims(seconds: float, solution: Solution | None, what: str = "") -> dict[str, Any]:
    taken = {"seconds": math.ceil(seconds)}
    if solution is None or solution.bound is None:
        return taken | {"bound": 0}
    return taken | {"bound": solution.bound, "proof": f"{what}{solution.certificate}"}


def _solved(problem: Problem, time_limit_s: float) -> Solution:
    solver = None if problem.budget_bytes is None else Portfolio()
    return solve(problem, solver, time_limit_s=time_limit_s if solver else None)


def _peak(posed: Posed, choice: Choice) -> int:
    return remat.Simulator(posed.graph).peak(posed.graph.for_all_values(choice.saved))
