"""Turns loops into nests as the scheduler of Triton kernels sees them: every dimension is a separate loop.

Loops are joined only after fusion. Until then, a nest may still reorder or split its loops, so that it accesses a
buffer as another nest does (`loop_ordering_after_fusion`, `loop_reindexing_after_fusion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from remat.predict.kernels.index import Dims, Shape, is_runtime_position, reshaped
from remat.predict.kernels.ir import Loop
from remat.predict.kernels.loops import (
    ANYWHERE,
    Dep,
    Nest,
    access_table,
    in_memory,
    moved_bytes,
    note_wholes,
    one_loop,
    order_of,
    padded,
    step_of,
    without_unit_loops,
)


@dataclass(eq=False, slots=True)
class TritonNest(Nest):
    """Represents a loop nest of a Triton kernel, or a call."""

    walks: tuple[Dep, ...] = ()  # its accesses to memory over all its loops; the write is the last

    @property
    def points(self) -> int:
        return prod(self.sizes)

    def reordered(self, order: Sequence[int]) -> TritonNest:
        sizes = tuple(self.sizes[i] for i in order)
        return self._walking(sizes, [tuple(dims[i] for i in order) for _, dims, _ in self.walks])

    def reindexed(self, sizes: Shape) -> TritonNest:
        """Returns a pointwise nest with loops of other sizes, over the same points in the same order."""
        return self._walking(sizes, [_reindexed(dims, sizes) for _, dims, _ in self.walks])

    def _walking(self, sizes: Shape, dims: Sequence[Dims]) -> TritonNest:
        walks = tuple((buffer, new, start) for (buffer, _, start), new in zip(self.walks, dims, strict=True))
        nest = TritonNest(self.loop, self.index, sizes, ancestors=self.ancestors, place=self.place, walks=walks)
        note_wholes(nest)
        nest.note_walks([_trimmed(row) for row in dims])
        return nest

    def note_walks(self, trimmed: Sequence[Dims]) -> None:
        *reads, write = [(buffer, dims, start) for (buffer, _, start), dims in zip(self.walks, trimmed, strict=True)]
        for dep in reads:
            self.reads[dep] = moved_bytes(dep)
        self.writes[write] = moved_bytes(write)


def triton_nest_of(loop: Loop, index: int) -> TritonNest:
    """Makes a nest of a loop: orders its dimensions, without those of size one."""
    nest = TritonNest(loop, index)
    note_wholes(nest)
    if not loop.generated:
        return nest
    accesses = [(buffer, in_memory(buffer, access)) for buffer, access in loop.reads]
    written = padded(loop.written, len(loop.sizes) + len(loop.reduced))
    accesses.append((loop.writes[0], in_memory(loop.writes[0], written)))
    all_dims = tuple(access[0] for _, access in accesses)
    nest.sizes, nest.reduced, walks, trimmed = _walked(loop.sizes, loop.reduced, all_dims, tuple(loop.reads.values()))
    nest.walks = tuple((buffer, dims, at) for (buffer, (_, at)), dims in zip(accesses, walks, strict=True))
    nest.note_walks(trimmed)
    return nest


# Layers and plans repeat the same loops over other buffers.
@lru_cache(maxsize=1 << 13)
def _walked(
    outer: Shape, reduced: Shape, accesses: tuple[Dims, ...], counts: tuple[int, ...]
) -> tuple[Shape, Shape, tuple[Dims, ...], tuple[Dims, ...]]:
    shape, num_outer, picked = without_unit_loops(outer, reduced, accesses)
    *reads, write = picked
    order = order_of(access_table((write, *reads), (1, *counts)), shape, num_outer)
    walks = tuple(tuple(dims[i] or ((shape[i], 0),) for i in order) for dims in picked)
    kept, reduced = tuple(shape[i] for i in order[:num_outer]), tuple(shape[i] for i in order[num_outer:])
    return kept, reduced, walks, tuple(map(_trimmed, walks))


@lru_cache(maxsize=1 << 14)
def _reindexed(dims: Dims, sizes: Shape) -> Dims:
    return tuple(digits or ((n, 0),) for digits, n in zip(reshaped(dims, sizes), sizes, strict=True))


# Drops the innermost loops on which an access does not depend, such as those of the reduction that writes it.
@lru_cache(maxsize=1 << 14)
def _trimmed(dims: Dims) -> Dims:
    count = len(dims)
    while count and all(s == 0 for _, s in dims[count - 1]):
        count -= 1
    return dims[:count]


def is_somewhere(dep: Dep) -> bool:
    """Returns whether the position of an access is known before the program runs."""
    return dep[2] != ANYWHERE and not is_runtime_position(dep[2])


@lru_cache(maxsize=1 << 14)
def merged_loops(dims: Dims) -> Dims:
    """Joins neighbouring loops that are equal to a single loop for this access (`MemoryDep.normalize`)."""
    row: list[tuple[tuple[int, int], ...]] = []
    for digits in dims:
        if row and one_loop(row[-1], digits, digits[-1][0]):
            row[-1] = ((row[-1][0][0] * digits[0][0], digits[0][1]),)
        else:
            row.append(digits)
    return tuple(row)


@lru_cache(maxsize=1 << 14)
def by_stride(dims: Dims) -> Dims:
    """Sorts loops by stride and joins them (`MemoryDep.normalize_with_stride_order`)."""
    return merged_loops(tuple(sorted(dims, key=step_of, reverse=True)))


def order_to_match(own: Dims, other: Dims) -> list[int] | None:
    """Returns the order of loops that gives one access the strides of another; None if the strides do not determine it.

    Source: `MemoryDep.decide_loop_order_to_match`.
    """
    steps, target = [step_of(digits) for digits in own], [step_of(digits) for digits in other]
    if 0 in steps or 0 in target or len(set(steps)) != len(steps) or set(steps) != set(target):
        return None
    return [steps.index(step) for step in target] if len(target) == len(steps) else None


def same_place(read: Dep, write: Dep) -> bool:
    """Returns whether a read reads exactly what a write writes, point by point (`Scheduler.fusable_read_and_write`)."""
    if read == write:
        return True
    if read[0] is not write[0] or read[2] != write[2] or not is_somewhere(read) or len(read[1]) == len(write[1]):
        return False
    return merged_loops(read[1]) == merged_loops(write[1])
