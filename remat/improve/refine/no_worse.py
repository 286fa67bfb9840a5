"""Defines an objective for plans that are no worse than the caller's plan in any of four counts."""

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
    """Counts traffic, of plans that have no more kernels than the caller's plan and recompute no longer.

    Like every answer of `remat.refine`, they also save no more bytes, unless `extra_bytes` allows it. So the answer is
    no worse than the caller's plan in any of four: bytes moved, kernels, saved bytes, recompute time. The search also
    begins at plans of `portfolio` and `lagrangian` that recompute little and save no more bytes.

    Attributes:
        estimator: estimates recompute time: a registered name or an instance. The recompute time of a plan is its cost
            by `costmodels.RecomputeTime`.
    """

    name: ClassVar[str] = "no-worse"
    counts_arithmetic: ClassVar[bool] = True
    goes_by_bytes: ClassVar[bool] = True
    adds_up: ClassVar[bool] = False  # the limits are those of the whole model
    # On a BERT and an MLP-Mixer at three budgets, no search from there ended best, and they took most of the time.
    begins_beyond: ClassVar[bool] = False

    estimator: str | Estimator = DEFAULT_ESTIMATOR

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name is refused where it is typed

    @property
    def terms(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's unit
        """Returns the names of the entries of a score; the last one has the unit of the estimator."""
        return *Traffic.terms, f"recompute_{find_estimator(self.estimator).unit}"

    def with_limits_of(self, start: Score) -> Objective:
        return _Limited(self.estimator, start[1], start[3])

    def starts(self, graph: Graph, limit_bytes: int) -> Mapping[str, BoolArray]:
        """Proposes plans that recompute little within a budget of saved bytes, by the names of their solvers."""
        problem = replace(self._timed(graph), budget_bytes=limit_bytes)
        starts: dict[str, BoolArray] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start need not be near the optimum
            for solver in (DEFAULT_BUDGET_SOLVER, QUICK_BUDGET_SOLVER):
                plan = solve(problem, solver, throw=False).plan
                if plan is not None:
                    starts[solver] = graph.for_all_values(Choice.from_plan(problem, plan).saved)
        return starts

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        moved, time = Traffic().cost(graph), self._time(graph)
        return lambda launches, state: (*moved(launches, state), time(state))

    def _time(self, graph: Graph) -> Callable[[State], int]:
        cost = graph.for_all_values(self._timed(graph).recompute_cost)
        return lambda state: int(cost[state.choice.recomputed].sum())

    def _timed(self, graph: Graph) -> Problem:
        model: Any = costmodel_class(DEFAULT_TIME_MODEL)
        return model(self.estimator).pose(graph)


@dataclass(frozen=True)
class _Limited(NoWorse):
    most_kernels: int = 0
    most_recompute: int = 0

    def violation(self, score: Score) -> int:
        return max(0, score[1] - self.most_kernels) + max(0, score[3] - self.most_recompute)

    def violation_bound(self, graph: Graph) -> Callable[[State], int]:
        time = self._time(graph)
        return lambda state: max(0, time(state) - self.most_recompute)
