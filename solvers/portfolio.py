"""Solves within a byte budget by default: with Lagrange multipliers first, then with CP-SAT until time is up."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar

from remat import Choice, Graph, InvalidOption, Problem, Solution, TerminationReason, solve
from remat.improve.progress import ended_early, is_over
from remat.plugin import Feature, Solver, Termination
from remat.words import pip_install
from solvers.cpsat import CPSAT
from solvers.lagrangian import Lagrangian

_TURNS = ((CPSAT(), 0.1), (CPSAT(bound_first=True), 0.2), (CPSAT(), 0.3), (CPSAT(count_sizes=False), 0.4))
"""The searches with their shares of the time; each starts from the best plan and the best bound so far.

A problem that takes one search long is often easy for another. The second search takes 2 s of CPU time for half the
memory of GPT-2 XL, and 1 s for LSTM-16, where the others have gaps of 5% and 3% after 4 s. On T5, only the last one
finds a plan that costs 6% less.
"""

_MATTERS = 0.01
"""The largest gap without a warning, as a share of the bound."""


@dataclass(frozen=True)
class Portfolio(Solver):
    """Runs `lagrangian` first; unless that proves its plan optimal, `cpsat` continues from its plan and its bound.

    So no plan costs more than that of `lagrangian`. The first tenth of the time searches for the optimum, which is
    enough on most graphs. After that, a plan that costs at most `tolerance` more than the bound ends the search. If the
    caller sets a time limit, the search for the optimum uses all of it. `Solution.gap` is the remaining gap; a warning
    reports it if it is more than 1% and the caller set no limit. Without OR-Tools, the answer is that of `lagrangian`,
    and `Solution.termination.detail` says so.

    Attributes:
        tolerance: how much a plan may cost above the bound to end the search, as a share of the bound: 0.001 is 0.1%.
        seconds: wall time for both solvers, unless the caller sets a time limit; a search may take half a second more.
            If time ends the search, the plan depends on the machine.
    """

    name: ClassVar[str] = "portfolio"
    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.TIED}

    tolerance: float = 0.001
    seconds: float = 9.5

    def __post_init__(self) -> None:
        for option in ("tolerance", "seconds"):
            value = getattr(self, option)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise InvalidOption(f"Portfolio.{option} must be a number from 0 on, got {value!r}")

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        missing = CPSAT.missing()
        if not missing:
            # The first import takes a second, which does not count for the time limit.
            import_module("ortools.sat.python.cp_model")
        start = time.perf_counter()
        by_multiplier = solve(problem, Lagrangian(), throw=False)
        incumbent = replace(by_multiplier, solver=self.name)
        if missing and not incumbent.is_optimal:
            why = f"by lagrangian alone: {', '.join(missing)} is not installed; {pip_install('ortools')}"
            _warn_of_gap(incumbent, why)
            return replace(incumbent, termination=replace(incumbent.termination, detail=why))
        limit_s, enough = (self.seconds, self.tolerance) if time_limit_s is None else (time_limit_s, 0.0)
        end = start
        for turn, (search, share) in enumerate(_TURNS):
            end += share * limit_s
            incumbent = _search_further(problem, incumbent, search, enough if turn else 0.0, end)
        if incumbent.plan is None:
            return incumbent
        limit = None if _is_within(incumbent, enough) else ended_early().limit
        if limit and time_limit_s is None and not is_over():
            _warn_of_gap(
                incumbent, f"{self.seconds} s were not enough; the solver 'portfolio' looks longer with seconds=60"
            )
        return replace(incumbent, termination=replace(incumbent.termination, limit=limit))

    def within_peak(
        self,
        graph: Graph,
        problem: Problem,
        limit_bytes: int,
        incumbent: Choice | None,
        *,
        time_limit_s: float | None = None,
    ) -> Solution | None:
        """Lets CP-SAT search for as long as within a budget of saved bytes; without OR-Tools there is no answer."""
        if CPSAT.missing():
            return None
        limit_s = self.seconds if time_limit_s is None else time_limit_s
        return CPSAT().within_peak(graph, problem, limit_bytes, incumbent, time_limit_s=limit_s)


# Returns the incumbent at once if it is good enough or time is up; otherwise the better of it and a new search.
def _search_further(problem: Problem, incumbent: Solution, search: CPSAT, tolerance: float, end: float) -> Solution:
    left_s = end - time.perf_counter()
    if left_s <= 0 or _is_within(incumbent, tolerance):
        return incumbent
    result = search.search(problem, incumbent, tolerance=tolerance, time_limit_s=left_s)
    if incumbent.plan is None and result.plan is None:  # only with rows
        return replace(result, solver=incumbent.solver)
    best = min(incumbent, result, key=lambda one: math.inf if one.objective is None else one.objective)
    # `max` returns the first of two equal bounds, so a bound that a flow proves is kept.
    proof = max(incumbent, result, key=lambda one: one.bound or 0)
    reason = TerminationReason.OPTIMAL if best.objective == proof.bound else TerminationReason.FEASIBLE
    return replace(
        best, termination=Termination(reason, proof.bound), certificate=proof.certificate, solver=incumbent.solver
    )


# When a plan is compiled, nobody reads `Solution.gap`.
def _warn_of_gap(incumbent: Solution, detail: str) -> None:
    if incumbent.objective is not None and not _is_within(incumbent, _MATTERS):
        most = f"{100 * incumbent.objective / incumbent.bound - 100:.0f}% more than" if incumbent.bound else "more than"
        warnings.warn(f"the plan keeps the budget, but may cost up to {most} the best one: {detail}", stacklevel=2)


def _is_within(incumbent: Solution, tolerance: float) -> bool:
    if incumbent.objective is None:  # only with rows
        return incumbent.termination.reason is TerminationReason.INFEASIBLE
    assert incumbent.bound is not None
    return incumbent.objective - incumbent.bound <= incumbent.bound * tolerance
