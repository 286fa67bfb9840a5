"""Has TorchInductor's code for CPUs run without its kernels: to see what a step allocates, without compiling any."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.swap import swapped
from remat.pytorch.seam.torch_settings import nothing_cached


@contextmanager
def no_cpu_kernels() -> Generator[None]:
    """Leaves out generated kernels of what is compiled and run within the block; calls of libraries run.

    Kernels allocate nothing. What they would have written is zero, so that an index among it points somewhere.

    Raises:
        UnsupportedTorch: the installed torch lacks what this relies on.
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
    with nothing_cached(), swapped(compiler, "cpp_pybinding", skipped), swapped(guards, "_empty_strided_cpu", zeros):
        yield
