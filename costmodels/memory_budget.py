"""The least recompute time within a budget of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, cast, get_args

import numpy as np

from costmodels.recompute_time import RecomputeTime
from remat import DEFAULT_ESTIMATOR, CostModel, Estimator, Graph, InvalidOption, Terms, find_estimator, forced
from remat.facts.columns import is_whole
from remat.proof.budget import flow_solver, least_bytes
from remat.words import parse_bytes

Of = Literal["saved", "peak"]


@dataclass(frozen=True)
class MemoryBudget(CostModel):
    """Saves up to a budget, and recomputes the rest in as little time as possible.

    What counts is the memory of the saved activations (each storage once; inputs and parameters are
    alive anyway, and count nothing), or the peak of all memory beside inputs and parameters, over
    both passes (`remat.predict.memory`).

    Attributes:
        budget: a size ("8GB", "512MiB"), a whole number of bytes, or a fraction from 0 to 1 of what
            the fastest plan saves: 1 puts no pressure, 0 saves the inputs only. Where something can
            be had by no other way, say the seed of a dropout, a fraction means at least that; a
            size that is too small is an error. Of the peak, likewise: a fraction of the fastest
            plan's, but at least the smallest peak that is found.
        of: "saved" activations, or "peak". A peak is searched for: use `remat.choose`, or compile.
        estimator: how long recomputing a value takes: a registered name or an instance.
    """

    name: ClassVar[str] = "memory-budget"

    budget: float | int | str = 0.5
    of: Of = "saved"
    estimator: str | Estimator = DEFAULT_ESTIMATOR

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name is refused where it is typed
        object.__setattr__(self, "budget", _plain(self.budget))  # numbers of numpy wrap, and print otherwise
        if not isinstance(self.of, str) or self.of not in get_args(Of):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"MemoryBudget.of must be one of {', '.join(get_args(Of))}, got {self.of!r}")

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's
        """The unit of the estimator."""
        return find_estimator(self.estimator).unit

    def data(self) -> str:
        """What the estimator depends on."""
        return find_estimator(self.estimator).data()

    def terms(self, graph: Graph) -> Terms:
        """Those of `RecomputeTime`, and the budget, unless it is one of the peak."""
        terms = RecomputeTime(self.estimator).terms(graph)
        return terms if self.limits_peak else replace(terms, budget_bytes=self._saved_bytes(graph))

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        """The budget, if it is one of saved activations."""
        return (self._amount,) if self.of == "saved" else ()

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        """The budget, if it is one of the peak."""
        return (self._amount,) if self.of == "peak" else ()

    @property
    def _amount(self) -> int | Fraction:
        """Bytes, or a fraction; a double would lose bytes past 2^53."""
        if isinstance(self.budget, str):
            return parse_bytes(self.budget, "MemoryBudget.budget")
        return math.floor(self.budget) if self.budget > 1 else Fraction(self.budget)

    def _saved_bytes(self, graph: Graph) -> int:
        """The budget; a fraction is one of what the fastest plan saves, and at least what every plan does."""
        amount = self._amount
        if isinstance(amount, int):
            return amount
        problem = RecomputeTime(self.estimator).pose(graph)
        if bool((forced(problem).lost & problem.needed).any()):
            return 0  # no plan at all, whatever the budget; `remat.solve` explains
        most = flow_solver().minimum_cut(problem).choice.saved_bytes(problem)
        return max(math.floor(amount * most), least_bytes(problem).weight)


def _plain(budget: object) -> float | int | str:
    """A budget as a number or a text of Python."""
    if isinstance(budget, str):
        parse_bytes(budget, "MemoryBudget.budget")
        return budget
    number = cast(float, budget)
    is_fraction = isinstance(number, (float, np.floating)) and number <= 1
    if not (is_whole(number) or is_fraction) or not number >= 0:
        raise InvalidOption(
            f"MemoryBudget.budget must be a fraction from 0 to 1, a whole number of bytes, or a size such as "
            f'"8GB", got {budget!r}'
        )
    return int(number) if is_whole(number) else float(number)
