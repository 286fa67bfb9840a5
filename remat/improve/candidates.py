"""Collects candidate plans between the least memory and the least traffic, all scored by prediction."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.frontier import frontier
from remat.improve.pareto_front import pareto_front
from remat.improve.progress import OutOfTime, Progress, is_over
from remat.improve.refine.descent import Acceptance, Descent, Evaluator
from remat.improve.refine.equivalence_classes import equivalence_classes
from remat.improve.refine.moves import Neighbourhood
from remat.improve.refine.objectives import Score, Traffic
from remat.improve.refine.states import Space, State
from remat.improve.step_traffic import StepTraffic
from remat.predict.time.flops import Flops
from remat.predict.time.roofline import Roofline

# At most so many vertices of each hull are predicted, evenly chosen.
_VERTICES = 40
# At most so many plans of the front are joined with their neighbours, evenly chosen.
_MIXED = 20
# Two neighbours are joined at so many positions of the graph, and in either order.
_MIXTURES = 6
# Values are decided about together if their surroundings are equal up to this distance, as in `refine`.
_ROUNDS = 4


@dataclass(frozen=True, eq=False)
class Candidate:
    """Holds a legal choice, the bytes that its kernels move by prediction, and the name of what proposed it."""

    state: State
    traffic_bytes: int
    source: str

    @property
    def saved_bytes(self) -> int:
        """Returns the memory of the saved activations, each storage once."""
        return self.state.saved_bytes

    def costs(self) -> tuple[int, int]:
        """Returns (saved bytes, bytes moved)."""
        return self.saved_bytes, self.traffic_bytes


class _Enough(Exception):
    """Stops a descent that has predicted as many plans as it may."""


class PlanPool:
    """Predicts choices of one graph, each once, and keeps all of them as candidates.

    When the search is over (`is_over`), methods that would predict another choice raise `OutOfTime`. The first choice
    is always predicted, so that there is an answer.

    Attributes:
        space: all legal choices of the graph.
    """

    def __init__(self, graph: Graph, deadline_s: float | None = None, progress: Progress | None = None) -> None:
        self.space = Space(graph)
        self._deadline_s, self._progress = deadline_s, progress
        self._score = Traffic().scorer(graph)
        self._candidates: dict[bytes, tuple[Candidate, Score]] = {}
        self._neighbourhood: Neighbourhood | None = None

    def __len__(self) -> int:
        return len(self._candidates)

    def add(self, saved: BoolArray, source: str) -> Candidate:
        """Completes a set of values to save, (n,), to a legal choice, and predicts what it moves."""
        return self._entry(self.space.state(saved), source)[0]

    def front(self) -> list[Candidate]:
        """Lists the Pareto front of the candidates, from the fewest saved bytes to the least traffic."""
        return pareto_front((candidate for candidate, _ in self._candidates.values()), key=Candidate.costs)

    def within(self, budget_bytes: int) -> list[Candidate]:
        """Lists the candidates that save no more than a budget, those that move least first."""
        fitting = [candidate for candidate, _ in self._candidates.values() if candidate.saved_bytes <= budget_bytes]
        return sorted(fitting, key=lambda one: (one.traffic_bytes, one.saved_bytes))

    def add_hulls(self) -> None:
        """Adds vertices of three exact convex hulls: each is optimal for some Lagrange multiplier on memory."""
        graph = self.space.graph
        costs: list[dict[str, Any]] = [{"estimator": Roofline()}, {"estimator": Flops()}, {"cost_model": StepTraffic()}]
        for options in costs:
            vertices = frontier(graph, **options).vertices
            for i in _evenly(len(vertices), _VERTICES):
                self.add(Choice.from_plan(graph, vertices[i].plan).saved, "cut")

    def add_mixtures(self) -> None:
        """Joins neighbours on the front: a mixture follows one plan up to some value, and the other from there on."""
        front, position = self.front(), np.arange(len(self.space.graph))
        for fewer, more in pairwise(front[i] for i in _evenly(len(front), _MIXED)):
            fewer_saved, more_saved = fewer.state.choice.saved, more.state.choice.saved
            differences = np.flatnonzero(fewer_saved != more_saved)
            pieces = min(_MIXTURES, len(differences) - 1)
            for boundary in [int(differences[len(differences) * i // (pieces + 1)]) for i in range(1, pieces + 1)]:
                self.add(np.where(position < boundary, fewer_saved, more_saved), "mixture")
                self.add(np.where(position < boundary, more_saved, fewer_saved), "mixture")

    def descend(self, budget_bytes: int, effort: int, seed: int = 0) -> None:
        """Searches locally, from the best candidate within a budget.

        Args:
            budget_bytes: the most bytes that a plan may save.
            effort: how many plans to predict at most.
            seed: decides in which order equal moves are tried.
        """
        candidates = self.within(budget_bytes)
        if not candidates or not effort:
            return
        if self._neighbourhood is None:
            self._neighbourhood = Neighbourhood(self.space, equivalence_classes(self.space.graph, _ROUNDS))
        limit = len(self) + effort

        def score(state: State) -> Score:
            if len(self) >= limit:
                raise _Enough
            return self._entry(state, "local search")[1]

        descent = Descent(Acceptance(Evaluator(score, budget_bytes)), candidates[0].state, seed)
        with suppress(_Enough):
            descent.run(self._neighbourhood)

    def _entry(self, state: State, source: str) -> tuple[Candidate, Score]:
        key = state.choice.key
        if key not in self._candidates:
            if self._candidates and is_over(self._deadline_s):
                raise OutOfTime
            score = self._score(state)
            self._candidates[key] = Candidate(state, score[0], source), score
            if self._progress is not None:
                self._progress(len(self), (min(candidate.traffic_bytes for candidate, _ in self._candidates.values()),))
        return self._candidates[key]


def _evenly(among: int, count: int) -> list[int]:
    chosen: list[int] = np.unique(np.linspace(0, among - 1, count).round()).astype(int).tolist()
    return chosen
