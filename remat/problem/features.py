"""Lists the features of problems that not every solver, file format or search supports."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from remat.errors import UnsupportedProblem

if TYPE_CHECKING:
    from remat.problem.problem import Problem


class Feature(Enum):
    """Lists what a problem or a caller may require of a solver. The value of each member names it in messages."""

    BUDGET = "a byte budget"
    OFFLOAD = "offloading"
    TIME_LIMIT = "a time limit"
    TIED = "tied values"
    ROWS = "budgets of some values"


ONE_BUDGET = frozenset({Feature.BUDGET, Feature.OFFLOAD})
"""The features that a search supports if it knows only one budget, that of all values."""


def features_of(problem: Problem) -> tuple[Feature, ...]:
    needs = {
        Feature.BUDGET: problem.budget_bytes is not None,
        Feature.OFFLOAD: problem.offload is not None,
        Feature.TIED: problem.tied is not None,
        Feature.ROWS: bool(problem.rows),
    }
    return tuple(feature for feature, needed in needs.items() if needed)


def check_features(
    features: Iterable[Feature], who: str, supported: Collection[Feature] = (), advice: str = ""
) -> None:
    """Raises an `UnsupportedProblem` for an unsupported feature; the message begins with `who`, ends with `advice`."""
    for feature in features:
        if feature not in supported:
            raise UnsupportedProblem(f"{who} does not support {feature.value}{advice}")
