"""Connects remat to PyTorch: from a model to a `Graph`, and from a plan to a training step that follows it.

No other package of the library imports torch, and `import remat` does not either: `remat.capture`, `remat.compile`,
`remat.SharedBudget` and `remat.choose_regions` load this package on first use. It may import every other package of
`remat`. Each of its packages imports those before it (`inductor` and `eager` do not import each other):

    seam        torch's private names, and patches of torch during a call of this library
    read        from a model to its joint graph, and from that to the facts of a `Graph`
    run         from a plan to a compiled training step: the partitioner that torch calls
    inductor    what TorchInductor generates for a plan: kernels, bytes and memory, and for GPUs the code
    eager       decisions about whole modules, for models that are not compiled
    ahead       predicts the memory of a whole training step before it runs
    measure     measures a step: bytes moved, memory saved and held, time

Begin reading in `read.capture` and `run.partitioner`.
"""

from remat.pytorch.read.capture import capture, capture_all, read_step
from remat.pytorch.run.compile import backend, compile
from remat.pytorch.run.memory_policy import MemoryPolicy
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.run.plan_log import last_report
from remat.pytorch.run.report import Report
from remat.pytorch.run.shared_budget import SharedBudget
from remat.pytorch.seam.kernel_order import KernelOrder
from remat.pytorch.seam.virtual_gpu import virtual_gpu

__all__ = [
    "KernelOrder",
    "MemoryPolicy",
    "Partitioner",
    "Report",
    "SharedBudget",
    "backend",
    "capture",
    "capture_all",
    "compile",
    "last_report",
    "read_step",
    "virtual_gpu",
]
