"""The default within a byte budget: a price on memory, then a search from there until it is enough, or time is up."""

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
"""Who searches, and for which share of the time: each from the best plan and the best bound so far.

What takes one of them long, another often closes at once: half the memory of GPT-2 XL takes the second 2 s of
processor time, LSTM-16 1 s, and the others have gaps of 5% and 3% after 4 s; of T5, the last alone finds a plan that
costs 6% less.
"""

_MATTERS = 0.01
"""A larger gap, as a part of the bound, is warned about."""


@dataclass(frozen=True)
class Portfolio(Solver):
    """`lagrangian` first; and unless that proves its own plan optimal, `cpsat` from its plan and its bound.

    So no plan costs more than that of `lagrangian`. The first tenth of the time is for the optimum: on most
    graphs that is enough. After that, a plan that costs `tolerance` more than the bound ends the search. With
    a time limit of the caller's, the optimum is looked for until then. `Solution.gap` says what is left, and a
    warning, if that is more than 1% and the limit is not the caller's.

    Without OR-Tools, the answer is that of `lagrangian`, and `Solution.termination.detail` says so.

    Attributes:
        tolerance: how much of the bound a plan may cost above it, to be good enough: 0.001 is 0.1%.
        seconds: wall time for both, unless the caller gives a time limit; a search may take half a second more.
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
            import_module("ortools.sat.python.cp_model")  # the first time it takes a second, which is not searched
        start = time.perf_counter()
        priced = solve(problem, Lagrangian(), throw=False)
        found = replace(priced, solver=self.name)
        if missing and not found.is_optimal:
            why = f"by lagrangian alone: {', '.join(missing)} is not installed; pip install 'remat[ortools]'"
            _tell(found, why)
            return replace(found, termination=replace(found.termination, detail=why))
        limit_s, enough = (self.seconds, self.tolerance) if time_limit_s is None else (time_limit_s, 0.0)
        end = start
        for turn, (search, share) in enumerate(_TURNS):
            end += share * limit_s
            found = _searched(problem, found, search, enough if turn else 0.0, end)
        limit = None if _is_within(found, enough) else ended_early().limit
        if limit and time_limit_s is None and not is_over():
            _tell(found, f"{self.seconds} s were not enough; the solver 'portfolio' looks longer with seconds=60")
        return replace(found, termination=replace(found.termination, limit=limit))


def _searched(problem: Problem, incumbent: Solution, search: CPSAT, tolerance: float, end: float) -> Solution:
    """The best of what is known and what a search finds from there, unless that is good enough, or time is up."""
    left_s = end - time.perf_counter()
    if left_s <= 0 or _is_within(incumbent, tolerance):
        return incumbent
    more = search.search(problem, incumbent, tolerance=tolerance, time_limit_s=left_s)
    best = min(incumbent, more, key=lambda one: math.inf if one.objective is None else one.objective)
    # Of two equal bounds, the one that a flow proves is worth more than a claim.
    proof = max(incumbent, more, key=lambda one: one.bound or 0)
    reason = TerminationReason.OPTIMAL if best.objective == proof.bound else TerminationReason.FEASIBLE
    return replace(
        best, termination=Termination(reason, proof.bound), certificate=proof.certificate, solver=incumbent.solver
    )


def _tell(incumbent: Solution, detail: str) -> None:
    """Warns of a gap that matters: where a plan is compiled, nobody looks at `Solution.gap`."""
    if not _is_within(incumbent, _MATTERS):
        assert incumbent.objective is not None
        most = f"{100 * incumbent.objective / incumbent.bound - 100:.0f}% more than" if incumbent.bound else "more than"
        warnings.warn(f"within the budget, the plan may cost up to {most} the best one: {detail}", stacklevel=2)


def _is_within(incumbent: Solution, tolerance: float) -> bool:
    """Whether a plan costs at most so much of its bound above it."""
    assert incumbent.objective is not None  # `lagrangian` always has a plan
    assert incumbent.bound is not None
    return incumbent.objective - incumbent.bound <= incumbent.bound * tolerance
