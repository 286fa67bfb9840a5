"""Compiles Triton kernels that Inductor has written to the machine code of a GPU. Nothing runs."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from remat.pytorch.seam.internals import internals

# The output of `ptxas -v` about a kernel.
_LOG = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL)


@dataclass(frozen=True)
class Cubin:
    """Holds a kernel, compiled in one of the configurations that Inductor would time."""

    configuration: dict[str, int]  # sizes of blocks, numbers of warps and of pipeline stages, by name
    registers: int  # per thread, by the assembler
    spilled_bytes: int  # spill stores and loads per thread
    shared_bytes: int  # shared memory per block
    ptx: str  # assembly
    cubin: bytes  # machine code


def compile_kernel(source: str, name: str) -> list[Cubin]:
    """Compiles a kernel in every configuration that Inductor would time on the current GPU: about a second each."""
    tuner: Any = getattr(internals("torch._inductor.codecache").PyCodeCache.load(source), name)
    with _nothing_kept():
        return [_compiled(tuner, configuration) for configuration in tuner.configs]


def _compiled(tuner: Any, configuration: Any) -> Cubin:
    autotuner = internals("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    log = io.StringIO()
    with redirect_stdout(log):
        kernel = autotuner._precompile_config(tuner, configuration).kernel
    stores, loads, registers = (int(number) for number in _LOG.findall(log.getvalue())[-1])
    warps_and_stages = {"num_warps": configuration.num_warps, "num_stages": configuration.num_stages}
    used = registers, stores + loads, int(kernel.metadata.shared)
    return Cubin({**configuration.kwargs, **warps_and_stages}, *used, kernel.asm["ptx"], kernel.asm["cubin"])


# Triton compiles from scratch and prints the assembler's output, which kernels from its cache lack.
@contextmanager
def _nothing_kept() -> Generator[None]:
    knobs: Any = internals("triton.knobs")
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir = folder
        knobs.nvidia.dump_ptxas_log = True
        yield
