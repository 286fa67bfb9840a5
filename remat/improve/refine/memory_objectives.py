"""Defines objectives of memory, saved bytes or the peak, whose traffic may be limited by that of the caller's plan."""

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
    """Scores plans whose kernels may move a limited number of bytes, as the oracle counts them.

    Attributes:
        extra_traffic: how much more than the caller's plan the answer may move, as a fraction: 0.05 is five percent.
            None derives no limit from that plan.
        most_traffic_bytes: the limit itself; None takes the one that `extra_traffic` sets, if any.
    """

    adds_up: ClassVar[bool] = False  # a limit on traffic is one of the whole model, and so is a peak

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
    def goes_by_bytes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  # as the limit says
        """Says whether a score needs only the bytes and the number of kernels; a peak without a limit needs more."""
        return self.is_limited

    @property
    def is_limited(self) -> bool:
        return self.extra_traffic is not None or self.most_traffic_bytes is not None

    def with_limits_of(self, start: Score) -> Objective:
        if self.extra_traffic is None or self.most_traffic_bytes is not None:
            return self
        return replace(self, most_traffic_bytes=math.floor(start[1] * (1 + self.extra_traffic)))

    def violation(self, score: Score) -> int:
        return 0 if self.most_traffic_bytes is None else max(0, score[1] - self.most_traffic_bytes)


@dataclass(frozen=True)
class SavedBytes(TrafficLimited):
    """Counts saved bytes; the traffic breaks ties, and is limited by that of the caller's plan (`extra_traffic`).

    Without a limit the answer saves nothing that it can recompute.
    """

    name: ClassVar[str] = "saved"
    terms: ClassVar[tuple[str, ...]] = ("saved_bytes", "traffic_bytes", "kernels")

    extra_traffic: float | None = 0.0

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        del graph
        return lambda launches, state: (state.saved_bytes, traffic_bytes(launches), len(launches))


@dataclass(frozen=True)
class Peak(TrafficLimited):
    """Counts the most bytes alive at once, as `remat.timeline` does: in the compiled step, if the graph records calls.

    Among choices with equal peaks, the one that recomputes the fewest values is best; if traffic is limited, the one
    with the least traffic.
    """

    name: ClassVar[str] = "peak"

    @property
    def terms(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]  # as the limit says
        return "peak_bytes", "traffic_bytes" if self.is_limited else "recomputed_values", "saved_bytes"

    def scorer(self, graph: Graph) -> Scorer:
        """Scores by the peak. Kernels are predicted only if the traffic is limited."""
        if self.is_limited:
            return super().scorer(graph)
        memory, free = memory_of(graph), graph.view | graph.input

        def score(state: State) -> Score:
            again = int((state.choice.recomputed & ~free).sum())
            return memory.peak(state.choice.saved), again, state.saved_bytes

        return score

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        memory = memory_of(graph)
        return lambda launches, state: (memory.peak(state.choice.saved), traffic_bytes(launches), state.saved_bytes)
