"""Runs compiled steps without their CPU kernels: what a step allocates does not depend on what its kernels compute."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._C._dynamo import guards
from torch._inductor.async_compile import AsyncCompile

from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_settings import nothing_cached


@contextmanager
def no_cpu_kernels() -> Generator[None]:
    """Skips the generated kernels of code that is compiled and run within the block; library calls run.

    Generated kernels allocate nothing, so all allocations still happen. What the kernels would have written is zero, so
    indices that are read from it are valid.
    """
    empty = guards._empty_strided_cpu

    def zeros(*args: Any) -> Tensor:
        return empty(*args).zero_()

    def nothing(*_: Any) -> None:
        return None

    def skipped(*_: Any) -> Any:
        return nothing

    with (
        nothing_cached(),
        thread_local_patch(AsyncCompile, "cpp_pybinding", skipped),
        thread_local_patch(guards, "_empty_strided_cpu", zeros),
    ):
        yield
