"""What a refinement lowers. Each objective is a small class that makes a scoring function for one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from remat.errors import InvalidOption
from remat.facts.columns import is_whole
from remat.facts.graph import Graph
from remat.improve.refine.states import State
from remat.predict.memory import Simulator
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import DEFAULT_DEVICE, flops_per_s
from remat.predict.time.work import flops_with_elements

Score: TypeAlias = tuple[int, ...]
"""Compared from left to right; less is better. The last entry is saved bytes."""

Scorer: TypeAlias = Callable[[State], Score]


class Launch(NamedTuple):
    """What an objective asks of a kernel, whoever knows it: the predictor, or a compiler.

    Attributes:
        values: positions in the graph of what it computes.
        bytes: what it reads and writes.
    """

    values: Sequence[int]
    bytes: int


class Objective(ABC):
    """What is to be low. Implementations are frozen dataclasses: fields are options.

    Attributes:
        name: what users type.
        terms: what the entries of a score are, with units.
        counts_arithmetic: whether computing something again costs anything.
    """

    name: ClassVar[str]
    terms: ClassVar[tuple[str, ...]]
    counts_arithmetic: ClassVar[bool] = False

    @property
    def adds_up(self) -> bool:
        """Over the layers of a model, so that what helps in a few of equal layers helps in all."""
        return True

    def excess(self, score: Score) -> int:
        """By how much a score breaks a limit of the objective: such a plan is no answer."""
        del score
        return 0

    @abstractmethod
    def scorer(self, graph: Graph) -> Scorer:
        """Scores choices of one graph by prediction; what does not depend on the choice is read once."""


class KernelObjective(Objective):
    """An objective that is a function of the kernels of both passes."""

    def scorer(self, graph: Graph) -> Scorer:
        """By the kernels that `remat.predict.kernels` predicts."""
        from remat.predict.kernels import Fuser

        fuser, cost = Fuser(graph), self.cost(graph)

        def score(state: State) -> Score:
            kernels = fuser.kernels(state.choice.saved)
            launches = [Launch(kernel.values, kernel.read_bytes + kernel.written_bytes) for kernel in kernels]
            return *cost(launches), state.saved_bytes

        return score

    @abstractmethod
    def cost(self, graph: Graph) -> Callable[[Sequence[Launch]], Score]:
        """The score of some kernels, but for the saved bytes."""


@dataclass(frozen=True)
class Traffic(KernelObjective):
    """Bytes that the kernels of both passes read and write; of equals, the fewest kernels.

    Attributes:
        most_kernels: how many the answer may have, calls of libraries included; None for any number.
    """

    name: ClassVar[str] = "traffic"
    terms: ClassVar[tuple[str, ...]] = ("traffic_bytes", "kernels", "saved_bytes")

    most_kernels: int | None = None

    def __post_init__(self) -> None:
        most = self.most_kernels
        if most is not None and (not is_whole(most) or most < 0):
            raise InvalidOption(f"Traffic.most_kernels must be a whole number, not negative, or None, got {most!r}")

    @property
    def adds_up(self) -> bool:
        """A limit is one of the whole model."""
        return self.most_kernels is None

    def excess(self, score: Score) -> int:
        """Kernels beyond the limit."""
        return 0 if self.most_kernels is None else max(0, score[1] - self.most_kernels)

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch]], Score]:
        """Their sum, and how many there are."""
        del graph
        return lambda launches: (_bytes(launches), len(launches))


@dataclass(frozen=True)
class Time(KernelObjective):
    """A roofline: each kernel takes the longer of its arithmetic and its traffic, and a launch.

    Attributes:
        device: as for the estimator `roofline`: a known name, a file, "here", or a `DeviceProfile`.
    """

    name: ClassVar[str] = "time"
    terms: ClassVar[tuple[str, ...]] = ("time_ns", "traffic_bytes", "saved_bytes")
    counts_arithmetic: ClassVar[bool] = True

    device: str | Path | DeviceProfile = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        find_device(self.device)  # a name that nobody knows is refused where it is typed

    def cost(self, graph: Graph) -> Callable[[Sequence[Launch]], Score]:
        """Nanoseconds, rounded up, and bytes."""
        profile = find_device(self.device)
        arithmetic_ns = 1e9 * flops_with_elements(graph) / flops_per_s(graph, profile)
        ns_per_byte = 1e9 / profile.reached_bytes_per_s

        def cost(launches: Sequence[Launch]) -> Score:
            ns = sum(
                max(float(arithmetic_ns[list(launch.values)].sum()), ns_per_byte * launch.bytes) + profile.launch_ns
                for launch in launches
            )
            return int(np.ceil(ns)), _bytes(launches)

        return cost


def _bytes(launches: Sequence[Launch]) -> int:
    return sum(launch.bytes for launch in launches)


@dataclass(frozen=True)
class Peak(Objective):
    """The most bytes alive at once in either pass (`remat.predict.memory`); of equals, the fewest values recomputed."""

    name: ClassVar[str] = "peak"
    terms: ClassVar[tuple[str, ...]] = ("peak_bytes", "recomputed_values", "saved_bytes")

    @property
    def adds_up(self) -> bool:
        """No part of a model shows where its peak is."""
        return False

    def scorer(self, graph: Graph) -> Scorer:
        """By simulation."""
        simulator, free = Simulator(graph), graph.view | graph.input

        def score(state: State) -> Score:
            again = int((state.choice.recomputed & ~free).sum())
            return simulator.peak(state.choice.saved), again, state.saved_bytes

        return score


_OBJECTIVES: dict[str, type[Objective]] = {kind.name: kind for kind in (Traffic, Time, Peak)}


def find_objective(objective: str | Objective) -> Objective:
    """An instance as it is; a name as the objective of this name.

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
