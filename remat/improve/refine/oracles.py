"""Defines oracles, which say how good a choice is: the prediction, and those that `named_oracles` finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from remat.answer.choice import Choice
from remat.facts.graph import Graph
from remat.improve.refine.objectives import Objective, Score, Scorer
from remat.improve.refine.states import State

BatchScorer: TypeAlias = Callable[[Sequence[State]], list[Score]]
"""A function that scores some choices of one graph. Scores of one call can be compared with each other."""


class Oracle(ABC):
    """Has the last word about a choice. The search itself scores every candidate by prediction.

    Attributes:
        name: what users type.
        asked_in_search: whether the oracle also scores every move that the prediction likes.
    """

    name: ClassVar[str]
    asked_in_search: ClassVar[bool] = False

    def terms(self, objective: Objective) -> tuple[str, ...]:
        """Names the entries of a score.

        Raises:
            InvalidOption: this oracle cannot score such an objective.
        """
        return objective.terms

    @abstractmethod
    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Returns a function that scores choices of one graph.

        It computes once what no choice changes, and remembers what takes long to compute about a choice.
        """


class Model(Oracle):
    """Takes the prediction as the oracle."""

    name: ClassVar[str] = "model"

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Scores by the objective's own prediction, each choice once."""
        return each_once(objective.scorer(graph))


def each_once(scorer: Scorer) -> BatchScorer:
    """Makes a scorer of several choices from a scorer of one; it scores each choice once."""
    scored: dict[Choice, Score] = {}

    def scores(states: Sequence[State]) -> list[Score]:
        for state in states:
            if state.choice not in scored:
                scored[state.choice] = scorer(state)
        return [scored[state.choice] for state in states]

    return scores
