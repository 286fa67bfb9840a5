"""Predicts the time and the peak of training steps of one graph on one device, each plan once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.for_device import for_device
from remat.predict.buffers import ALONE, Exchanged, StepMemory, records_calls
from remat.predict.kernels import Kernel, backend_for
from remat.predict.memory import Timeline
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import ALIASES, KNOWN, device_called, find_device
from remat.predict.time.modelled_step import KernelClock
from remat.predict.time.roofline import DEFAULT_DEVICE
from remat.problem.costmodel import GRAPHS_OWN, CostModel

# The kernels of so many plans are stored: a search comes back to the plans that it improves. Those of a GPT-2 of 12
# layers take 0.3 MB, those of a U-Net of 12,000 values 2 MB.
_RECENT = 32


class StepPredictor:
    """Predicts the steps of one graph on one device, each plan once.

    Attributes:
        graph: the joint graph; its device says whose kernels are predicted.
        device: the rates by which kernels are timed.
        exchanged: which results and tangents other graphs take over.
    """

    def __init__(self, graph: Graph, device: DeviceProfile, exchanged: Exchanged = ALONE) -> None:
        self.graph, self.device, self.exchanged = graph, device, exchanged
        self._memory = StepMemory(graph, exchanged=exchanged)
        self._clock = KernelClock(graph, device)
        self._ns: dict[bytes, float] = {}
        self._peaks: dict[bytes, int] = {}
        self._recent = OrderedDict[bytes, tuple[tuple[Kernel, ...], Timeline | None]]()

    @classmethod
    def of(
        cls, graph: Graph, device: DeviceProfile, kind: str | None = None, exchanged: Exchanged = ALONE
    ) -> StepPredictor:
        """Returns the predictor of a graph and a device, which remembers what it predicted before.

        Args:
            graph: captured on any device.
            device: the rates by which kernels are timed.
            kind: the name of a device that has the same kernels; None for the device of the graph.
            exchanged: which results and tangents other graphs take over.
        """
        predictors, key = graph.derived(_predictors), (repr(device), kind, exchanged)
        if key not in predictors:
            predictors[key] = cls(for_device(graph, kind), device, exchanged)
        return predictors[key]

    def ns(self, saved: BoolArray) -> float:
        """Models the time in nanoseconds of the step that saves these values, a mask (n,) over the graph."""
        key = np.packbits(saved).tobytes()
        if key not in self._ns:
            self._ns[key] = self.ns_of(self.kernels(saved))
        return self._ns[key]

    def ns_of(self, kernels: Sequence[Kernel]) -> float:
        """Models the time of kernels in nanoseconds."""
        return self._clock.time(kernels).ns

    def kernels(self, saved: BoolArray) -> tuple[Kernel, ...]:
        """Predicts the kernels of the step that saves these values."""
        key = np.packbits(saved).tobytes()
        kernels, timeline = self._recent.pop(key, None) or (self._memory.kernels(saved), None)
        self._store(key, kernels, timeline)
        return kernels

    def peak(self, saved: BoolArray) -> int:
        """Predicts the most bytes alive in the step that saves these values, and stores the step's time for `ns`."""
        key = np.packbits(saved).tobytes()
        if key not in self._peaks:
            self._peaks[key] = self.timeline(saved).peak_bytes
        return self._peaks[key]

    def timeline(self, saved: BoolArray) -> Timeline:
        """Predicts the live bytes of the step that saves these values, and stores the step's time for `ns`."""
        key = np.packbits(saved).tobytes()
        kernels, timeline = self._recent.pop(key, (None, None))
        if kernels is None or timeline is None:
            kernels, timeline = self._memory.kernels_and_timeline(saved)
            self._ns[key] = self.ns_of(kernels)
        self._store(key, kernels, timeline)
        return timeline

    def _store(self, key: bytes, kernels: tuple[Kernel, ...], timeline: Timeline | None) -> None:
        self._recent[key] = kernels, timeline
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)


def predictor_for(graph: Graph, cost_model: CostModel, exchanged: Exchanged = ALONE) -> StepPredictor | None:
    """Returns the predictor of a graph's steps on the device of a cost model; None if plans are ranked by price.

    The predictor's graph has the kernels of that device. For a graph that does not record its calls there is none.
    """
    return predictor_on(graph, cost_model.step_device, exchanged)


def predictor_on(graph: Graph, device: object = GRAPHS_OWN, exchanged: Exchanged = ALONE) -> StepPredictor | None:
    """Returns the predictor of a graph's steps on a device as `CostModel.step_device` names it; None if none."""
    if device is None or not records_calls(graph):
        return None
    kind = None
    if device == GRAPHS_OWN:
        is_cpu = backend_for(graph, None).name == "cpu"
        device = "cpu" if is_cpu else device_called(graph.meta.get("gpu", "")) or DEFAULT_DEVICE
    elif isinstance(device, str) and device in (*KNOWN, *ALIASES):
        kind = device
    assert isinstance(device, str | Path | DeviceProfile)  # `CostModel.step_device` says so
    return StepPredictor.of(graph, find_device(device), kind, exchanged)


def _predictors(_graph: Graph) -> dict[tuple[str, str | None, Exchanged], StepPredictor]:
    return {}
