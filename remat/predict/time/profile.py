"""Estimates recompute time by measurements on this machine's device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from remat.errors import InvalidOption, NotInstalled
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.predict.time.device import DeviceProfile, require_kind
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import Roofline
from remat.predict.time.timings import call_keys, read_timings, timings_file, write_timings
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator
from remat.words import counted, pip_install

# The most operators that the warning names.
_SHOWN = 10


@dataclass(frozen=True)
class Profile(Estimator):
    """The recompute cost of an operator is its measured time on this machine, alone and with cold caches.

    Values that fuse are not timed: alone they would cost a kernel, but in the backward pass they join an existing one.
    Their cost is `Roofline`'s, with the measured rates of the same device. The same holds for operators that cannot
    be timed here (a warning names them), and for operators that must not run twice, which are never run here.

    The timed calls get contiguous tensors with random contents (`remat.pytorch.read.sample_call`). Times are kept in a
    file, so only calls that no earlier graph had are timed.

    Attributes:
        device: "cpu", "cuda", or None for CUDA where there is any.
        cache: the file of the times; None for one per device and version of torch, in the user's cache folder.
        ceilings: as `Roofline.device`; None for the profile that `remat device` measured of this device, or measures
            now.
    """

    name: ClassVar[str] = "profile"
    unit: ClassVar[str] = "ns"

    device: str | None = None
    cache: str | Path | None = None
    ceilings: str | Path | DeviceProfile | None = None

    def __post_init__(self) -> None:
        require_kind(self.device)
        if self.cache is not None and not isinstance(self.cache, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are untyped
            raise InvalidOption(f"cache must be a file, or None for one in the user's cache folder, got {self.cache!r}")
        if self.ceilings is not None:
            find_device(self.ceilings)

    def recompute_cost(self, graph: Graph) -> IntArray:
        """Measures the nanoseconds (n,) of each value on this machine's device.

        Raises:
            NotInstalled: torch is missing.
            InvalidOption: there is no such device, or the cache is not a file of its times.
        """
        if find_spec("torch") is None:
            raise NotInstalled(f"the estimator 'profile' needs torch: {pip_install('torch')}")
        prices = np.array(self._roofline().recompute_cost(graph))
        for value, ns in self._times(graph, Work.of(graph).own_kernel & ~graph.cannot_recompute.mask).items():
            prices[value] = ns
        return whole_prices("profile", prices)

    @property
    def step_device(self) -> object:
        return self._roofline().device

    def data(self) -> str:
        """Returns the device's rates as text, without the measured times, which are noisy and grow with each graph."""
        return self._roofline().data()

    def _roofline(self) -> Roofline:
        from remat.pytorch.measure.ceilings import measured_device

        return Roofline(measured_device(self.device) if self.ceilings is None else self.ceilings)

    def _times(self, graph: Graph, timed: BoolArray) -> dict[int, int]:
        from remat.pytorch.measure.timing import Stopwatch, device_label, time_values, timed_device

        values: list[int] = np.flatnonzero(timed).tolist()
        keys = call_keys(graph, values)
        device = timed_device(self.device)
        label = device_label(device)
        file = timings_file(label) if self.cache is None else Path(self.cache).expanduser()
        cached = read_timings(file, label)
        missing = {key: value for key, value in zip(keys, values, strict=True) if key not in cached}
        if missing:
            measured, failures = time_values(graph, missing, device, Stopwatch(device).median_ns)
            cached |= measured
            write_timings(file, label, cached)
            if failures:
                _warn(graph, missing, failures)
        return {value: cached[key] for key, value in zip(keys, values, strict=True) if key in cached}


def _warn(graph: Graph, value_of: Mapping[str, int], failures: Mapping[str, str]) -> None:
    reasons: dict[str, str] = {}
    for key, reason in failures.items():
        reasons.setdefault(graph.ops[value_of[key]], reason)
    listed = [f"{op} ({reason})" for op, reason in sorted(reasons.items())]
    if (more := len(listed) - _SHOWN) > 0:
        listed[_SHOWN:] = [f"... ({more} more operators)"]
    hint = "" if any(graph.arguments) else ". The graph has no arguments recorded: capture it again"
    warnings.warn(
        f"estimator 'profile': could not time {counted(len(failures), 'call')}, so the roofline of this device "
        f"estimates them: {'; '.join(listed)}{hint}",
        stacklevel=4,
    )
