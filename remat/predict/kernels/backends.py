"""Names the backends of TorchInductor whose kernels are predicted, with the thresholds in which they differ.

Read in torch 2.11, 2.12 and 2.13 (`torch/_inductor/ir.py`, `config.py`, `lowering.py`). What both have in common is in
`rules`.
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
    """Describes a backend of TorchInductor by the thresholds at which it stores a value."""

    name: str  # "cpu" or "triton"
    gpu: bool  # whether its kernels run on a GPU
    # operators that it would rather store than compute twice (`StorageBox.should_realize_on_reuse`).
    heavy: frozenset[str]
    # what reads more tensors is stored (`realize_cpu_acc_reads_threshold`, `realize_acc_reads_threshold`).
    max_reads: int
    # what several operators read is stored beyond so many operations (`realize_cpu_opcount_threshold`,
    # `realize_opcount_threshold`).
    max_ops: int
    two_step_variance: int  # up to so many elements, a variance takes the mean first (`use_two_step_variance`)
    # whether gradients of convolutions ask for the layouts of eager (`constrain_to_fx_strides`), not for those that
    # suit the library (`convolution_backward_lowering`).
    eager_gradients: bool = False
    # whether a kernel adds to places that it looks up (`use_scatter_fallback`): on CPUs, where one thread runs.
    adds_in_place: bool = False

    def of_torch(self, torch: str) -> KernelBackend:
        """Returns the backend as it was in a version of torch."""
        if release(torch) >= (2, 13):
            return self
        return replace(
            self,
            heavy=self.heavy & aten("exp sigmoid softplus silu"),
            max_reads=TRITON.max_reads,
            max_ops=TRITON.max_ops,
            two_step_variance=self.two_step_variance if release(torch) >= (2, 12) else UNROLLED - 1,
            eager_gradients=True,
        )


CPU = KernelBackend(
    name="cpu",
    gpu=False,
    heavy=aten("exp log log10 log1p log2 sigmoid tanh softplus silu"),
    max_reads=12,
    max_ops=50,
    two_step_variance=1024,
)
TRITON = KernelBackend(name="triton", gpu=True, heavy=frozenset(), max_reads=8, max_ops=30, two_step_variance=8)
BACKENDS = {backend.name: backend for backend in (CPU, TRITON)}


def backend_for(graph: Graph, name: str | None) -> KernelBackend:
    """Returns a backend by name, of the torch that captured the graph; without a name, that of the graph's device.

    Raises:
        InvalidOption: there is no such backend.
    """
    if name is None:
        name = TRITON.name if graph.meta.get("device") == "cuda" else CPU.name
    if not isinstance(name, str) or name not in BACKENDS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}{near(name, BACKENDS)}")
    backend = BACKENDS[name].of_torch(graph.meta.get("torch", ""))
    return replace(backend, adds_in_place=backend.gpu or graph.meta.get("threads") == "1")


def release(torch: str) -> tuple[int, int]:
    """Reads the first two numbers of a version of torch; one that cannot be read counts as 2.13.

    >>> release("2.15.0+cpu")
    (2, 15)
    """
    version = re.match(r"(\d+)\.(\d+)", torch)
    return (int(version[1]), int(version[2])) if version else (2, 13)
