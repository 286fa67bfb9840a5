"""Defines a solver's answer: a plan, how the search ended, and the evidence."""

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
    """Lists how a search can end, as the solver claims. The value of each member explains it to users."""

    OPTIMAL = "no plan costs less"
    FEASIBLE = "a plan was found, but there may be a cheaper one"
    INFEASIBLE = "no plan keeps all the rules; relax a ban or raise the budget"
    LIMIT = "a limit stopped the search before it found a plan; raise the limit"
    NO_PLAN_FOUND = "the heuristic found no plan, though there may be one; take an exact solver"


@dataclass(frozen=True)
class Termination:
    """Describes how a search ended.

    Attributes:
        reason: the outcome, as the solver claims it.
        bound: a lower bound on the cost of every plan, in the problem's unit; None without one.
        limit: "time" or "interrupt" if that stopped the solver; else None.
        detail: the message of the package behind the solver.
    """

    reason: TerminationReason
    bound: int | None = None
    limit: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _python_int("Termination.bound", self.bound))
        if type(self.reason) is not TerminationReason:
            raise InvalidOption(f"Termination.reason must be a remat.TerminationReason, got {self.reason!r}")
        limited = self.limit is not None
        if limited != (self.reason is TerminationReason.LIMIT) and self.reason is not TerminationReason.FEASIBLE:
            raise InvalidOption(f"Termination.limit must be set if and only if a limit stopped the solver, got {self}")


class Certificate(ABC):
    """Represents evidence for a claim of optimality. Only a `FlowCertificate` can become a proof."""

    @abstractmethod
    def __str__(self) -> str:
        """Returns the kind of evidence in one phrase, for a table."""


@dataclass(frozen=True, eq=False)
class FlowCertificate(FrozenColumns, Certificate):
    """Holds a feasible flow: by duality, no plan weighs less than its value.

    Without a budget, the weight of a plan is its cost, so a flow of that value proves that the plan is optimal. For
    budgets, see `remat.problem.multipliers`.

    Attributes:
        flow: (k,) flow on each arc of `remat.answer.network.Reduction.of(problem, multipliers).network`.
        multipliers: the weights of a unit of cost and of a saved byte.
        budget: the position of the budget in `Problem.budgets` whose bytes are weighed alone, in the network of
            `Problem.with_one_budget`; None if the bytes of all values are weighed.
    """

    flow: IntArray
    multipliers: Multipliers = BY_COST
    budget: int | None = None

    def __post_init__(self) -> None:
        if type(self.flow) is np.ndarray and self.flow.ndim == 1 and not is_frozen(self.flow):
            object.__setattr__(self, "flow", frozen(self.flow))  # a copy, which the solver cannot change later

    def __str__(self) -> str:
        return "flow = cut, verified" if self.multipliers == BY_COST else f"flow at {self.multipliers}, verified"


@dataclass(frozen=True)
class Enumeration(Certificate):
    """Claims that the solver compared every candidate.

    Attributes:
        candidates: the number of compared plans.
    """

    candidates: int

    def __str__(self) -> str:
        return f"all {self.candidates:,} candidates compared"


@dataclass(frozen=True)
class ClaimedBound(Certificate):
    """Claims a bound that another package reports and that cannot be verified.

    Attributes:
        backend: the name of that package, or of its solver.
    """

    backend: str

    def __str__(self) -> str:
        return f"bound claimed by {self.backend}"


@dataclass(frozen=True)
class StepEstimate:
    """Holds the modelled time of both passes on a device, from the predicted kernels: neither measured nor proven."""

    device: str
    ns: float

    def __str__(self) -> str:
        return f"{self.ns / 1e6:.3g} ms by predicted kernels on {self.device}"


@dataclass(frozen=True)
class Solution:
    """Holds a solver's answer, after `remat.solve` has checked it.

    Attributes:
        plan: what to save and recompute; None if the solver found no plan.
        objective: the cost of the plan in the problem's unit, computed from the problem; None without a plan.
        termination: how the search ended, with the bound.
        certificate: evidence for the bound; None without a plan.
        solver: the name of the solver.
        solve_time_s: wall time of the solver in seconds, without the checks.
        is_proven: whether the plan is optimal (or no plan exists), and the proof was verified without trusting the
            solver. Only `remat.solve` sets this, and overwrites a solver's value.
        step: the modelled time of the step, if the plan was chosen by it (`remat.choose`); otherwise None.

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
    step: StepEstimate | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.termination, Termination):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"Solution.termination must be a remat.plugin.Termination, got {self.termination!r}")
        object.__setattr__(self, "objective", _python_int("Solution.objective", self.objective))
        if self.objective is not None and self.bound is not None and self.bound > self.objective:
            raise CertificateRejected(
                f"{self.solver} claims the bound {self.bound}, above its own plan's cost {self.objective}"
            )

    @property
    def bound(self) -> int | None:
        """Returns a lower bound on the cost of every plan; None without one."""
        return self.termination.bound

    @property
    def is_optimal(self) -> bool:
        """Returns whether the solver claims that no plan costs less."""
        return self.termination.reason is TerminationReason.OPTIMAL

    @property
    def gap(self) -> float | None:
        """Returns (objective - bound) / objective, the largest distance from the optimum; None if one of them is."""
        if self.objective is None or self.bound is None:
            return None
        return (self.objective - self.bound) / self.objective if self.objective else 0.0

    def __repr__(self) -> str:
        evidence = "proven" if self.is_proven else "claimed"
        state = self.termination.reason.name.lower()
        numbers = f"objective {self.objective}, bound {self.bound}"
        return f"<Solution by {self.solver}: {numbers}, {state} ({evidence}), {self.plan}>"


# NumPy's integers overflow silently.
def _python_int(label: str, number: int | None) -> int | None:
    if number is None:
        return None
    if not is_whole(number):
        raise InvalidOption(f"{label} must be a whole number or None, got {number!r}")
    return int(number)
