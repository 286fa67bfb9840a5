"""Estimates recompute time by flops and bytes, against the ceilings of a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from remat.facts.columns import IntArray
from remat.facts.graph import Graph
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator

DEFAULT_DEVICE = "a100"
"""A constant, never the machine at hand: the same call gives the same answer everywhere."""


@dataclass(frozen=True)
class Roofline(Estimator):
    """Prices by the roofline model: an operator takes the longer of its arithmetic and its memory traffic.

    A value that fuses joins a kernel of the backward pass. It pays for reading what does not fuse with it
    (or for its arithmetic, where that takes longer), but for no launch and no write; reads that the kernel
    would do anyway, or that two recomputed values share, are not known here and count in full. Any other
    value is a kernel of its own: all its arguments, each storage once, its result, and one launch.

    Matrix products and the like run at the ceiling of their element type, everything else at that of
    float32 (float64 at its own), since compilers compute halves in float32.

    Attributes:
        device: a known name (`remat device --list`), a file, "here" (what `remat device` measured on
            this machine), or a `remat.predict.time.DeviceProfile`.
    """

    name: ClassVar[str] = "roofline"
    unit: ClassVar[str] = "ns"

    device: str | Path | DeviceProfile = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        find_device(self.device)  # a name that nobody knows is refused where it is typed

    def recompute_cost(self, graph: Graph) -> IntArray:
        """Returns nanoseconds on the device, rounded up: (n,)."""
        profile, work = find_device(self.device), Work.of(graph)
        compute_s = work.flops / flops_per_s(graph, profile)
        memory_s = (work.read_bytes + work.written_bytes) / profile.reached_bytes_per_s
        ns = 1e9 * np.maximum(compute_s, memory_s) + np.where(work.own_kernel, profile.launch_ns, 0.0)
        return whole_prices(f"roofline on {profile.name}", ns)

    @property
    def step_device(self) -> object:
        """Returns the device whose peak rates limit these times."""
        return self.device

    def data(self) -> str:
        """Returns the ceilings, whatever file they come from."""
        return repr(find_device(self.device))


def flops_per_s(graph: Graph, profile: DeviceProfile) -> NDArray[np.float64]:
    """Returns the arithmetic ceiling of each value: (n,)."""
    dtypes = [dtype if dtype == "float64" else "float32" for dtype in graph.dtypes]
    products: list[int] = np.flatnonzero(graph.compute_bound).tolist()
    for i in products:  # they multiply in the type of the first floating-point argument, or in their own
        dtypes[i] = next((graph.dtypes[u] for u in graph.operands[i] if "float" in graph.dtypes[u]), graph.dtypes[i])
    rate_of = {dtype: profile.reached_flops_per_s(dtype) for dtype in set(dtypes)}
    return np.array([rate_of[dtype] for dtype in dtypes], np.float64)
