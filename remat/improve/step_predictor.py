"""Predicts the time and the peak of training steps of one graph on one device, each plan once."""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.for_device import for_device
from remat.predict.buffers import StepMemory
from remat.predict.time.device import DeviceProfile
from remat.predict.time.modelled_step import KernelClock


class StepPredictor:
    """Predicts the steps of one graph on one device, each plan once.

    Attributes:
        graph: the joint graph; its device says whose kernels are predicted.
        device: the ceilings by which kernels are timed.
    """

    def __init__(self, graph: Graph, device: DeviceProfile) -> None:
        self.graph, self.device = graph, device
        self._memory, self._clock = StepMemory(graph), KernelClock(graph, device)
        self._ns: dict[bytes, float] = {}
        self._peaks: dict[bytes, int] = {}

    @classmethod
    def of(cls, graph: Graph, device: DeviceProfile, kind: str | None = None) -> StepPredictor:
        """Returns the predictor of a graph and a device, which remembers what it predicted before.

        Args:
            graph: captured on any device.
            device: the ceilings.
            kind: the name of a device that has the same kernels; None for the device of the graph.
        """
        predictors, key = graph.derived(_predictors), (repr(device), kind)
        if key not in predictors:
            predictors[key] = cls(for_device(graph, kind), device)
        return predictors[key]

    def ns(self, saved: BoolArray) -> float:
        """Models the time of the step that saves these values, (n,) of the graph, in nanoseconds."""
        key = np.packbits(saved).tobytes()
        if key not in self._ns:
            self._ns[key] = self._clock.time(self._memory.kernels(saved)).ns
        return self._ns[key]

    def peak(self, saved: BoolArray) -> int:
        """Predicts the most bytes alive in the step that saves these values, and notes its time."""
        key = np.packbits(saved).tobytes()
        if key not in self._peaks:
            kernels, self._peaks[key] = self._memory.kernels_and_peak(saved)
            self._ns[key] = self._clock.time(kernels).ns
        return self._peaks[key]


def _predictors(_graph: Graph) -> dict[tuple[str, str | None], StepPredictor]:
    return {}
