"""Models how long the kernels of a training step take on a device: a figure to compare plans, not a measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remat.facts.graph import Graph, checked_graph
from remat.predict.kernels.kernel import Kernel
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import DEFAULT_DEVICE, flops_per_s


@dataclass(frozen=True)
class KernelTime:
    """Holds the modelled time of one kernel: the longer of its memory traffic and its arithmetic, plus a launch."""

    backward: bool
    memory_ns: float  # its bytes at the bandwidth of large copies
    compute_ns: float  # its floating-point operations at the rate of matrix products of their type
    launch_ns: float  # the least time of any kernel

    @property
    def ns(self) -> float:
        return max(self.memory_ns, self.compute_ns) + self.launch_ns


@dataclass(frozen=True)
class ModelledTime:
    """Holds the modelled time of a step: a roofline model, not a measurement.

    Attributes:
        kernels: the time of each kernel, in the order of the argument.
    """

    device: str
    kernels: tuple[KernelTime, ...]

    @property
    def forward_ns(self) -> float:
        """Returns the time of the forward pass's kernels, one after the other."""
        return sum(kernel.ns for kernel in self.kernels if not kernel.backward)

    @property
    def backward_ns(self) -> float:
        """Returns the time of the backward pass's kernels, one after the other."""
        return sum(kernel.ns for kernel in self.kernels if kernel.backward)

    @property
    def ns(self) -> float:
        return self.forward_ns + self.backward_ns

    def __str__(self) -> str:
        return (
            f"modelled for {self.device}, not measured: {self.forward_ns / 1e6:.3g} ms forward, "
            f"{self.backward_ns / 1e6:.3g} ms backward, {len(self.kernels)} kernels"
        )


def modelled_time(
    graph: Graph, kernels: Iterable[Kernel], device: str | Path | DeviceProfile = DEFAULT_DEVICE
) -> ModelledTime:
    """Models the time of a step as the sum of its kernels' times in the roofline model.

    A kernel takes the longer of two times, its bytes at the reached bandwidth and its arithmetic at the reached rate,
    plus a launch, as if the host never ran ahead of the device. Its arithmetic is `Graph.flops` of the values that it
    computes, each at the rate of its type. The model ignores caches, how well a kernel fills the device, clock rates,
    and the host's work between kernels: ratios between plans of one graph mean more than times.

    Args:
        graph: the joint graph.
        kernels: the kernels of both passes, such as `predict_traffic(graph, plan).kernels`.
        device: as for `remat.predict.time.Roofline`: a known name, a file, "here", or a profile.

    Raises:
        InvalidOption, UnknownName: there is no such device.

    >>> from remat import GraphBuilder, Plan, predict_traffic
    >>> g = GraphBuilder()
    >>> g.output(g.op("cos", g.input("x", bytes=2**27), name="y"))
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=2**27), g.op("sin", "x"), name="dx"))
    >>> graph = g.build()
    >>> time = modelled_time(graph, predict_traffic(graph, Plan(("x",), ("sin",))).kernels, "a100-40gb")
    >>> print(time)
    modelled for NVIDIA A100 SXM 40GB, not measured: 0.196 ms forward, 0.292 ms backward, 2 kernels
    """
    return KernelClock(graph, device).time(kernels)


class KernelClock:
    """Models the times of kernels of one graph on one device: see `modelled_time` for the arguments."""

    def __init__(self, graph: Graph, device: str | Path | DeviceProfile = DEFAULT_DEVICE) -> None:
        self.device = find_device(device)
        self._compute_ns = 1e9 * checked_graph(graph).flops / flops_per_s(graph, self.device)

    def time(self, kernels: Iterable[Kernel]) -> ModelledTime:
        return ModelledTime(self.device.name, tuple(map(self._kernel_time, kernels)))

    def _kernel_time(self, kernel: Kernel) -> KernelTime:
        return KernelTime(
            backward=kernel.backward,
            memory_ns=1e9 * kernel.bytes / self.device.reached_bytes_per_s,
            compute_ns=float(np.sum(self._compute_ns[list(kernel.values)])),
            launch_ns=float(self.device.launch_ns),
        )
