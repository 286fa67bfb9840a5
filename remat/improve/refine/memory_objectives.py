"""Objectives of memory: the least saved bytes, or the lowest peak, where traffic is limited by the given plan's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat.errors import InvalidOption
from remat.facts.columns import is_whole
from remat.facts.graph import Graph
from remat.improve.refine.objectives import KernelObjective, Launch, Objective, Score, Scorer, traffic_bytes
from remat.improve.refine.states import State
from remat.predict.buffers import memory_of


@dataclass(frozen=True)
class TrafficLimited(KernelObjective):
    """Lowers something of plans whose kernels move up to a limit of bytes, by whoever counts them.

    Attributes:
        extra_traffic: how much more than the given plan the answer may move, as a fraction: 0.05 is five percent. None
            for no limit.
        most_traffic_bytes: the limit itself; None for the one that follows from the given plan.
    """

    extra_traffic: float | None = None
    most_traffic_bytes: int | None = None

    def __post_init__(self) -> None:
        extra, most, me = self.extra_traffic, self.most_traffic_bytes, type(self).__name__
        number = isinstance(extra, int | float | np.number) and not isinstance(extra, bool)
        if extra is not None and not (number and 0 <= extra < math.inf):
            raise InvalidOption(f"{me}.extra_traffic must be a number, not negative, or None, got {extra!r}")
        if most is not None and (not is_whole(most) or most < 0):
            raise InvalidOption(f"{me}.most_traffic_bytes must be a whole number, not negative, or None, got {most!r}")

    @property
    def adds_up(self) -> bool:
        """Whether scores add up: a limit on traffic is one of the whole model."""
        return False

    @property
    def goes_by_bytes(self) -> bool:
        """Whether a score asks of the kernels only how many there are, and how many bytes each moves."""
        return self.is_limited

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit on traffic."""
        return self.extra_traffic is not None or self.most_traffic_bytes is not None

    def with_limits_of(self, start: Score) -> Objective:
        """Limits the traffic to that of the given plan, and what is allowed beyond it."""
        if self.extra_traffic is None or self.most_traffic_bytes is not None:
            return self
        return replace(self, most_traffic_bytes=math.floor(start[1] * (1 + self.extra_traffic)))

    def violation(self, score: Score) -> int:
        """Counts the bytes moved beyond the limit."""
        return 0 if self.most_traffic_bytes is None else max(0, score[1] - self.most_traffic_bytes)


@dataclass(frozen=True)
class SavedBytes(TrafficLimited):
    """Counts saved bytes, of plans that move no more than the given one, or little more; of equals, the traffic.

    Without a limit the answer saves nothing that it can recompute.
    """

    name: ClassVar[str] = "saved"
    terms: ClassVar[tuple[str, ...]] = ("saved_bytes", "traffic_bytes", "kernels")

    extra_traffic: float | None = 0.0

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        """Scores by saved bytes, the bytes of all kernels, and how many kernels there are."""
        del graph
        return lambda launches, state: (state.saved_bytes, traffic_bytes(launches), len(launches))


@dataclass(frozen=True)
class Peak(TrafficLimited):
    """Counts the most bytes alive at once: of the compiled step, if the graph knows its calls, as `remat.timeline`.

    Of equals, the fewest values recomputed; where traffic is limited, the least traffic.
    """

    name: ClassVar[str] = "peak"

    @property
    def terms(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  # as the limit says
        """What the entries of a score are."""
        return "peak_bytes", "traffic_bytes" if self.is_limited else "recomputed_values", "saved_bytes"

    def scorer(self, graph: Graph) -> Scorer:
        """Scores by the peak alone; what kernels move is counted only where that is limited."""
        if self.is_limited:
            return super().scorer(graph)
        memory, free = memory_of(graph), graph.view | graph.input

        def score(state: State) -> Score:
            again = int((state.choice.recomputed & ~free).sum())
            return memory.peak(state.choice.saved), again, state.saved_bytes

        return score

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        """Scores by the peak, and the bytes of all kernels."""
        memory = memory_of(graph)
        return lambda launches, state: (
            memory.peak(state.choice.saved),
            traffic_bytes(launches),
            state.saved_bytes,
        )
