"""Which kernels TorchInductor makes of a graph, and how many bytes it counts for each.

Scheduling is where Inductor knows: after all fusion, before code is written. It is observed while a
compilation runs, in the process that compiles. Run with torch 2.11.0, 2.13.0 and 2.15.0.
"""

# Inductor's internals carry few types: what comes out of them is unknown to a checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from remat.errors import UnsupportedTorch
from remat.pytorch.seam import versions as seam

_swap = threading.RLock()


@dataclass(frozen=True)
class Kernel:
    """What Inductor launches at once: a generated kernel, or the call of a library or fallback operator.

    Attributes:
        name: Inductor's name, unique in its graph.
        backward: whether it runs in the backward pass.
        generated: Inductor writes it; otherwise it is a call, such as a matrix product.
        operators: names of the FX nodes that it computes, in Inductor's order.
        bytes: read and written, each buffer once however often the kernel touches it, and no more of
            it than the kernel can reach. Inductor's own count: worst-case inputs, best-case kernel.
        reads, writes: the buffers behind `bytes`, each with its share of them, by the FX node that computes
            it or the placeholder that hands it over. What is both read and written is listed as written.
    """

    name: str
    backward: bool
    generated: bool
    operators: tuple[str, ...]
    bytes: int
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()


@contextmanager
def counted() -> Generator[list[Kernel]]:
    """A list that fills with the kernels of every graph that Inductor schedules inside the block.

    Caches are off inside: a graph that comes out of a cache is never scheduled. The backward pass
    runs, and so compiles, on the thread that asks for it: torch's settings belong to a thread since
    2.13, and the threads that autograd keeps for GPUs would look into the cache nevertheless.

    A branch of `torch.cond` and the body of a nested region count as one call, with what goes in
    and out, as in Inductor's own metrics.

    Raises:
        UnsupportedTorch: the installed torch lacks what counting relies on.
    """
    inductor = _inductor()
    kernels: list[Kernel] = []
    seen: list[Any] = []
    codegen: Callable[[Any], Any] = inductor["scheduler"].Scheduler.codegen

    def observed(scheduler: Any) -> Any:
        graph = inductor["virtualized"].V.graph
        # The C++ wrapper generates code twice for one graph.
        if not isinstance(graph, inductor["graph"].SubgraphLowering) and all(graph is not other for other in seen):
            seen.append(graph)
            kernels.extend(scheduled_kernels(graph))
        return codegen(scheduler)

    with (
        _swap,
        patch.object(inductor["scheduler"].Scheduler, "codegen", observed),
        torch.compiler.config.patch(force_disable_caches=True),  # type: ignore[attr-defined]
        torch.autograd.set_multithreading_enabled(False),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled")  # it is one of the caches
        yield kernels


def scheduled_kernels(lowering: Any) -> list[Kernel]:
    """The kernels of one of Inductor's graphs, in order; while Inductor works on it, after scheduling."""
    scheduler, ir = _inductor()["scheduler"], _inductor()["ir"]
    return [
        _kernel(node, lowering)
        for node in lowering.scheduler.nodes
        # Neither launches anything: a concatenation in place, and one result out of a call's several.
        if not isinstance(node, scheduler.NopKernelSchedulerNode) and not isinstance(node.node, ir.MultiOutput)
    ]


def operators(node: Any) -> tuple[str, ...]:
    """Names of the FX nodes that one of the scheduler's nodes computes, in Inductor's order."""
    return tuple(dict.fromkeys(origin.name for part in node.get_nodes() for origin in part.node.get_origins()))


def _kernel(node: Any, lowering: Any) -> Kernel:
    accessed: dict[str, int] = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    written = {access.name for access in node.read_writes.writes}
    named = [(name, _origin(name, lowering), bytes_) for name, bytes_ in accessed.items()]
    return Kernel(
        name=node.get_name(),
        backward=bool(lowering.is_backward),
        generated=not isinstance(node, _inductor()["scheduler"].ExternKernelSchedulerNode),
        operators=operators(node),
        bytes=sum(accessed.values()),
        reads=tuple((origin, bytes_) for name, origin, bytes_ in named if name not in written),
        writes=tuple((origin, bytes_) for name, origin, bytes_ in named if name in written),
    )


def _origin(name: str, lowering: Any) -> str:
    """The FX node behind a buffer; a placeholder's buffer has its name already."""
    buffer = lowering.name_to_buffer.get(name)
    origin = buffer.get_origin_node() if buffer is not None and name not in lowering.graph_inputs else None
    return name if origin is None else origin.name


_USED = {
    "torch._inductor.scheduler": (
        "Scheduler.codegen",
        "BaseSchedulerNode.get_read_write_buffer_accesses",
        "BaseSchedulerNode.get_nodes",
        "NopKernelSchedulerNode",
        "ExternKernelSchedulerNode",
    ),
    "torch._inductor.ir": ("MultiOutput", "Operation.get_origins"),
    "torch._inductor.graph": ("GraphLowering", "SubgraphLowering"),
    "torch._inductor.virtualized": ("V",),
}


@cache
def _inductor() -> dict[str, Any]:
    return checked_modules(_USED)


def checked_modules(used: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Private modules of torch, by their last name without underscores, checked for what is used of them.

    Args:
        used: path -> names in it, with dots for attributes of them.

    Raises:
        UnsupportedTorch: the installed torch lacks something.
    """
    modules: dict[str, Any] = {}
    for path, names in used.items():
        try:
            found = modules[path.rpartition(".")[2].lstrip("_")] = import_module(path)
        except ImportError as error:
            raise unsupported(f"{path} cannot be imported ({error})") from None
        for name in names:
            owner = found
            for part in name.split("."):
                owner = getattr(owner, part, None)
            if owner is None:
                raise unsupported(f"{path}.{name} is gone")
    return modules


def unsupported(what: str) -> UnsupportedTorch:
    """The error for a torch without something that measuring relies on."""
    return seam.unsupported(what, "cannot be measured")
