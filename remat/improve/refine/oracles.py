"""Defines oracles, which decide in the end how good a plan is. Two of them need torch: `torch_oracles`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import ClassVar, TypeAlias

from remat.answer.choice import Choice
from remat.errors import InvalidOption, NotInstalled
from remat.facts.graph import Graph
from remat.improve.refine.objectives import Objective, Score, Scorer
from remat.improve.refine.states import State
from remat.words import near, pip_install

BatchScorer: TypeAlias = Callable[[Sequence[State]], list[Score]]
"""A function that scores some choices of one graph. Scores of one call can be compared with each other."""


class Oracle(ABC):
    """Decides which of the best plans is taken. The search itself scores every candidate by prediction.

    Attributes:
        name: what users type.
        asked_in_search: whether the oracle also scores every move that the prediction likes.
    """

    name: ClassVar[str]
    asked_in_search: ClassVar[bool] = False

    def terms(self, objective: Objective) -> tuple[str, ...]:
        """Returns the names of a score's terms.

        Raises:
            InvalidOption: this oracle cannot score `objective`.
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


_NAMES = (Model.name, "inductor", "device")


def find_oracle(oracle: str | Oracle, device: str | None = None) -> Oracle:
    """Returns the oracle of a name; an instance is returned as it is.

    Args:
        oracle: a name or an instance.
        device: the device whose kernels Inductor is to schedule; None takes that of the graph.

    Raises:
        InvalidOption: no oracle has this name.
        NotInstalled: the oracle needs torch, which is missing.
    """
    if isinstance(oracle, Oracle):
        return oracle
    if oracle == Model.name:
        return Model()
    if oracle not in _NAMES:
        hint = near(str(oracle), _NAMES)
        raise InvalidOption(f"oracle must be one of {', '.join(_NAMES)}, got {oracle!r}{hint}")
    if find_spec("torch") is None:
        raise NotInstalled(f"the oracle {oracle!r} needs torch (or take 'model'): {pip_install('torch')}")
    from remat.pytorch.measure.torch_oracles import Device, Inductor

    return Inductor(device) if oracle == Inductor.name else Device()
