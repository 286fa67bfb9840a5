"""Collects plans between the least memory and the least traffic, by prediction: cuts, mixtures of two, local search."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.frontier import frontier
from remat.improve.progress import OutOfTime, Progress, is_over
from remat.improve.refine.descent import Acceptance, Descent, Evaluator
from remat.improve.refine.equivalence_classes import equivalence_classes
from remat.improve.refine.moves import Neighbourhood
from remat.improve.refine.objectives import Score, Traffic
from remat.improve.refine.states import Space, State
from remat.improve.step_traffic import StepTraffic
from remat.predict.time.flops import Flops
from remat.predict.time.roofline import Roofline

_VERTICES = 40
"""The most vertices of one hull that are predicted; evenly chosen."""

_MIXED = 20
"""The most plans of the front that are joined with their neighbours; evenly chosen."""

_MIXTURES = 6
"""Places at which two neighbouring plans are joined, in either order."""

_ROUNDS = 4
"""Distance up to which the surroundings of values must be equal for them to be decided about together (`refine`)."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """Holds a legal choice, what it moves by prediction, and who proposed it."""

    state: State
    traffic_bytes: int
    source: str

    @property
    def saved_bytes(self) -> int:
        """Memory of the saved activations, each storage once."""
        return self.state.saved_bytes


class _Enough(Exception):
    """Says that a descent has predicted as many plans as it may."""


class PlanPool:
    """Predicts choices of one graph, each once, and keeps them all.

    Where a search is over (`is_over`), what would add a candidate raises `OutOfTime`, but for the first one.

    Attributes:
        space: the choices of the graph.
    """

    def __init__(self, graph: Graph, deadline_s: float | None = None, progress: Progress | None = None) -> None:
        self.space = Space(graph)
        self._deadline_s, self._progress = deadline_s, progress
        self._score = Traffic().scorer(graph)
        self._known: dict[bytes, tuple[Candidate, Score]] = {}
        self._near: Neighbourhood | None = None

    def __len__(self) -> int:
        return len(self._known)

    def add(self, saved: BoolArray, source: str) -> Candidate:
        """Completes a set of values to save to a legal choice, and predicts it."""
        return self._entry(self.space.state(saved), source)[0]

    def front(self) -> list[Candidate]:
        """Lists the candidates that no other one beats in both, from the fewest saved bytes on."""
        return pareto(candidate for candidate, _ in self._known.values())

    def within(self, budget_bytes: int) -> list[Candidate]:
        """Lists the candidates that save no more than a budget, those that move least first."""
        fitting = [candidate for candidate, _ in self._known.values() if candidate.saved_bytes <= budget_bytes]
        return sorted(fitting, key=lambda found: (found.traffic_bytes, found.saved_bytes))

    def add_hulls(self) -> None:
        """Adds the vertices of exact hulls: each is the best plan at some price of memory, by some cost model."""
        graph = self.space.graph
        hulls = (
            lambda: frontier(graph, estimator=Roofline()),
            lambda: frontier(graph, estimator=Flops()),
            lambda: frontier(graph, cost_model=StepTraffic()),
        )
        for hull in hulls:
            vertices = hull().vertices
            for i in _evenly(len(vertices), _VERTICES):
                self.add(Choice.from_plan(graph, vertices[i].plan).saved, "cut")

    def add_mixtures(self) -> None:
        """Joins neighbours on the front: one plan up to some value of the graph, and the other from there on."""
        front, position = self.front(), np.arange(len(self.space.graph))
        for fewer, more in pairwise(front[i] for i in _evenly(len(front), _MIXED)):
            few, many = fewer.state.choice.saved, more.state.choice.saved
            differ = np.flatnonzero(few != many)
            pieces = min(_MIXTURES, len(differ) - 1)
            for at in [int(differ[len(differ) * i // (pieces + 1)]) for i in range(1, pieces + 1)]:
                self.add(np.where(position < at, few, many), "mixture")
                self.add(np.where(position < at, many, few), "mixture")

    def descend(self, budget_bytes: int, effort: int, seed: int = 0) -> None:
        """Searches from the best candidate within a budget: `refine`'s moves of equal values, `effort` predictions."""
        fitting = self.within(budget_bytes)
        if not fitting or not effort:
            return
        if self._near is None:
            self._near = Neighbourhood(self.space, equivalence_classes(self.space.graph, _ROUNDS))
        most = len(self) + effort

        def score(state: State) -> Score:
            if len(self) >= most:
                raise _Enough
            return self._entry(state, "local search")[1]

        descent = Descent(Acceptance(Evaluator(score, budget_bytes)), fitting[0].state, seed)
        with suppress(_Enough):
            descent.run(self._near)

    def _entry(self, state: State, source: str) -> tuple[Candidate, Score]:
        key = state.choice.key
        if key not in self._known:
            if self._known and is_over(self._deadline_s):
                raise OutOfTime
            score = self._score(state)
            self._known[key] = Candidate(state, score[0], source), score
            if self._progress is not None:
                self._progress(len(self), (min(found.traffic_bytes for found, _ in self._known.values()),))
        return self._known[key]


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Lists the candidates that no other one beats in both, from the fewest saved bytes on."""
    found: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda one: (one.saved_bytes, one.traffic_bytes)):
        if not found or candidate.traffic_bytes < found[-1].traffic_bytes:
            found.append(candidate)
    return found


def _evenly(among: int, count: int) -> list[int]:
    chosen: list[int] = np.unique(np.linspace(0, among - 1, count).round()).astype(int).tolist()
    return chosen
