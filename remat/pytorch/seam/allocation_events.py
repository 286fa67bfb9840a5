"""What torch's CPU allocator reports to the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat.pytorch.seam.internals import internals


def cpu_allocations(call: Callable[[], object]) -> list[int]:
    """Runs `call()` and lists the sizes of what is allocated on the CPU, and freed (negative), in order of time.

    By the profiler that preceded Kineto, which records the same sums as its successor (torch 2.11,
    2.13 and 2.15) and prints nothing.

    Raises:
        UnsupportedTorch: the installed torch has no such profiler.
    """
    profiler, stop = internals("torch.autograd.profiler_legacy"), internals("torch.autograd")._disable_profiler_legacy
    # What was allocated earlier and is freed inside is reported with size 0: not part of this call.
    profiler.profile(profile_memory=True)._start_trace()
    try:
        call()
    finally:
        threads: list[list[Any]] = stop()
    events = [event for events in threads for event in events if event.kind() == "memory_alloc"]
    if events:
        events.sort(key=events[0].cpu_elapsed_us)
    return [event.cpu_memory_usage() for event in events]
