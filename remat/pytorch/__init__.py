"""Holds everything about PyTorch: from a model to a `Graph`, and from a plan to a training step that follows it.

Nothing else in the library imports torch, and `import remat` does not either: `remat.capture`, `remat.compile`,
`remat.SharedBudget` and `remat.selective_policy` load this package when they are first used. It may import every floor
of `remat`. Seven rooms, each of which imports those before it (`inductor` and `eager` leave each other alone):

    seam        torch's private names, and what is exchanged in torch while one of our calls runs
    read        from a model to its joint graph, and from that to the facts of a `Graph`
    run         from a plan to a compiled training step: the partitioner that torch calls
    inductor    what TorchInductor makes of a plan: its kernels, bytes and memory, and for GPUs their code
    eager       from a plan to a policy of checkpointing, for models that are not compiled
    ahead       what a whole training step will hold, before it runs
    measure     what a step really does: bytes moved, memory kept and held, time

Begin with `read.capture` and `run.partitioner`.
"""

from remat.pytorch.read.capture import capture, capture_all
from remat.pytorch.read.traced_step import read_step
from remat.pytorch.run.compile import backend, compile
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.run.report import Report, last_report
from remat.pytorch.run.shared_budget import SharedBudget
from remat.pytorch.seam.virtual_gpu import virtual_gpu

__all__ = [
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
