"""Names the backends of TorchInductor whose kernels are predicted, with the thresholds in which they differ.

Read in torch 2.13 (`torch/_inductor/ir.py`, `config.py`). What both have in common is in `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.words import near


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


@dataclass(frozen=True)
class KernelBackend:
    """What TorchInductor writes kernels in, and when it stores a value for its sake.

    Attributes:
        name: "cpu" or "triton".
        gpu: its kernels are Triton's, and run on a GPU.
        heavy: operators that it would rather store than compute twice (`StorageBox.should_realize_on_reuse`).
        max_reads: what reads more tensors is stored (`realize_cpu_acc_reads_threshold`, `realize_acc_reads_threshold`).
        max_ops: what several operators read is stored beyond so many operations (`realize_cpu_opcount_threshold`,
            `realize_opcount_threshold`).
        two_step_variance: up to so many elements, a variance takes the mean first (`use_two_step_variance`).
    """

    name: str
    gpu: bool
    heavy: frozenset[str]
    max_reads: int
    max_ops: int
    two_step_variance: int


CPU = KernelBackend(
    name="cpu",
    gpu=False,
    heavy=_aten("exp log log10 log1p log2 sigmoid tanh softplus silu"),
    max_reads=12,
    max_ops=50,
    two_step_variance=1024,
)
TRITON = KernelBackend(name="triton", gpu=True, heavy=frozenset(), max_reads=8, max_ops=30, two_step_variance=8)
BACKENDS = {backend.name: backend for backend in (CPU, TRITON)}


def backend_for(graph: Graph, name: str | None) -> KernelBackend:
    """Returns a backend by name; without a name, that of the device on which the graph was captured.

    Raises:
        InvalidOption: there is no such backend.
    """
    if name is None:
        return TRITON if graph.meta.get("device") == "cuda" else CPU
    if not isinstance(name, str) or name not in BACKENDS:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}{near(name, BACKENDS)}")
    return BACKENDS[name]
