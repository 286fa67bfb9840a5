"""Lists what a call allocates, by a private profiler of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat.pytorch.seam.internals import internals


def allocations(call: Callable[[], object], *, gpu: bool = False) -> list[int]:
    """Runs `call()` and returns the sizes of its allocations and frees (negative) on one kind of device, in order.

    On a GPU, they include memory from the allocator's cache.
    """
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
    return [event.cuda_memory_usage() if gpu else event.cpu_memory_usage() for event in events]
