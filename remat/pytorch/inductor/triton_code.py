"""Gets the Triton code that TorchInductor writes for a plan: a module per pass, and the source of every kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat.answer.plan import Plan
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.seam.written_code import written_code


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
