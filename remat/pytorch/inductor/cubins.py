"""Gets the Triton code that TorchInductor writes for a plan, and compiles its kernels for a GPU. Nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remat.answer.plan import Plan
from remat.errors import InvalidOption
from remat.facts.files import write_file
from remat.facts.graph import Graph
from remat.pytorch.inductor.scheduled import InductorKernel, Scheduled, scheduled_kernels
from remat.pytorch.seam.inductor_lowering import written_code
from remat.pytorch.seam.triton_compiler import Cubin, compile_kernel
from remat.pytorch.seam.virtual_gpu import device_of


@dataclass(frozen=True)
class PassCode:
    """Holds the code of a forward or a backward pass."""

    backward: bool
    text: str  # a Python module; its `call` takes a list of tensors, empties it, and returns the outputs
    inputs: tuple[str, ...]  # names of the values that `call` takes, in order
    outputs: tuple[str, ...]  # names of the values that it returns, in order; "" for a result that is no value
    kernels: tuple[InductorKernel, ...]  # launches and calls, in order, with their bytes
    # for each of `kernels`, the names of its Triton kernels: none for a library call.
    launched: tuple[tuple[str, ...], ...]
    # name of a Triton kernel -> its Python module. A kernel may be launched several times.
    sources: Mapping[str, str]

    @property
    def name(self) -> str:
        return "backward" if self.backward else "forward"


def triton_code(scheduled: Scheduled, plan: Plan) -> tuple[PassCode, ...]:
    """Returns Inductor's code of both passes under a plan; a pass without operators has none."""
    passes: list[PassCode] = []

    def visit(lowering: Any, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
        # Count first: code generation deletes what a loop reads.
        kernels = tuple(kernel.renamed(inputs) for kernel in scheduled_kernels(lowering))
        written = written_code(lowering)
        of_node = {kernel.name: [name for node, name in written.launches if node == kernel.name] for kernel in kernels}
        launched = tuple(tuple(of_node[kernel.name]) for kernel in kernels)
        ends = tuple(inputs.values()), tuple(outputs)
        passes.append(PassCode(bool(lowering.is_backward), written.text, *ends, kernels, launched, written.sources))

    scheduled.visit(plan, visit)
    return tuple(passes)


@dataclass(frozen=True)
class KernelCubins:
    """Describes a Triton kernel of a pass.

    Inductor times the configurations of a kernel on the GPU and keeps the fastest. Without the GPU, that one is
    unknown, so each figure is the largest of all configurations.
    """

    name: str  # in the code of the pass
    launches: int  # how often the pass launches it
    bytes: int  # read and written in all its launches, by Inductor's own count
    cubins: tuple[Cubin, ...]  # one per configuration

    @property
    def registers(self) -> int:
        return max(cubin.registers for cubin in self.cubins)

    @property
    def spilled_bytes(self) -> int:
        """Returns the bytes that a thread spills to memory because it has too few registers."""
        return max(cubin.spilled_bytes for cubin in self.cubins)

    @property
    def shared_bytes(self) -> int:
        return max(cubin.shared_bytes for cubin in self.cubins)


@dataclass(frozen=True)
class CompiledPass:
    """Holds the code of a pass, and its compiled kernels in the order of their first launches."""

    code: PassCode
    kernels: tuple[KernelCubins, ...]

    @property
    def calls(self) -> int:
        return sum(not names for names in self.code.launched)

    @property
    def called_bytes(self) -> int:
        """Returns the bytes that library calls read and write, by Inductor's own count."""
        return sum(
            kernel.bytes for kernel, names in zip(self.code.kernels, self.code.launched, strict=True) if not names
        )

    def write(self, folder: Path) -> None:
        """Writes `forward.py` or `backward.py`, and a folder with source, assembly and cubins of each kernel.

        Args:
            folder: created if missing; files with the same names are replaced.
        """
        within = folder / self.code.name
        within.mkdir(parents=True, exist_ok=True)
        write_file(within.with_suffix(".py"), self.code.text.encode())
        for kernel in self.kernels:
            write_file(within / f"{kernel.name}.py", self.code.sources[kernel.name].encode())
            for cubin in kernel.cubins:
                stem = ".".join([kernel.name, *(f"{key}{size}" for key, size in cubin.configuration.items())])
                write_file(within / f"{stem}.ptx", cubin.ptx.encode())
                write_file(within / f"{stem}.cubin", cubin.cubin)


def compile_plan(graph: Graph, plan: Plan, *, device: str | torch.device = "h100") -> Iterator[CompiledPass]:
    """Generates Inductor's code of both passes, and compiles all kernels with Triton, in some 1 s per configuration.

    Args:
        graph: the joint graph, whatever device it was captured for.
        device: "a100", "a100-40gb", "h100" or "h200", with or without a GPU in the machine, or a GPU of torch.

    Raises:
        CannotRebuild: the graph has an operator or an argument that cannot be rebuilt.
        InvalidOption: the device is no GPU.
    """
    target, for_device = device_of(device)
    if target.type != "cuda":
        raise InvalidOption(f"compile_plan: device must be a GPU (Triton compiles for nothing else), got {device!r}")
    with for_device():
        for code in triton_code(Scheduled(graph, device=device), plan):
            yield CompiledPass(code, tuple(_kernels(code)))


def _kernels(code: PassCode) -> Iterator[KernelCubins]:
    launches, bytes_ = Counter[str](), Counter[str]()
    for kernel, names in zip(code.kernels, code.launched, strict=True):
        launches.update(names)
        bytes_.update(dict.fromkeys(names[:1], kernel.bytes))  # the first of several gets the bytes of all
    for name, times in launches.items():
        yield KernelCubins(name, times, bytes_[name], tuple(compile_kernel(code.sources[name], name)))
