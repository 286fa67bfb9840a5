"""Defines who says how good a choice is: the predictor, TorchInductor, or a clock.

The latter two need torch and are imported when they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import ClassVar, TypeAlias

from remat.errors import InvalidOption, NotInstalled
from remat.facts.graph import Graph
from remat.improve.refine.objectives import Objective, Score
from remat.improve.refine.states import State

Opinion: TypeAlias = Callable[[Sequence[State]], list[Score]]
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
    def on(self, graph: Graph, objective: Objective) -> Opinion:
        """Returns its opinion about choices of one graph; what does not depend on the choice is done once."""


class Model(Oracle):
    """Takes the word of the prediction."""

    name: ClassVar[str] = "model"

    def on(self, graph: Graph, objective: Objective) -> Opinion:
        """Scores by the objective's own prediction."""
        score = objective.scorer(graph)
        return lambda states: [score(state) for state in states]


def find_oracle(oracle: str | Oracle) -> Oracle:
    """Returns an instance as it is, and a name as the oracle of this name.

    Raises:
        InvalidOption: there is none of this name.
        NotInstalled: it needs torch.
    """
    if isinstance(oracle, Oracle):
        return oracle
    if oracle == Model.name:
        return Model()
    if oracle not in ("inductor", "device"):
        raise InvalidOption(f"oracle must be one of model, inductor, device, got {oracle!r}")
    if find_spec("torch") is None:
        raise NotInstalled(f'oracle="{oracle}" needs torch: pip install \'remat[torch]\' (or take oracle="model")')
    from remat.pytorch.measure.torch_oracles import Device, Inductor

    return Inductor() if oracle == Inductor.name else Device()
