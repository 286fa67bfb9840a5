"""Finds the objectives that users name."""

from __future__ import annotations

from remat.errors import InvalidOption
from remat.improve.refine.memory_objectives import Peak, SavedBytes
from remat.improve.refine.objectives import Objective, Time, Traffic

_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Traffic, Time, Peak, SavedBytes)}


def find_objective(objective: str | Objective) -> Objective:
    """Returns an instance as it is, and a name as the objective of this name.

    Raises:
        InvalidOption: there is none of this name.
    """
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str) or objective not in _OBJECTIVES:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"objective must be one of {', '.join(_OBJECTIVES)}, or an instance of "
            f"remat.improve.refine.Objective, got {objective!r}"
        )
    return _OBJECTIVES[objective]()
