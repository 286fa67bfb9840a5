"""An objective for a plan that is to be no worse than the given one in anything that is counted of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from remat.answer.choice import Choice
from remat.answer.registry import (
    DEFAULT_BUDGET_SOLVER,
    DEFAULT_ESTIMATOR,
    DEFAULT_TIME_MODEL,
    QUICK_BUDGET_SOLVER,
    costmodel_class,
    find_estimator,
)
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.refine.objectives import KernelObjective, Launch, Objective, Score, Traffic
from remat.improve.refine.states import State
from remat.problem.estimator import Estimator
from remat.problem.problem import Problem
from remat.proof.solve import solve


@dataclass(frozen=True)
class NoWorse(KernelObjective):
    """Counts traffic, of plans that have no more kernels than the given one and recompute no longer.

    They save no more bytes either, as every answer of `remat.refine`. So the answer is no worse than the given plan in
    any of four: bytes moved, kernels, saved bytes, recompute time. The search also begins at plans that
    recompute little with as many saved bytes: those of `portfolio` and `lagrangian`.

    Attributes:
        estimator: says how long recomputing a value takes: a registered name or an instance. What a plan takes is its
            price by `costmodels.RecomputeTime`.
    """

    name: ClassVar[str] = "no-worse"
    counts_arithmetic: ClassVar[bool] = True
    begins_beyond: ClassVar[bool] = False
    """On a BERT and an MLP-Mixer at three budgets, no search from there ended best, and they took most of the time."""

    estimator: str | Estimator = DEFAULT_ESTIMATOR

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name is refused where it is typed

    @property
    def terms(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's unit
        """What the entries of a score are."""
        return *Traffic.terms, f"recompute_{find_estimator(self.estimator).unit}"

    @property
    def adds_up(self) -> bool:
        """Whether scores add up: the limits are those of the whole model."""
        return False

    @property
    def goes_by_bytes(self) -> bool:
        """Whether a score asks of the kernels only how many there are, and how many bytes each moves."""
        return True

    def with_limits_of(self, start: Score) -> Objective:
        """Limits kernels and recompute time to those of the given plan."""
        return _Limited(self.estimator, start[1], start[3])

    def starts(self, graph: Graph, limit_bytes: int) -> Mapping[str, BoolArray]:
        """Finds plans that recompute little within a budget of saved bytes, by the names of their solvers."""
        problem = replace(self._timed(graph), budget_bytes=limit_bytes)
        found: dict[str, BoolArray] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start need not be near the optimum
            for solver in (DEFAULT_BUDGET_SOLVER, QUICK_BUDGET_SOLVER):
                plan = solve(problem, solver, throw=False).plan
                if plan is not None:
                    found[solver] = graph.for_all_values(Choice.from_plan(problem, plan).saved)
        return found

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        """Scores by the bytes of all kernels, how many there are, saved bytes, and recompute time."""
        moved, time = Traffic().cost(graph), self._time(graph)
        return lambda launches, state: (*moved(launches, state), time(state))

    def _time(self, graph: Graph) -> Callable[[State], int]:
        again = graph.for_all_values(self._timed(graph).recompute_cost)
        return lambda state: int(again[state.choice.recomputed].sum())

    def _timed(self, graph: Graph) -> Problem:
        model: Any = costmodel_class(DEFAULT_TIME_MODEL)
        return model(self.estimator).pose(graph)


@dataclass(frozen=True)
class _Limited(NoWorse):
    """The objective with the limits that follow from the given plan."""

    most_kernels: int = 0
    most_recompute: int = 0

    def violation(self, score: Score) -> int:
        """Counts what is beyond the limits: kernels, and time."""
        return max(0, score[1] - self.most_kernels) + max(0, score[3] - self.most_recompute)

    def violation_bound(self, graph: Graph) -> Callable[[State], int]:
        """Counts the time beyond the limit."""
        time = self._time(graph)
        return lambda state: max(0, time(state) - self.most_recompute)
