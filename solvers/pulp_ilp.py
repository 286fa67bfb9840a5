"""Solves with an integer program of PuLP and its CBC: an independent reference, with budgets and time limits."""

# PuLP ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from remat import Choice, Problem, RematError, Solution, TerminationReason, UnsupportedProblem
from remat.facts.columns import common_divisor
from remat.plugin import ClaimedBound, Feature, Solver, Termination

_LARGEST_PRICE = 10**13 - 1
"""The largest sum of prices: PuLP 3.3 writes coefficients with 13 digits to CBC's input file."""

_BASE = 10**4
"""The base of the digits of a byte budget in the program."""


@dataclass(frozen=True)
class PuLP(Solver):
    """Solves the formulation of `remat.problem.problem` as a 0-1 program.

    Its variables are s = b - a - h, "saved on the device", a, "recomputed", and h, "offloaded". With the variables b
    and a, CBC 2.10.3 calls plans optimal that are not: one of cost 350 instead of 349, on a problem of 12 values
    without a use. It also called a program infeasible although recomputing everything met its budget of 0.

    CBC computes in doubles, so prices that add up to 10**13 or more are refused, and the answer is rounded;
    `remat.solve` then checks it in integers.
    """

    name: ClassVar[str] = "pulp"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    requires: ClassVar[tuple[str, ...]] = ("pulp",)
    largest_capacity: ClassVar[int | None] = _LARGEST_PRICE

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        import pulp

        save_cost, recompute_cost, copy_cost, unit = _scaled(problem)
        program: Any = pulp.LpProblem("remat", pulp.LpMinimize)
        n = len(problem)
        saved = [pulp.LpVariable(f"s{v}", cat=pulp.LpBinary) for v in range(n)]
        recomputed = [pulp.LpVariable(f"a{v}", cat=pulp.LpBinary) for v in range(n)]
        no_save, no_recompute = problem.cannot_save.mask, problem.cannot_recompute.mask
        hosts = [] if problem.offload is None else np.flatnonzero(~problem.offload.banned.mask & ~no_save).tolist()
        offloaded = {v: pulp.LpVariable(f"h{v}", cat=pulp.LpBinary) for v in hosts}

        prices: dict[Any, int] = {}
        for v, (save, recompute) in enumerate(zip(save_cost, recompute_cost, strict=True)):
            prices[saved[v]] = save
            prices[recomputed[v]] = recompute
            if v in offloaded:
                prices[offloaded[v]] = copy_cost[v]
        available = [saved[v] + recomputed[v] + offloaded.get(v, 0) for v in range(n)]
        program += pulp.LpAffineExpression(prices)
        for v in range(n):
            if problem.needed[v]:
                program += available[v] == 1
            else:
                program += available[v] <= 1
            if no_recompute[v]:
                recomputed[v].upBound = 0
            if no_save[v]:
                saved[v].upBound = 0
        for u, v in zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True):
            program += recomputed[v] <= available[u]
        _add_ties(program, problem, recomputed, available)
        for position, (_, sizes, limit) in enumerate(problem.budgets):
            _add_budget(program, saved, sizes.tolist(), limit, f"carry{position}_")

        log, is_limited = _run_cbc(program, problem, time_limit_s), time_limit_s is not None
        solution = _read(self.name, problem, program, saved, offloaded, log, unit, is_limited=is_limited)
        if solution.termination.limit is not None and not is_limited:
            raise RematError(f"pulp: CBC stopped early, though no limit was set; it said:\n{log}")
        return solution


# Adds a binary for each tied group, which allows its values to be recomputed, or to be saved.
def _add_ties(program: Any, problem: Problem, recomputed: list[Any], available: list[Any]) -> None:
    import pulp

    for group in problem.tied_groups:
        is_recomputed = pulp.LpVariable(f"x{group[0]}", cat=pulp.LpBinary)
        for v in group.tolist():
            program += recomputed[v] <= is_recomputed
            program += available[v] - recomputed[v] <= 1 - is_recomputed


# Adds `sum sizes * saved <= budget`, one row per digit, as in written addition. CBC satisfies a row only to about one
# part in 10**7: of 60 knapsacks of ten sizes near 10**7, single bytes apart, one row broke the budget in 9 and lost the
# optimum in 3. A row of digits has small coefficients; an integer carries the excess over the budget's digit.
def _add_budget(program: Any, saved: list[Any], sizes: list[int], budget: int, label: str) -> None:
    import pulp

    carry: Any = 0
    for row in count():
        digits, sizes = [size % _BASE for size in sizes], [size // _BASE for size in sizes]
        row_sum = pulp.lpSum(digit * is_saved for digit, is_saved in zip(digits, saved, strict=True) if digit) + carry
        if not any(sizes) and budget < _BASE:
            program += row_sum <= budget
            return
        carry = pulp.LpVariable(f"{label}{row}", lowBound=0, upBound=len(saved), cat=pulp.LpInteger)
        program += row_sum <= budget % _BASE + _BASE * carry
        budget //= _BASE


def _scaled(problem: Problem) -> tuple[list[int], list[int], list[int], int]:
    copies = np.zeros(0, np.int64) if problem.offload is None else problem.offload.cost
    all_prices = np.concatenate([problem.save_cost, problem.recompute_cost, copies])
    unit = common_divisor(all_prices)
    total = int(all_prices.sum()) // unit
    if total > _LARGEST_PRICE:
        raise UnsupportedProblem(
            f"solver 'pulp': the prices add up to {total} in units of {unit}, but CBC's input holds 13 digits; "
            f"take the solver 'ortools'"
        )
    save, recompute, copies = (
        (column // unit).tolist() for column in (problem.save_cost, problem.recompute_cost, copies)
    )
    return save, recompute, copies, unit


def _run_cbc(program: Any, problem: Problem, time_limit_s: float | None) -> str:
    import pulp

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "cbc.log"

        # CBC is fixed, not "whatever is installed", because a reference must be the same everywhere.
        # No `threads`: with 1, CBC starts a worker thread, which sometimes waited for 10 s after a short limit.
        def run(*options: str) -> None:
            limit_s, path = time_limit_s, str(log)
            program.solve(
                pulp.PULP_CBC_CMD(msg=False, timeLimit=limit_s, gapRel=0, gapAbs=0, options=[*options], logPath=path)
            )

        try:
            # With several budgets, CBC 2.10.3's preprocessing loses optima: six values cost 1080 instead of 723.
            run(*(["preprocess off"] if problem.rows else []))
        except pulp.PulpSolverError as error:
            if problem.rows:  # without preprocessing, CBC crashes where there is no plan; only that is believed of it
                run()
            if not problem.rows or program.status != pulp.LpStatusInfeasible:
                raise RematError(f"pulp: CBC crashed; it said:\n{error}") from None
        return log.read_text() if log.exists() else ""


def _read(
    name: str,
    problem: Problem,
    program: Any,
    saved: list[Any],
    offloaded: dict[int, Any],
    log: str,
    unit: int,
    *,
    is_limited: bool,
) -> Solution:
    import pulp

    certificate = ClaimedBound("CBC")
    # `status` says Optimal even after a time limit (PuLP 3.3); only `sol_status` tells them apart.
    outcome = program.sol_status
    # A plan exists, as was decided before, but if a time limit ends CBC's preprocessing, CBC may report infeasible.
    if program.status == pulp.LpStatusInfeasible and not is_limited:
        return Solution(None, None, Termination(TerminationReason.INFEASIBLE), certificate, name)
    if outcome not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        bound = _logged_bound(log, unit)
        return Solution(None, None, Termination(TerminationReason.LIMIT, bound, limit="time"), certificate, name)

    # A variable that is in no row has no value.
    is_saved = np.array([round(variable.value() or 0) for variable in saved], np.bool_)
    hosted = np.zeros_like(is_saved)
    hosted[list(offloaded)] = [round(variable.value() or 0) for variable in offloaded.values()]
    choice = Choice.from_saved(problem, is_saved | hosted, hosted)
    plan, cost = choice.plan(problem), choice.cost(problem)
    if outcome == pulp.LpSolutionOptimal:
        return Solution(plan, cost, Termination(TerminationReason.OPTIMAL, cost), certificate, name)
    bound = _logged_bound(log, unit)
    return Solution(plan, cost, Termination(TerminationReason.FEASIBLE, bound, limit="time"), certificate, name)


# The lower bound of CBC's closing report, rounded up to whole units, because prices are integers.
def _logged_bound(log: str, unit: int) -> int | None:
    match = re.search(r"^Lower bound:\s+(\S+)", log, re.MULTILINE)
    # CBC prints three decimals of a double: subtract what rounding may have added.
    return ceil(float(match[1]) * (1 - 1e-9) - 0.001) * unit if match else None
