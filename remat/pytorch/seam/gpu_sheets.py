"""Lists what CUDA reports to a compiler about each GPU for which remat can compile without that GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat.errors import InvalidOption, UnknownName
from remat.words import near_of


@dataclass(frozen=True)
class GpuSheet:
    """Holds the properties of a GPU that PyTorch, TorchInductor and Triton read, by CUDA's own names.

    Attributes:
        major, minor: the compute capability.
        multi_processor_count: streaming multiprocessors.
        total_memory, L2_cache_size: bytes.
        shared_memory_per_block_optin, shared_memory_per_multiprocessor: bytes.
        memory_clock_rate, clock_rate: kHz.
        memory_bus_width: bits.
    """

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    source: str
    shared_memory_per_block: int = 48 << 10
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    warp_size: int = 32
    gcnArchName: str = ""  # noqa: N815  # CUDA's own name, of AMD's GPUs

    @property
    def capability(self) -> int:
        """Returns the compute capability as one number: 90 for 9.0."""
        return 10 * self.major + self.minor


_AMPERE = "CUDA C++ Programming Guide, table of compute capabilities, 8.0; NVIDIA A100 data sheet"
_HOPPER = "CUDA C++ Programming Guide, table of compute capabilities, 9.0; NVIDIA H100 data sheet"

_A100 = GpuSheet(
    "NVIDIA A100-SXM4-80GB", 8, 0, 108, 80 << 30, 163 << 10, 164 << 10, 40 << 20, 1_410_000, 1_593_000, 5120, _AMPERE
)
_H100 = GpuSheet(
    "NVIDIA H100 80GB HBM3", 9, 0, 132, 80 << 30, 227 << 10, 228 << 10, 50 << 20, 1_980_000, 2_619_000, 5120, _HOPPER
)
_H200 = replace(_H100, name="NVIDIA H200", total_memory=141 << 30, memory_clock_rate=3_201_000, memory_bus_width=6144)

SHEETS: dict[str, GpuSheet] = {
    "a100": _A100,
    "a100-40gb": replace(_A100, name="NVIDIA A100-SXM4-40GB", total_memory=40 << 30, memory_clock_rate=1_215_000),
    "h100": _H100,
    "h200": replace(_H200, source=_HOPPER.replace("H100", "H200")),
}
"""The known GPUs, by their names for `device=`."""


def sheet_of(gpu: str | GpuSheet) -> GpuSheet:
    if isinstance(gpu, GpuSheet):
        return gpu
    if not isinstance(gpu, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are untyped
        raise InvalidOption(f"a device is given by its name or a GpuSheet, got {gpu!r}")
    name = gpu.lower().replace("-80gb", "")
    if name not in SHEETS:
        raise UnknownName(f"no device is named {gpu!r}{near_of(name, ['cpu', 'cuda', *SHEETS])}")
    return SHEETS[name]
