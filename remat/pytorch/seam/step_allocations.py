"""Lists the allocations of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat.pytorch.seam.internals import internals


def cpu_allocations(call: Callable[[], object]) -> list[int]:
    """Runs `call()` and returns the sizes of its CPU allocations and frees (negative), in order of time."""
    return [event.cpu_memory_usage() for event in _allocations(call)]


def gpu_allocations(call: Callable[[], object]) -> list[int]:
    """Runs `call()` and returns the sizes of its GPU allocations and frees, with memory from the allocator's cache."""
    return [event.cuda_memory_usage() for event in _allocations(call)]


def _allocations(call: Callable[[], object]) -> list[Any]:
    # The profiler before Kineto records the same sums as Kineto (torch 2.11, 2.13 and 2.15), and prints nothing.
    profiler, stop = internals("torch.autograd.profiler_legacy"), internals("torch.autograd")._disable_profiler_legacy
    # Memory that was allocated earlier and is freed inside is reported with size 0.
    profiler.profile(profile_memory=True)._start_trace()
    try:
        call()
    finally:
        threads: list[list[Any]] = stop()
    events = [event for events in threads for event in events if event.kind() == "memory_alloc"]
    if events:
        events.sort(key=events[0].cpu_elapsed_us)
    return events
