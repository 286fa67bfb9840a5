"""Finds the objectives that users name."""

from __future__ import annotations

from remat.answer.option_text import from_options, split_options
from remat.errors import InvalidOption
from remat.improve.refine.memory_objectives import Peak, SavedBytes
from remat.improve.refine.no_worse import NoWorse
from remat.improve.refine.objectives import Objective, Time, Traffic
from remat.words import near

OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Traffic, Time, Peak, SavedBytes, NoWorse)}


def find_objective(objective: str | Objective) -> Objective:
    """Returns an instance as it is, and a name, with the options that follow a colon, as the objective of this name.

    >>> find_objective("saved:extra_traffic=0.05")
    SavedBytes(extra_traffic=0.05, most_traffic_bytes=None)

    Raises:
        InvalidOption: there is none of this name, or it has no such option.
    """
    if isinstance(objective, Objective):
        return objective
    name, options = split_options(objective) if isinstance(objective, str) else ("", [])  # pyright: ignore[reportUnnecessaryIsInstance]
    if name not in OBJECTIVES:
        raise InvalidOption(
            f"objective must be one of {', '.join(OBJECTIVES)}, or an instance of "
            f"remat.improve.refine.Objective, got {objective!r}{near(name, OBJECTIVES)}"
        )
    return from_options(OBJECTIVES[name], options)
