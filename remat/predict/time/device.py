"""Defines the profile of a device: its peak rates of arithmetic and memory traffic, and the least time of a kernel.

`remat device` measures this machine's device and writes its profile; `known_devices` has profiles from data sheets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import cast

import numpy as np

from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_path
from remat.facts.json_file import read_document, write_document

FORMAT = "remat.device"
VERSION = 1

_FRACTIONS = ("flops_fraction", "bytes_fraction", "masked_attention_fraction")

# Neither infinite nor NaN, and no whole number that a float cannot hold.
_TOO_LARGE = 1e300


@dataclass(frozen=True)
class DeviceProfile:
    """Holds the peak rates of a device for the roofline model (Williams, Waterman, Patterson 2009).

    Attributes:
        name: a name for people.
        flops_per_s: floating-point operations per second of dense matrix products, by element type, with tensor cores
            where PyTorch uses them by default. "float32" is required: it is taken for all other types and
            operators.
        bytes_per_s: memory traffic per second, reads plus writes.
        launch_ns: the least time of a kernel, however small.
        source: where the figures come from.
        flops_fraction, bytes_fraction: the shares of `flops_per_s` and `bytes_per_s` that large, well-shaped kernels
            reach; 1 for measured rates.
        masked_attention_fraction: the rate of fused attention with a mask on a GPU, as a share of the rate of matrix
            products. The default is a round figure, from whole steps on an H200 (cuDNN,
            `experiments.accuracy.attention_rate`) and on a GTX 1650 (`experiments.accuracy.gpu_peaks`).
        host_bytes_per_s: the rate of copies between the device and pinned host memory in each direction, while the
            other direction is busy, too; 0 without a host, as on a CPU.
        host_latency_ns: the least time of a copy, however small.

    Raises:
        InvalidOption: a figure is missing, out of range or not finite.
    """

    name: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    bytes_per_s: float
    launch_ns: float
    source: str
    flops_fraction: float = 1.0
    bytes_fraction: float = 1.0
    host_bytes_per_s: float = 0.0
    host_latency_ns: float = 0.0
    masked_attention_fraction: float = 0.5

    def __post_init__(self) -> None:
        for label in ("name", "source"):
            if not isinstance(getattr(self, label), str) or not getattr(self, label):
                raise InvalidOption(f"DeviceProfile.{label} must be a text, got {getattr(self, label)!r}")
        rates = cast(object, self.flops_per_s)
        if not isinstance(rates, Mapping) or "float32" not in rates:
            raise InvalidOption(f'DeviceProfile.flops_per_s must map element types, "float32" at least, got {rates!r}')
        rates = {dtype: _positive(f"flops_per_s[{dtype!r}]", rate) for dtype, rate in self.flops_per_s.items()}
        object.__setattr__(self, "flops_per_s", rates)
        for label in ("bytes_per_s", *_FRACTIONS):
            object.__setattr__(self, label, _positive(label, getattr(self, label)))
        for label in ("launch_ns", "host_bytes_per_s", "host_latency_ns"):
            object.__setattr__(self, label, _positive(label, getattr(self, label), or_zero=True))
        for label in _FRACTIONS:
            if getattr(self, label) > 1:
                raise InvalidOption(f"DeviceProfile.{label} must be at most 1, got {getattr(self, label)!r}")

    def reached_flops_per_s(self, dtype: str) -> float:
        """Returns the rate of matrix products of an element type; for a type that is not listed, that of "float32"."""
        return self.flops_fraction * self.flops_per_s.get(dtype, self.flops_per_s["float32"])

    @property
    def reached_bytes_per_s(self) -> float:
        return self.bytes_fraction * self.bytes_per_s

    def save(self, path: str | Path) -> None:
        write_document({"format": FORMAT, "version": VERSION, **asdict(self)}, checked_path(path), indent=1)

    @classmethod
    def load(cls, path: str | Path) -> DeviceProfile:
        """Reads a file that `save` wrote, or that was written by hand.

        Raises:
            InvalidOption: the file is no device profile, has a newer version, or has an impossible figure.
        """
        what, remedy = "a device profile", "`remat device -o` writes one"
        figures = read_document(checked_path(path), FORMAT, InvalidOption, file_kind=what, remedy=remedy)
        if figures.get("version") != VERSION:
            raise InvalidOption(f"{path}: version {figures.get('version')!r}, but this remat reads {VERSION}")
        labels, entries = {option.name for option in fields(cls)}, set(figures) - {"format", "version"}
        if entries - labels:
            raise InvalidOption(
                f"{path}: unknown entry {min(entries - labels)!r}; there are: {', '.join(sorted(labels))}"
            )
        missing = {"name", "flops_per_s", "bytes_per_s", "launch_ns", "source"} - entries
        if missing:
            raise InvalidOption(f"{path}: {min(missing)!r} is missing")
        try:
            return cls(**{label: figures[label] for label in entries})
        except InvalidOption as error:
            raise InvalidOption(f"{path}: {error}") from None


def require_kind(kind: object) -> None:
    """Raises `InvalidOption` if `kind` is neither "cpu" nor "cuda" nor None."""
    if kind not in (None, "cpu", "cuda"):
        raise InvalidOption(f'device must be "cpu", "cuda", or None for CUDA if this machine has it, got {kind!r}')


def measured_file(kind: str) -> Path:
    """Returns the file in which `remat device` stores the profile of this machine's "cpu" or "cuda" device."""
    return cache_folder() / f"device-{kind}.json"


def cache_folder() -> Path:
    """Returns the folder for files about this machine, by the platform's conventions; it may not exist yet."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "remat"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "remat"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remat"


# NumPy's numbers become Python's, because JSON has no others.
def _positive(label: str, figure: object, or_zero: bool = False) -> int | float:
    number: object = figure.tolist() if isinstance(figure, (np.integer, np.floating)) else figure
    not_zero = number != 0 or or_zero
    if not (isinstance(number, int | float) and type(number) is not bool and 0 <= number < _TOO_LARGE and not_zero):
        word = "a number, not negative" if or_zero else "a positive number"
        raise InvalidOption(f"DeviceProfile.{label} must be {word}, got {figure!r}")
    return number
