"""Lists the allocations of a step, and skips CPU kernels, which allocate nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_settings import nothing_cached


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


@contextmanager
def no_cpu_kernels() -> Generator[None]:
    """Skips the generated kernels of code that is compiled and run within the block; library calls run.

    Generated kernels allocate nothing, so all allocations still happen. What the kernels would have written is zero, so
    indices that are read from it are valid.
    """
    guards = internals("torch._C._dynamo.guards")
    empty = guards._empty_strided_cpu

    def zeros(*args: Any) -> Tensor:
        return empty(*args).zero_()

    def nothing(*_: Any) -> None:
        return None

    def skipped(*_: Any) -> Any:
        return nothing

    compiler = internals("torch._inductor.async_compile").AsyncCompile
    with (
        nothing_cached(),
        thread_local_patch(compiler, "cpp_pybinding", skipped),
        thread_local_patch(guards, "_empty_strided_cpu", zeros),
    ):
        yield
