"""Solves within a byte budget by default: Lagrange multipliers first, then CP-SAT from there until time is up."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from typing import ClassVar

from remat import InvalidOption, Problem, Solution, TerminationReason, solve
from remat.improve.progress import ended_early, is_over
from remat.plugin import Feature, Solver, Termination
from solvers.cpsat import CPSAT
from solvers.lagrangian import Lagrangian

_TURNS = ((CPSAT(), 0.1), (CPSAT(bound_first=True), 0.2), (CPSAT(), 0.3), (CPSAT(count_sizes=False), 0.4))
"""The searches, each with its share of the time; each starts from the best plan and the best bound so far.

One often closes at once what takes another long. Half the memory of GPT-2 XL takes the second search 2 s of processor
time, and LSTM-16 takes it 1 s, while the others have gaps of 5% and 3% after 4 s. On T5, only the last finds a plan
that costs 6% less.
"""

_MATTERS = 0.01
"""The largest gap, as a part of the bound, without a warning."""


@dataclass(frozen=True)
class Portfolio(Solver):
    """Runs `lagrangian` first; unless that proves its plan optimal, `cpsat` continues from its plan and its bound.

    So no plan costs more than that of `lagrangian`. The first tenth of the time searches for the optimum, which is
    enough on most graphs. After that, a plan that costs at most `tolerance` more than the bound ends the search. With a
    time limit of the caller's, the search for the optimum lasts until then. `Solution.gap` says what is left. A
    warning says so, too, if the gap is more than 1% and the caller set no limit.

    Without OR-Tools, the answer is that of `lagrangian`, and `Solution.termination.detail` says so.

    Attributes:
        tolerance: how much a plan may cost above the bound, as a part of it, to end the search: 0.001 is 0.1%.
        seconds: wall time for both, unless the caller sets a time limit; a search may take half a second more.
            Where time ends the search, the plan depends on the machine.
    """

    name: ClassVar[str] = "portfolio"
    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

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
            # The first import takes a second, which is no part of the time limit.
            import_module("ortools.sat.python.cp_model")
        start = time.perf_counter()
        by_multiplier = solve(problem, Lagrangian(), throw=False)
        incumbent = replace(by_multiplier, solver=self.name)
        if missing and not incumbent.is_optimal:
            why = f"by lagrangian alone: {', '.join(missing)} is not installed; pip install 'remat[ortools]'"
            _warn_of_gap(incumbent, why)
            return replace(incumbent, termination=replace(incumbent.termination, detail=why))
        limit_s, enough = (self.seconds, self.tolerance) if time_limit_s is None else (time_limit_s, 0.0)
        end = start
        for turn, (search, share) in enumerate(_TURNS):
            end += share * limit_s
            incumbent = _search_further(problem, incumbent, search, enough if turn else 0.0, end)
        limit = None if _is_within(incumbent, enough) else ended_early().limit
        if limit and time_limit_s is None and not is_over():
            _warn_of_gap(
                incumbent, f"{self.seconds} s were not enough; the solver 'portfolio' looks longer with seconds=60"
            )
        return replace(incumbent, termination=replace(incumbent.termination, limit=limit))


def _search_further(problem: Problem, incumbent: Solution, search: CPSAT, tolerance: float, end: float) -> Solution:
    """Searches from the incumbent and returns the better of both, unless that is good enough, or time is up."""
    left_s = end - time.perf_counter()
    if left_s <= 0 or _is_within(incumbent, tolerance):
        return incumbent
    result = search.search(problem, incumbent, tolerance=tolerance, time_limit_s=left_s)
    best = min(incumbent, result, key=lambda one: math.inf if one.objective is None else one.objective)
    # `max` takes the first of two equal bounds, so that one which a flow proves stays.
    proof = max(incumbent, result, key=lambda one: one.bound or 0)
    reason = TerminationReason.OPTIMAL if best.objective == proof.bound else TerminationReason.FEASIBLE
    return replace(
        best, termination=Termination(reason, proof.bound), certificate=proof.certificate, solver=incumbent.solver
    )


def _warn_of_gap(incumbent: Solution, detail: str) -> None:
    """Warns of a large gap: where a plan is compiled, nobody looks at `Solution.gap`."""
    if not _is_within(incumbent, _MATTERS):
        assert incumbent.objective is not None
        most = f"{100 * incumbent.objective / incumbent.bound - 100:.0f}% more than" if incumbent.bound else "more than"
        warnings.warn(f"within the budget, the plan may cost up to {most} the best one: {detail}", stacklevel=2)


def _is_within(incumbent: Solution, tolerance: float) -> bool:
    """Says whether the cost exceeds the bound by at most `tolerance`, which is a part of the bound."""
    assert incumbent.objective is not None  # `lagrangian` always has a plan
    assert incumbent.bound is not None
    return incumbent.objective - incumbent.bound <= incumbent.bound * tolerance
