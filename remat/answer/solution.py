"""What a solver answers: a plan, how the search ended, and the evidence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np

from remat.answer.plan import Plan
from remat.errors import CertificateRejected, InvalidOption
from remat.facts.columns import FrozenColumns, IntArray, frozen, is_frozen, is_whole
from remat.problem.multipliers import BY_COST, Multipliers


class TerminationReason(Enum):
    """How a search ended, as claimed by the solver. The value is the help text."""

    OPTIMAL = "no plan costs less"
    FEASIBLE = "a plan was found, but there may be a cheaper one"
    INFEASIBLE = "no plan keeps all the rules; relax a ban or raise the budget"
    LIMIT = "a limit stopped the search before it found a plan; raise the limit"
    NO_PLAN_FOUND = "the heuristic found no plan, though there may be one; take an exact solver"


@dataclass(frozen=True)
class Termination:
    """How a search ended.

    Attributes:
        reason: the outcome, as claimed by the solver.
        bound: no plan costs less than this; None if the solver knows no bound.
        limit: what stopped the solver ("time"), if and only if a limit stopped it.
        detail: the backend's own words.
    """

    reason: TerminationReason
    bound: int | None = None
    limit: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _plain("Termination.bound", self.bound))
        if type(self.reason) is not TerminationReason:
            raise InvalidOption(f"Termination.reason must be a remat.TerminationReason, got {self.reason!r}")
        limited = self.limit is not None
        if limited != (self.reason is TerminationReason.LIMIT) and self.reason is not TerminationReason.FEASIBLE:
            raise InvalidOption(f"Termination.limit must be set if and only if a limit stopped the solver, got {self}")


class Certificate(ABC):
    """Evidence for a claim of optimality. Of all kinds only a `FlowCertificate` can become a proof."""

    @abstractmethod
    def __str__(self) -> str:
        """One phrase for a table: how optimality is known."""


@dataclass(frozen=True, eq=False)
class FlowCertificate(FrozenColumns, Certificate):
    """A feasible flow: no plan weighs less than its value (duality).

    Without a budget the weight of a plan is its cost, and a flow of that value proves it optimal.
    With one, see `remat.problem.multipliers`.

    Attributes:
        flow: (k,) flow on each arc of `remat.answer.network.Reduction.of(problem, weights).network`.
        weights: what a unit of cost and a saved byte weigh.
    """

    flow: IntArray
    multipliers: Multipliers = BY_COST

    def __post_init__(self) -> None:
        if type(self.flow) is np.ndarray and self.flow.ndim == 1 and not is_frozen(self.flow):
            object.__setattr__(self, "flow", frozen(self.flow))  # what happens to the solver's own array is no matter

    def __str__(self) -> str:
        return "flow = cut, verified" if self.multipliers == BY_COST else f"flow at {self.multipliers}, verified"


@dataclass(frozen=True)
class Enumeration(Certificate):
    """Every candidate was looked at.

    Attributes:
        candidates: how many plans were compared.
    """

    candidates: int

    def __str__(self) -> str:
        return f"all {self.candidates:,} candidates compared"


@dataclass(frozen=True)
class ClaimedBound(Certificate):
    """The backend's word: it says that no plan costs less than its bound.

    Attributes:
        backend: whose word it is.
    """

    backend: str

    def __str__(self) -> str:
        return f"bound claimed by {self.backend}"


@dataclass(frozen=True)
class Solution:
    """A solver's answer, after `remat.solve` has checked it.

    Attributes:
        plan: what to save and recompute; None if the solver found nothing.
        objective: what the plan costs, recomputed from the problem; None without a plan.
        termination: how the search ended, with the bound.
        certificate: evidence for the bound; None without a plan.
        solver: name of the solver.
        solve_time_s: wall time of the solver, without the checks.
        is_proven: optimal (or infeasible), and the proof was verified without trusting the solver.
            Only `remat.solve` says so; whatever a solver puts here is overwritten.

    Raises:
        CertificateRejected: the bound is above the objective.
    """

    plan: Plan | None
    objective: int | None
    termination: Termination
    certificate: Certificate | None
    solver: str
    solve_time_s: float = 0.0
    is_proven: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.termination, Termination):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"Solution.termination must be a remat.plugin.Termination, got {self.termination!r}")
        object.__setattr__(self, "objective", _plain("Solution.objective", self.objective))
        if self.objective is not None and self.bound is not None and self.bound > self.objective:
            raise CertificateRejected(
                f"{self.solver} claims the bound {self.bound}, above its own plan's cost {self.objective}"
            )

    @property
    def bound(self) -> int | None:
        """No plan costs less than this."""
        return self.termination.bound

    @property
    def is_optimal(self) -> bool:
        """The solver says that no plan costs less."""
        return self.termination.reason is TerminationReason.OPTIMAL

    @property
    def gap(self) -> float | None:
        """(objective - bound) / objective: how far from optimal the plan may be at most."""
        if self.objective is None or self.bound is None:
            return None
        return (self.objective - self.bound) / self.objective if self.objective else 0.0

    def __repr__(self) -> str:
        word = "proven" if self.is_proven else "claimed"
        state = self.termination.reason.name.lower()
        numbers = f"objective {self.objective}, bound {self.bound}"
        return f"<Solution by {self.solver}: {numbers}, {state} ({word}), {self.plan}>"


def _plain(label: str, number: int | None) -> int | None:
    """A whole number of Python: those of numpy wrap."""
    if number is None:
        return None
    if not is_whole(number):
        raise InvalidOption(f"{label} must be a whole number or None, got {number!r}")
    return int(number)
