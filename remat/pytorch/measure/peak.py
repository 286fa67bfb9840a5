"""Measures the most memory that a call holds at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from remat.pytorch.seam.step_allocations import cpu_allocations


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Runs `call()`, and returns how many bytes of tensors on `device` it held at most, above those from before.

    On CUDA, of the current process by torch's caching allocator. On CPU, by the same running total of
    what is allocated and freed, read from the events that torch's CPU allocator reports to the profiler:
    memory that a library keeps for itself is in neither, nor is rounding to pages.
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
