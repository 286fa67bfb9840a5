"""Measures the peak memory of a call."""

from __future__ import annotations

from collections.abc import Callable

import torch

from remat.pytorch.seam.step_allocations import cpu_allocations


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Runs `call()` and returns the peak of tensor bytes on `device`, less those that were allocated before.

    On CUDA, this is the figure of torch's caching allocator for this process. On CPUs, it is the running sum of the
    allocations that torch's CPU allocator reports to the profiler. Neither includes memory that a library keeps for
    itself, nor rounding to pages.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    held = most = 0
    for size in cpu_allocations(call):
        held += size
        most = max(most, held)
    return most
