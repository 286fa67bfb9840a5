"""Defines what a refinement lowers: each objective is a class that makes a function to score the choices of one graph.

Objectives of memory are in `memory_objectives`; `named_objectives` finds an objective by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from remat.errors import InvalidOption
from remat.facts.columns import BoolArray, is_whole
from remat.facts.graph import Graph
from remat.improve.refine.states import State
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import DEFAULT_DEVICE, flops_per_s
from remat.predict.time.work import flops_with_elements

Score: TypeAlias = tuple[int, ...]
"""Scores are compared from left to right; less is better. One of the entries is saved bytes."""

Scorer: TypeAlias = Callable[[State], Score]


class Launch(NamedTuple):
    """Describes one kernel, predicted or compiled, as far as an objective needs it.

    Attributes:
        values: positions in the graph of the values that the kernel computes.
        bytes: the bytes that the kernel reads and writes.
    """

    values: Sequence[int]
    bytes: int


class Objective(ABC):
    """Defines what a refinement lowers. Implementations are frozen dataclasses, whose fields are options.

    Attributes:
        name: what users type.
        terms: the names of the entries of a score, with units.
        counts_arithmetic: whether recomputing a value costs anything besides memory traffic.
        begins_beyond: whether the search also begins at starts that save more bytes than the answer may.
        adds_up: whether scores add up over layers, so that what helps in a few of equal layers helps in all.
    """

    name: ClassVar[str]
    terms: ClassVar[tuple[str, ...]]
    counts_arithmetic: ClassVar[bool] = False
    begins_beyond: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    def with_limits_of(self, start: Score) -> Objective:
        """Returns the objective with the limits that follow from the score of the caller's plan."""
        del start
        return self

    def violation(self, score: Score) -> int:
        """Returns by how much a score breaks a limit of the objective; 0 if it is feasible."""
        del score
        return 0

    def violation_bound(self, graph: Graph) -> Callable[[State], int]:
        """Returns a function that computes a lower bound on the violation of a choice without scoring it.

        A choice with a positive bound is not scored, which saves most of the time.
        """
        del graph
        return lambda _: 0

    def starts(self, graph: Graph, limit_bytes: int) -> Mapping[str, BoolArray]:
        """Proposes starts: by name, masks (n,) of what to save.

        Args:
            graph: the whole graph, of n values.
            limit_bytes: the most bytes that the answer may save; a start may save more.
        """
        del graph, limit_bytes
        return {}

    @abstractmethod
    def scorer(self, graph: Graph) -> Scorer:
        """Returns a function that scores choices of one graph; it computes once what no choice changes."""


class KernelObjective(Objective):
    """Scores the kernels of both passes.

    Attributes:
        goes_by_bytes: whether a score needs of the kernels only their number and the bytes of each.
    """

    goes_by_bytes: ClassVar[bool] = False

    def scorer(self, graph: Graph) -> Scorer:
        """Scores by the kernels that `remat.predict.kernels` predicts."""
        from remat.predict.kernels import Fuser

        fuser, cost = Fuser(graph), self.cost(graph)

        def score(state: State) -> Score:
            kernels = fuser.kernels(state.choice.saved)
            return cost([Launch(kernel.values, kernel.bytes) for kernel in kernels], state)

        return score

    @abstractmethod
    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        """Returns a function that scores a choice by its kernels."""


@dataclass(frozen=True)
class Traffic(KernelObjective):
    """Counts the bytes that the kernels of both passes read and write; the number of kernels breaks ties.

    Attributes:
        most_kernels: how many kernels the answer may have, library calls included; None for any number.
    """

    name: ClassVar[str] = "traffic"
    terms: ClassVar[tuple[str, ...]] = ("traffic_bytes", "kernels", "saved_bytes")
    goes_by_bytes: ClassVar[bool] = True

    most_kernels: int | None = None

    def __post_init__(self) -> None:
        most = self.most_kernels
        if most is not None and (not is_whole(most) or most < 0):
            raise InvalidOption(f"Traffic.most_kernels must be a whole number, not negative, or None, got {most!r}")

    @property
    def adds_up(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  # as the limit says
        """Says whether scores add up over layers: not with a limit on the model's kernels."""
        return self.most_kernels is None

    def violation(self, score: Score) -> int:
        return 0 if self.most_kernels is None else max(0, score[1] - self.most_kernels)

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        del graph
        return lambda launches, state: (traffic_bytes(launches), len(launches), state.saved_bytes)


@dataclass(frozen=True)
class Time(KernelObjective):
    """Adds up kernel times by a roofline: the longer one of arithmetic and memory traffic, plus the time of a launch.

    Attributes:
        device: as for the estimator `roofline`: a known name, a file, "here", or a `DeviceProfile`.
    """

    name: ClassVar[str] = "time"
    terms: ClassVar[tuple[str, ...]] = ("time_ns", "traffic_bytes", "saved_bytes")
    counts_arithmetic: ClassVar[bool] = True

    device: str | Path | DeviceProfile = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        find_device(self.device)  # a name that nobody knows is refused where it is typed

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch], State], Score]:
        profile = find_device(self.device)
        arithmetic_ns = 1e9 * flops_with_elements(graph) / flops_per_s(graph, profile)
        ns_per_byte = 1e9 / profile.reached_bytes_per_s

        def cost(launches: Sequence[Launch], state: State) -> Score:
            ns = sum(
                max(float(arithmetic_ns[list(launch.values)].sum()), ns_per_byte * launch.bytes) + profile.launch_ns
                for launch in launches
            )
            return int(np.ceil(ns)), traffic_bytes(launches), state.saved_bytes

        return cost


def traffic_bytes(launches: Sequence[Launch]) -> int:
    return sum(launch.bytes for launch in launches)
