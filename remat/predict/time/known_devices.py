"""Finds a device by name; lists the named devices with their vendors' dense figures and the fractions that kernels
reach.

The fractions, and the least times of a kernel and of a copy to the host, are in no data sheet. They are round figures:
about 70 % of the arithmetic of matrix products with tensor cores, 90 % of the memory bandwidth for large copies, 80 %
of the link to the host, a few microseconds for a kernel that PyTorch launches, and ten for a copy. `remat device`
measures all of them on this machine's device.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from remat.errors import InvalidOption, UnknownName
from remat.predict.time.device import DeviceProfile, measured_file
from remat.words import near_of

_ROUND = "; launch time and fractions: round figures, not the vendor's"

# Bytes per second of 16 lanes in each direction.
_PCIE_4, _PCIE_5 = 32e9, 64e9


def _gpu(
    name: str, flops_per_s: dict[str, float], bytes_per_s: float, link_bytes_per_s: float, source: str
) -> DeviceProfile:
    return DeviceProfile(
        name,
        flops_per_s,
        bytes_per_s,
        4000.0,
        source + _ROUND,
        flops_fraction=0.7,
        bytes_fraction=0.9,
        host_bytes_per_s=0.8 * link_bytes_per_s,
        host_latency_ns=10_000.0,
    )


# FP32 without TF32, which PyTorch does not use by default.
_HOPPER = {
    "float64": 67e12,
    "float32": 67e12,
    "bfloat16": 989.5e12,
    "float16": 989.5e12,
    "float8_e4m3fn": 1979e12,
    "float8_e5m2": 1979e12,
    "int8": 1979e12,
}
_AMPERE = {"float64": 19.5e12, "float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12, "int8": 624e12}
# Halves with FP32 accumulation, as PyTorch multiplies them; FP64 runs at 1/64 of FP32.
_ADA = {
    "float64": 1.29e12,
    "float32": 82.6e12,
    "bfloat16": 165.2e12,
    "float16": 165.2e12,
    "float8_e4m3fn": 330.3e12,
    "float8_e5m2": 330.3e12,
    "int8": 660.6e12,
}
_SHEET = "NVIDIA {} Tensor Core GPU data sheet"
_HALVED = "; its figures for sparse matrices, halved"

KNOWN: dict[str, DeviceProfile] = {
    "h200": _gpu("NVIDIA H200 SXM", _HOPPER, 4.8e12, _PCIE_5, _SHEET.format("H200") + _HALVED),
    "h100": _gpu("NVIDIA H100 SXM", _HOPPER, 3.35e12, _PCIE_5, _SHEET.format("H100") + _HALVED),
    "a100-80gb": _gpu("NVIDIA A100 SXM 80GB", _AMPERE, 2.039e12, _PCIE_4, _SHEET.format("A100")),
    "a100-40gb": _gpu("NVIDIA A100 SXM 40GB", _AMPERE, 1.555e12, _PCIE_4, _SHEET.format("A100")),
    "rtx-4090": _gpu(
        "NVIDIA GeForce RTX 4090", _ADA, 1.008e12, _PCIE_4, "NVIDIA Ada GPU Architecture white paper, appendix A"
    ),
    "cpu": DeviceProfile(
        name="a desktop CPU of 8 cores",
        # 8 cores x 3 GHz x 2 FMA units of 256 bits; halves have no arithmetic of their own there.
        flops_per_s={"float64": 384e9, "float32": 768e9, "bfloat16": 768e9, "float16": 768e9},
        bytes_per_s=76.8e9,
        launch_ns=2000.0,
        source="no vendor: 8 cores with AVX2 at 3 GHz, and two channels of DDR5-4800" + _ROUND,
        flops_fraction=0.7,
        bytes_fraction=0.7,
    ),
}
"""The device profiles by name."""

ALIASES = {"a100": "a100-80gb"}

HERE = "here"
"""The name of the profile that `remat device` measured on this machine: of the accelerator, if it was measured."""


def find_device(device: str | Path | DeviceProfile) -> DeviceProfile:
    """Returns the profile of a device.

    Args:
        device: a profile, which is returned as it is; a known name; a file that `remat device` wrote; or "here", for
            the measured profile of this machine.

    Raises:
        UnknownName: no device has this name, and there is no such file.
        InvalidOption: this machine has not been measured, or the file is no profile.
    """
    if isinstance(device, DeviceProfile):
        return device
    if not isinstance(device, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are untyped
        raise InvalidOption(f"device must be a name, a file or a remat.predict.time.DeviceProfile, got {device!r}")
    if device == HERE:
        return _measured_here()
    name = ALIASES.get(str(device), str(device))
    if name in KNOWN:
        return KNOWN[name]
    path = Path(device).expanduser()
    is_file = path.suffix == ".json"
    with suppress(OSError):  # raised for a text that is too long to be the name of a file
        is_file = is_file or path.is_file()
    if is_file:
        return DeviceProfile.load(path)
    hint = near_of(name, [*KNOWN, *ALIASES, HERE])
    raise UnknownName(f"no device is named {name!r}, and there is no such file{hint}")


def device_called(gpu: str) -> DeviceProfile | None:
    """Returns the profile of a GPU by the name that its driver reports; None if no profile matches.

    >>> device_called("NVIDIA A100-SXM4-40GB") is KNOWN["a100-40gb"], device_called("Tesla T4")
    (True, None)
    """
    words = gpu.lower().replace("-", " ").split()
    return next((profile for name, profile in KNOWN.items() if set(name.split("-")) <= {*words}), None)


def backend_of(device: str) -> str:
    """Returns the backend of TorchInductor that generates kernels for a device: "cpu" or "triton".

    Args:
        device: a known name, or "cuda" for any GPU.

    Raises:
        InvalidOption: `device` is not a string.
        UnknownName: no device has this name.
    """
    if not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are untyped
        raise InvalidOption(f"device must be the name of one, such as 'cpu' or 'a100', got {device!r}")
    name = ALIASES.get(device.lower(), device.lower())
    if name != "cuda" and name not in KNOWN:
        raise UnknownName(f"no device is named {device!r}{near_of(name, ['cuda', *KNOWN, *ALIASES])}")
    return "cpu" if name == "cpu" else "triton"


# The accelerator's profile comes first: a machine that has an accelerator trains on it.
def _measured_here() -> DeviceProfile:
    for kind in ("cuda", "cpu"):
        if measured_file(kind).is_file():
            return DeviceProfile.load(measured_file(kind))
    raise InvalidOption(f'device "{HERE}": this machine has not been measured yet; run `remat device` once')
