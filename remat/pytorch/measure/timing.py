"""Times calls on a device, and the operators of a graph, with enough repetitions for a stable result."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from remat.errors import CannotRebuild, InvalidOption
from remat.facts.graph import Graph
from remat.predict.time.device import require_kind
from remat.pytorch.read.sample_call import rebuild, result_mismatch
from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.torch_names import fork_rng

# More than the last-level cache (50 MB on an H200): in a real backward pass, a saved value comes from memory.
_FLUSH_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}


@contextmanager
def undisturbed(device: torch.device) -> Generator[None]:
    """Makes operators run for real and in the given dtypes, even while torch compiles or under autocast.

    While torch compiles, all new tensors are fake, so a timing would measure shape inference. Autocast would compute in
    other dtypes than those of the call.
    """
    with real_tensors(), torch.autocast(device.type, enabled=False), torch.no_grad():
        yield


class Stopwatch:
    """Times calls on one device with cold caches.

    On CUDA, the time is that between two events on the stream: of the kernels, without the Python code that launches
    them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with undisturbed(device):
            self._flush = torch.empty(_FLUSH_BYTES[device.type], dtype=torch.int8, device=device)

    def median_ns(self, call: Callable[[], object]) -> int:
        """Returns the median of 5 to 30 runs after two warm-up runs: about 50 ms of calls."""
        for _ in range(2):
            call()
        runs: list[float] = []
        while len(runs) < 5 or (len(runs) < 30 and sum(runs) < 50e6):
            self._flush.zero_()
            runs.append(self.one_ns(call))
        return max(1, round(statistics.median(runs)))

    def best_ns(self, call: Callable[[], object], runs: int = 5) -> float:
        """Returns the shortest of several runs with warm caches, as a measure of what the device can do."""
        call()
        return min(self.one_ns(call) for _ in range(runs))

    def one_ns(self, call: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            start_ns = time.perf_counter_ns()
            call()
            return time.perf_counter_ns() - start_ns
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return 1e6 * start.elapsed_time(end)


def timed_device(kind: str | None) -> torch.device:
    """Returns the device "cpu" or "cuda"; for None, CUDA if there is any, else the CPU."""
    require_kind(kind)
    available = torch.cuda.is_available()
    if kind == "cuda" and not available:
        raise InvalidOption('device "cuda": torch sees no CUDA device here; use "cpu"')
    return torch.device("cuda", torch.cuda.current_device()) if available and kind != "cpu" else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Returns the usual name of a device; for a CPU, with the number of torch's threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def device_label(device: torch.device) -> str:
    """Returns a label of what measured times of a call depend on: device, torch, and precision of float32."""
    backends: Any = torch.backends  # whose type stubs are incomplete
    on_cuda = device.type == "cuda"
    products = backends.cuda.matmul if on_cuda else backends.mkldnn.matmul
    convolutions = backends.cudnn.conv if on_cuda else backends.mkldnn.conv
    float32 = f"{products.fp32_precision}/{convolutions.fp32_precision}".replace("none", "ieee")
    return f"{device_name(device)}, torch {torch.__version__}, float32 {float32}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def time_values(
    graph: Graph, value_of: Mapping[str, int], device: torch.device, time_call: Callable[[Callable[[], object]], int]
) -> tuple[dict[str, int], dict[str, str]]:
    """Runs and times one value of the graph for each key; restores the random number generators.

    Args:
        value_of: key -> the value to time.
        time_call: takes a function without arguments, and returns how many nanoseconds a call takes.

    Returns:
        nanoseconds by key; and for keys that could not be timed, the reason.
    """
    times: dict[str, int] = {}
    failures: dict[str, str] = {}
    devices: Iterable[torch.device] = [device] if device.type == "cuda" else []
    with undisturbed(device), fork_rng(devices):
        for key, value in value_of.items():
            try:
                call = rebuild(graph, value, device)
                wrong = result_mismatch(graph, value, call())
                if wrong:
                    raise CannotRebuild(f"it gives {wrong}")
                times[key] = time_call(call)
            # An operator may raise any exception. It is reported, and another estimator replaces the time.
            except Exception as error:
                failures[key] = (str(error).splitlines() or [type(error).__name__])[0]
    return times, failures
