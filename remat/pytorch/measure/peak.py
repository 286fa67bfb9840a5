"""The most memory that a call holds at once."""

# The events of torch's allocators are untyped, and reading them is private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportDeprecated=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from remat.pytorch.inductor.traffic_count import unsupported


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Runs `call()`; the most bytes of tensors on `device` at any moment, above those from before.

    On CUDA, of the current process by torch's caching allocator. On CPU, by the same running total of
    what is allocated and freed, read from the events that torch's CPU allocator reports to the profiler:
    memory that a library keeps for itself is in neither, nor is rounding to pages.

    Raises:
        UnsupportedTorch: the installed torch reports no such events.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    held = most = 0
    for size in _allocations(call):
        held += size
        most = max(most, held)
    return most


def _allocations(call: Callable[[], object]) -> list[int]:
    """The sizes of what is allocated on the CPU, and freed (negative), in order of time.

    By the profiler that preceded Kineto, which records the same sums as its successor (torch 2.11,
    2.13 and 2.15) and prints nothing.
    """
    try:
        from torch.autograd import _disable_profiler_legacy
        from torch.autograd.profiler_legacy import profile
    except ImportError as error:
        raise unsupported(f"memory events cannot be read ({error})") from None
    # What was allocated earlier and is freed inside is reported with size 0: not part of this call.
    profile(profile_memory=True)._start_trace()
    try:
        call()
    finally:
        threads: list[list[Any]] = _disable_profiler_legacy()
    events = [event for events in threads for event in events if event.kind() == "memory_alloc"]
    if events:
        events.sort(key=events[0].cpu_elapsed_us)
    return [event.cpu_memory_usage() for event in events]
