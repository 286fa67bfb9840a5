"""Measures the peak rates of this machine's device: `remat device`."""

from __future__ import annotations

import datetime
import re

import torch

from remat.predict.time.device import DeviceProfile, measured_file
from remat.pytorch.measure.timing import Stopwatch, device_name, timed_device, undisturbed

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_COPIED_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30}
_HOST_BYTES = 2**28
_LARGEST = 8192
_LONG_NS = 100e6
_LAUNCHES = 1000


def measure_device(kind: str | None = None) -> DeviceProfile:
    """Measures matrix products of each type, copies, the link to the host, and the least time of a kernel: 10 to 20 s.

    Args:
        kind: "cpu", "cuda", or None for CUDA where there is any.

    Returns:
        a profile with the rates reached, and fractions of 1. float32 products use torch's current setting of TF32.
    """
    device = timed_device(kind)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with undisturbed(device):
        stopwatch = Stopwatch(device)
        rates = {str(dtype).removeprefix("torch."): _flops_per_s(stopwatch, dtype) for dtype in _DTYPES}
        return DeviceProfile(
            name=device_name(device),
            flops_per_s={dtype: round(rate) for dtype, rate in rates.items() if rate is not None},
            bytes_per_s=round(_bytes_per_s(stopwatch)),
            launch_ns=round(_launch_ns(stopwatch)),
            source=f"measured by `remat device` on {today} with torch {torch.__version__}",
            **_host_link(stopwatch),
        )


def measured_device(kind: str | None = None) -> DeviceProfile:
    """Returns the measured profile of this device; the first call measures it and stores the result.

    The file that `remat device` writes may describe another device: one of another machine that shares the folder, or
    one with another number of cores. Then this device gets a separate file.
    """
    device = timed_device(kind)
    name = device_name(device)
    own = measured_file(f"{device.type}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}")
    files = [file for file in (measured_file(device.type), own) if file.is_file()]
    for file in files:
        profile = DeviceProfile.load(file)
        if profile.name == name:
            return profile
    file = own if files else measured_file(device.type)
    file.parent.mkdir(parents=True, exist_ok=True)
    measured = measure_device(kind)
    measured.save(file)
    return measured


# Square products, doubled in width until one takes long; None if torch does not multiply this type.
def _flops_per_s(stopwatch: Stopwatch, dtype: torch.dtype) -> float | None:
    best, width = 0.0, 256
    while width <= _LARGEST:
        left, right = (torch.ones(width, width, dtype=dtype, device=stopwatch.device) for _ in range(2))
        try:
            ns = stopwatch.best_ns(lambda a=left, b=right: a @ b)
        except RuntimeError:  # torch does not multiply this type on this device
            return None
        best = max(best, 2e9 * width**3 / ns)
        if ns > _LONG_NS:
            break
        width *= 2
    return best


def _bytes_per_s(stopwatch: Stopwatch) -> float:
    source = torch.ones(_COPIED_BYTES[stopwatch.device.type], dtype=torch.int8, device=stopwatch.device)
    target = torch.empty_like(source)
    return 2e9 * source.numel() / stopwatch.best_ns(lambda: target.copy_(source), runs=10)


# Both directions at once, each in its own stream; a CPU has no link.
def _host_link(stopwatch: Stopwatch) -> dict[str, float]:
    if stopwatch.device.type != "cuda":
        return {}
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def ns(count: int) -> float:
        ends = [
            (torch.empty(count, dtype=torch.int8, pin_memory=True), torch.empty(count, dtype=torch.int8, device="cuda"))
            for _ in streams
        ]
        pairs = ends[0], ends[1][::-1]

        def copy_both_ways() -> None:
            here = torch.cuda.current_stream()
            for stream, (target, source) in zip(streams, pairs, strict=True):
                stream.wait_stream(here)
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
                here.wait_stream(stream)

        return stopwatch.best_ns(copy_both_ways, runs=10)

    return {"host_bytes_per_s": round(1e9 * _HOST_BYTES / ns(_HOST_BYTES)), "host_latency_ns": round(ns(16))}


# The time from one tiny kernel to the next in a long sequence.
def _launch_ns(stopwatch: Stopwatch) -> float:
    tiny = torch.ones(16, device=stopwatch.device)

    def row() -> None:
        for _ in range(_LAUNCHES):
            torch.neg(tiny)

    return stopwatch.best_ns(row) / _LAUNCHES
