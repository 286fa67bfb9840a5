"""Counts the kernels that TorchInductor schedules for a graph, and the bytes of each.

The count is taken after all fusion and before code generation, while a compilation runs, in the thread that compiles.
Run with torch 2.11.0, 2.13.0 and 2.15.0.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from remat.pytorch.seam.inductor_lowering import before_code, is_generated, is_inside_another, launched
from remat.pytorch.seam.torch_settings import nothing_cached


@dataclass(frozen=True)
class InductorKernel:
    """Describes one launch in Inductor's code: a generated kernel, or the call of a library or of an eager operator."""

    name: str  # Inductor's name, unique in its graph
    backward: bool  # whether it runs in the backward pass
    generated: bool  # whether Inductor writes it; otherwise it is a call, such as a matrix product
    operators: tuple[str, ...]  # names of the FX nodes that it computes, in Inductor's order
    # bytes read and written: each buffer once, and at most what the kernel can reach. Inductor's own count: worst-case
    # inputs, best-case kernel.
    bytes: int
    # the buffers of `bytes`, each with its share, named by the FX node that computes it or by the placeholder. A buffer
    # that is both read and written is listed as written.
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()

    def renamed(self, names: Mapping[str, str]) -> InductorKernel:
        """Replaces names of what the kernel accesses."""
        reads, writes = (
            tuple((names.get(name, name), bytes_) for name, bytes_ in accessed)
            for accessed in (self.reads, self.writes)
        )
        return replace(self, reads=reads, writes=writes)


@contextmanager
def counting_kernels() -> Generator[list[InductorKernel]]:
    """Yields a growing list of the kernels that Inductor schedules in this thread within the block.

    Caches are off inside, because a graph from a cache is never scheduled. The backward pass runs, and compiles, in the
    calling thread: since torch 2.13, settings belong to a thread, so autograd's GPU threads would use the
    cache. A branch of `torch.cond` and the body of a nested region count as one call, with their inputs and outputs, as
    in Inductor's own metrics.
    """
    kernels: list[InductorKernel] = []
    visited: list[Any] = []

    def visit(lowering: Any) -> None:
        # The C++ wrapper generates code twice for one graph.
        if not is_inside_another(lowering) and all(lowering is not other for other in visited):
            visited.append(lowering)
            kernels.extend(scheduled_kernels(lowering))

    with before_code(visit), nothing_cached(), torch.autograd.set_multithreading_enabled(False):
        yield kernels


def scheduled_kernels(lowering: Any) -> list[InductorKernel]:
    """Returns the kernels of one of Inductor's graphs after scheduling, in order."""
    return [_kernel(node, lowering) for node in launched(lowering)]


def _kernel(node: Any, lowering: Any) -> InductorKernel:
    accessed: dict[str, int] = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    written = {access.name for access in node.read_writes.writes}
    origins = (origin for part in node.get_nodes() for origin in part.node.get_origins())
    named = [(name, _origin(name, lowering), bytes_) for name, bytes_ in accessed.items()]
    return InductorKernel(
        name=node.get_name(),
        backward=bool(lowering.is_backward),
        generated=is_generated(node),
        operators=tuple(dict.fromkeys(origin.name for origin in origins)),
        bytes=sum(accessed.values()),
        reads=tuple((origin, bytes_) for name, origin, bytes_ in named if name not in written),
        writes=tuple((origin, bytes_) for name, origin, bytes_ in named if name in written),
    )


# The buffer of a placeholder already has the placeholder's name.
def _origin(name: str, lowering: Any) -> str:
    buffer = lowering.name_to_buffer.get(name)
    origin = buffer.get_origin_node() if buffer is not None and name not in lowering.graph_inputs else None
    return name if origin is None else origin.name
