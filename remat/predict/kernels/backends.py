"""Defines the backends of TorchInductor whose kernels are predicted, by the thresholds in which they differ.

Source: `torch/_inductor/ir.py`, `config.py` and `lowering.py` of torch 2.11, 2.12 and 2.13. `rules` has what both
backends share.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.predict.kernels.rules import UNROLLED, aten
from remat.words import near


@dataclass(frozen=True)
class KernelBackend:
    """Represents a backend of TorchInductor, described by the thresholds at which it stores a value."""

    name: str  # "cpu" or "triton"
    gpu: bool  # whether its kernels run on a GPU
    # operators whose results are stored, not computed twice (`StorageBox.should_realize_on_reuse`).
    heavy: frozenset[str]
    # with more reads, an expression is stored (`realize_cpu_acc_reads_threshold`, `realize_acc_reads_threshold`).
    max_reads: int
    # an expression with several readers is stored if it has more operations (`realize_cpu_opcount_threshold`,
    # `realize_opcount_threshold`).
    max_ops: int
    two_step_variance: int  # a variance of at most so many elements takes the mean first (`use_two_step_variance`)
    # whether gradients of convolutions require eager's layouts (`constrain_to_fx_strides`), not the library's
    # (`convolution_backward_lowering`).
    eager_gradients: bool = False
    # whether rows of a tensor that is reshaped are padded (`View.create`).
    pads_reshaped: bool = False
    # whether a generated kernel does scatter_add (`use_scatter_fallback`): on CPUs only with a single thread.
    adds_in_place: bool = False

    def of_torch(self, torch: str) -> KernelBackend:
        """Returns this backend with the thresholds of a version of torch."""
        if release(torch) >= (2, 13):
            return self
        return replace(
            self,
            heavy=self.heavy & aten("exp sigmoid softplus silu glu"),
            max_reads=TRITON.max_reads,
            max_ops=TRITON.max_ops,
            two_step_variance=self.two_step_variance if release(torch) >= (2, 12) else UNROLLED - 1,
            eager_gradients=True,
            pads_reshaped=True,
        )


CPU = KernelBackend(
    name="cpu",
    gpu=False,
    heavy=aten("exp log log10 log1p log2 sigmoid tanh softplus silu glu"),
    max_reads=12,
    max_ops=50,
    two_step_variance=1024,
)
TRITON = KernelBackend(name="triton", gpu=True, heavy=frozenset(), max_reads=8, max_ops=30, two_step_variance=8)
BACKENDS = {backend.name: backend for backend in (CPU, TRITON)}


def backend_for(graph: Graph, name: str | None) -> KernelBackend:
    """Returns the backend of this name, or of the graph's device, with the thresholds of the torch that captured it.

    Raises:
        InvalidOption: no backend has this name.
    """
    if name is None:
        name = TRITON.name if graph.meta.get("device") == "cuda" else CPU.name
    if not isinstance(name, str) or name not in BACKENDS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}{near(name, BACKENDS)}")
    backend = BACKENDS[name].of_torch(graph.meta.get("torch", ""))
    return replace(backend, adds_in_place=backend.gpu or graph.meta.get("threads") == "1")


def release(torch: str) -> tuple[int, int]:
    """Returns the first two numbers of a version of torch; an unreadable version counts as 2.13.

    >>> release("2.15.0+cpu")
    (2, 15)
    """
    version = re.match(r"(\d+)\.(\d+)", torch)
    return (int(version[1]), int(version[2])) if version else (2, 13)
