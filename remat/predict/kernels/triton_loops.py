"""Turns loops into nests as the scheduler of Triton's kernels sees them: every dimension is a loop of its own.

Which loops are one is decided only after fusion. Until then, a nest may still walk through its dimensions in another
order, or as two loops, so that it accesses a buffer as another nest does (`loop_ordering_after_fusion`,
`loop_reindexing_after_fusion`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from remat.predict.kernels.index import Dims, Shape, is_looked_up, reshaped
from remat.predict.kernels.ir import Loop
from remat.predict.kernels.loops import (
    ANYWHERE,
    Dep,
    Nest,
    in_memory,
    moved_bytes,
    note_wholes,
    one_loop,
    order_of,
    padded,
    step_of,
)


@dataclass(eq=False, slots=True)
class TritonNest(Nest):
    """Holds a loop nest of a Triton kernel, or a call."""

    walks: tuple[Dep, ...] = ()  # its accesses to memory over all its loops; the write is the last

    @property
    def points(self) -> int:
        return prod(self.sizes)

    def reordered(self, order: Sequence[int]) -> TritonNest:
        """Returns a pointwise nest with its loops in another order."""
        sizes = tuple(self.sizes[i] for i in order)
        return self._walking(sizes, [tuple(dims[i] for i in order) for _, dims, _ in self.walks])

    def reindexed(self, sizes: Shape) -> TritonNest:
        """Returns a pointwise nest with loops of other sizes, over the same points in the same order."""
        return self._walking(sizes, [_filled(reshaped(dims, sizes), sizes) for _, dims, _ in self.walks])

    def _walking(self, sizes: Shape, dims: Sequence[Dims]) -> TritonNest:
        walks = tuple((buffer, new, start) for (buffer, _, start), new in zip(self.walks, dims, strict=True))
        nest = TritonNest(self.loop, self.index, sizes, ancestors=self.ancestors, place=self.place, walks=walks)
        note_wholes(nest)
        nest.note_walks()
        return nest

    def note_walks(self) -> None:
        for walk in self.walks[:-1]:
            dep = _trimmed(walk)
            self.reads[dep] = moved_bytes(dep)
        dep = _trimmed(self.walks[-1])
        self.writes[dep] = moved_bytes(dep)


def triton_nest_of(loop: Loop, index: int) -> TritonNest:
    """Makes a nest of a loop: orders its dimensions, and leaves out those of size one."""
    nest = TritonNest(loop, index)
    note_wholes(nest)
    if not loop.generated:
        return nest
    sizes = loop.sizes + loop.reduced
    real = [i for i, n in enumerate(sizes) if n != 1]
    shape = tuple(sizes[i] for i in real)
    num_outer = sum(i < len(loop.sizes) for i in real)
    accesses = [(buffer, in_memory(buffer, access)) for buffer, access in loop.reads]
    accesses.append((loop.writes[0], in_memory(loop.writes[0], padded(loop.written, len(sizes)))))
    picked = [tuple(access[0][i] for i in real) for _, access in accesses]
    times: dict[Dims, int] = {}
    for dims, count in zip((picked[-1], *picked), (1, *loop.reads.values(), 0), strict=True):
        times[dims] = times.get(dims, 0) + count
    order = order_of(tuple(times.items()), shape, num_outer)
    nest.sizes = tuple(shape[i] for i in order[:num_outer])
    nest.reduced = tuple(shape[i] for i in order[num_outer:])
    nest.walks = tuple(
        (buffer, tuple(dims[i] or ((shape[i], 0),) for i in order), access[1])
        for (buffer, access), dims in zip(accesses, picked, strict=True)
    )
    nest.note_walks()
    return nest


def _filled(dims: Dims, sizes: Shape) -> Dims:
    return tuple(digits or ((n, 0),) for digits, n in zip(dims, sizes, strict=True))


# An access does not depend on the innermost loops of a reduction that writes it.
def _trimmed(walk: Dep) -> Dep:
    buffer, dims, start = walk
    count = len(dims)
    while count and all(s == 0 for _, s in dims[count - 1]):
        count -= 1
    return buffer, dims[:count], start


def is_somewhere(dep: Dep) -> bool:
    """Says whether the place of an access is known before the program runs."""
    return dep[2] != ANYWHERE and not is_looked_up(dep[2])


@lru_cache(maxsize=1 << 14)
def merged_loops(dims: Dims) -> Dims:
    """Joins neighbouring loops through which an access walks as one (`MemoryDep.normalize`)."""
    row: list[tuple[tuple[int, int], ...]] = []
    for digits in dims:
        if row and one_loop(row[-1], digits, digits[-1][0]):
            row[-1] = ((row[-1][0][0] * digits[0][0], digits[0][1]),)
        else:
            row.append(digits)
    return tuple(row)


@lru_cache(maxsize=1 << 14)
def by_stride(dims: Dims) -> Dims:
    """Joins loops after it has sorted them by stride (`MemoryDep.normalize_with_stride_order`)."""
    return merged_loops(tuple(sorted(dims, key=step_of, reverse=True)))


def order_to_match(own: Dims, other: Dims) -> list[int] | None:
    """Returns the order of loops in which one access walks like another; None if the strides do not tell.

    As `MemoryDep.decide_loop_order_to_match`.
    """
    steps, wanted = [step_of(digits) for digits in own], [step_of(digits) for digits in other]
    if 0 in steps or 0 in wanted or len(set(steps)) != len(steps) or set(steps) != set(wanted):
        return None
    return [steps.index(step) for step in wanted] if len(wanted) == len(steps) else None


def same_place(read: Dep, write: Dep) -> bool:
    """Says whether a read is of just what a write writes, point by point (`Scheduler.fusable_read_and_write`)."""
    if read == write:
        return True
    if read[0] is not write[0] or read[2] != write[2] or not is_somewhere(read) or len(read[1]) == len(write[1]):
        return False
    return merged_loops(read[1]) == merged_loops(write[1])
