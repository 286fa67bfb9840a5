"""Prices both decisions by time: what saving a value moves, and what recomputing it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from costmodels.recompute_time import RecomputeTime
from remat.plugin import CostModel, Graph, Terms
from remat.predict.time import DeviceProfile, Roofline
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import DEFAULT_DEVICE
from remat.predict.time.work import whole_prices


@dataclass(frozen=True)
class StepTime(CostModel):
    """Prices a plan by what it adds to the time of a step, in nanoseconds on one device.

    It combines two prices. Saving a value v costs what it moves at the bandwidth that the device reaches (paper,
    Algorithm 2): its read, B(v), and as much for its write unless v is in memory anyway. Parameters are free.
    Recomputing a value costs its time in `RecomputeTime` with the roofline model. The optimum is one minimum cut
    without a budget, with a proof: it recomputes exactly what is faster to recompute than to write and read. The prices
    add up, but kernels do not: a recomputed value may split a kernel in two, and two recomputed values may share one
    read. docs/costmodels.md compares with predicted kernels.

    Attributes:
        device: a known name (`remat device --list`), a file, "here" (the profile that `remat device` measured), or a
            `remat.predict.time.DeviceProfile`.
    """

    name: ClassVar[str] = "step-time"
    unit: ClassVar[str] = "ns"

    device: str | Path | DeviceProfile = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        find_device(self.device)  # an unknown name raises here, where the user typed it

    def data(self) -> str:
        """Returns the figures of the device as text, not the name of the file that holds them."""
        return repr(find_device(self.device))

    def terms(self, graph: Graph) -> Terms:
        """Adds the price of saving to the terms of `RecomputeTime`."""
        seconds = np.where(graph.parameter, 0, graph.save_traffic) / find_device(self.device).reached_bytes_per_s
        save = whole_prices("StepTime", 1e9 * seconds)
        return replace(RecomputeTime(Roofline(self.device)).terms(graph), save_cost=save)
