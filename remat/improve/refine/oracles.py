"""Defines who says how good a choice is: the predictor, or what `named_oracles` finds by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from remat.answer.choice import Choice
from remat.facts.graph import Graph
from remat.improve.refine.objectives import Objective, Score, Scorer
from remat.improve.refine.states import State

BatchScorer: TypeAlias = Callable[[Sequence[State]], list[Score]]
"""Scores some choices of one graph. Scores of one call are comparable with each other."""


class Oracle(ABC):
    """Has the last word about a choice. The search itself asks the predictor about every candidate.

    Attributes:
        name: what users type.
        asked_in_search: it is asked about every move that the predictor likes, too.
    """

    name: ClassVar[str]
    asked_in_search: ClassVar[bool] = False

    def terms(self, objective: Objective) -> tuple[str, ...]:
        """Names the entries of a score.

        Raises:
            InvalidOption: this oracle knows nothing about such an objective.
        """
        return objective.terms

    @abstractmethod
    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Returns its opinion about choices of one graph.

        What does not depend on the choice is done once, and so is what takes long about a choice that is asked about
        again.
        """


class Model(Oracle):
    """Takes the word of the prediction."""

    name: ClassVar[str] = "model"

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Scores by the objective's own prediction, each choice once."""
        return each_once(objective.scorer(graph))


def each_once(scorer: Scorer) -> BatchScorer:
    """Makes an opinion of a scorer, which is asked about each choice once."""
    known: dict[Choice, Score] = {}

    def scores(states: Sequence[State]) -> list[Score]:
        for state in states:
            if state.choice not in known:
                known[state.choice] = scorer(state)
        return [known[state.choice] for state in states]

    return scores
