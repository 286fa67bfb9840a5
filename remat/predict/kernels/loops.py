"""Turns loops into nests as a scheduler sees them: which dimensions form one loop, their order, and the accesses.

TorchInductor's C++ backend orders the loops of a node by the strides of its accesses, and joins loops where all
accesses treat them as one. Two nodes fuse if the remaining loops are equal (`ComputedBuffer.simplify_and_reorder`,
`CppScheduling._why_fuse_nodes`). They share data where they access a buffer in the same way (`MemoryDep`, normalized).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key, lru_cache
from math import prod

from remat.predict.kernels.index import (
    STEPS,
    Access,
    Digits,
    Dims,
    Shape,
    composed,
    contiguous_strides,
    is_runtime_position,
    strided,
    strides_in,
    unmarked,
)
from remat.predict.kernels.ir import Buffer, Loop, no_entries

Dep = tuple[Buffer, Dims, int]
"""An access in normal form: equal accesses of two nests are equal. No dims and offset -1 mean the whole buffer."""

ANYWHERE = -1

AccessTable = tuple[tuple[Dims, int], ...]
"""Accesses, each with how often it is made."""


@dataclass(eq=False, slots=True)
class Nest:
    """Represents a loop nest or a call, with its accesses."""

    loop: Loop
    index: int  # how many nests were created before it
    # sizes, reduced: the loops that remain after joining.
    sizes: Shape = ()
    reduced: Shape = ()
    # all accesses over the loops before joining and ordering: kept loops first, then reduced ones.
    formulas: tuple[Dims, ...] = ()
    # reads, writes: accesses, each with the bytes that it moves.
    reads: dict[Dep, int] = field(default_factory=no_entries)
    writes: dict[Dep, int] = field(default_factory=no_entries)
    table: AccessTable = ()  # those of `formulas` that access memory, each with how often
    ancestors: int = 0  # bits of the nests that it depends on
    place: int = 0  # how many nests were created before it, if each result of a call counts as one

    @property
    def is_reduction(self) -> bool:
        return bool(self.loop.reduced)


def decide_layout(loop: Loop) -> None:
    """Sets the strides of buffers that a loop writes, if they are still None, by the order in which the loop reads."""
    for buffer in loop.writes:
        if buffer.strides is None and loop.generated and loop.reads and len(loop.sizes) > 1:
            reads = tuple(in_memory(read, access)[0] for read, access in loop.reads)
            buffer.lay_out(_like_reads(buffer.shape, loop.sizes, reads))
        buffer.fix()


# As `ComputedBuffer.get_fill_order`.
@lru_cache(maxsize=1 << 13)
def _like_reads(shape: Shape, sizes: Shape, reads: tuple[Dims, ...]) -> Shape:
    kept = _positions(shape, sizes)
    table: list[tuple[Shape, int]] = []
    for dims in reads:
        steps = [abs(step_of(digits)) for digits in dims]
        row = [0] * len(shape)
        for i, dim in enumerate(kept):
            row[dim] = steps[i]
        table.append((tuple(row), 1))
    return strides_in(_loop_order(table, shape), shape)


# A reduction may keep dimensions of size one, which have no loop.
def _positions(shape: Shape, sizes: Shape) -> list[int]:
    dims: list[int] = []
    for dim, n in enumerate(shape):
        spare = len(shape) - dim > len(sizes) - len(dims)
        if len(dims) < len(sizes) and sizes[len(dims)] == n and not (spare and n == 1):
            dims.append(dim)
    return dims


def in_memory(buffer: Buffer, access: Access) -> Access:
    """Converts an access to row-major positions of a buffer into an access to places in memory."""
    return _in_memory(buffer.shape, buffer.strides or contiguous_strides(buffer.shape), buffer.offset, access)


@lru_cache(maxsize=1 << 16)
def _in_memory(shape: Shape, strides: Shape, offset: int, access: Access) -> Access:
    access = unmarked(access[0]), access[1]
    if offset == 0 and strides == contiguous_strides(shape):
        return access
    return composed(access, (strided(shape, strides), offset))


def nest_of(loop: Loop, index: int) -> Nest:
    """Makes a nest of a loop: orders and joins its dimensions, and normalizes its accesses."""
    nest = Nest(loop, index)
    note_wholes(nest)
    if not loop.generated:
        return nest
    rank = len(loop.sizes) + len(loop.reduced)
    written = in_memory(loop.writes[0], padded(loop.written, rank))
    reads = [(buffer, in_memory(buffer, access)) for buffer, access in loop.reads]
    accesses = (written[0], *(access[0] for _, access in reads))
    extra = tuple(padded(index, rank)[0] for index in loop.indices)
    nest.sizes, nest.reduced, nest.formulas, nest.table, (first, *others) = _walked(
        loop.sizes, loop.reduced, accesses, (1, *loop.reads.values()), extra
    )
    for (buffer, access), dims in zip(reads, others, strict=True):
        dep = (buffer, dims, access[1])
        nest.reads[dep] = moved_bytes(dep)
    dep = (loop.writes[0], first, written[1])
    nest.writes[dep] = moved_bytes(dep)
    return nest


# Cached: layers and plans repeat the same loops over other buffers. Returns fields of a nest and normalized accesses.
@lru_cache(maxsize=1 << 13)
def _walked(
    outer: Shape, reduced: Shape, accesses: tuple[Dims, ...], counts: tuple[int, ...], extra: tuple[Dims, ...]
) -> tuple[Shape, Shape, tuple[Dims, ...], AccessTable, tuple[Dims, ...]]:
    shape, num_outer, picked = without_unit_loops(outer, reduced, (*accesses, *map(unmarked, extra)))
    picked, others = picked[: len(accesses)], picked[len(accesses) :]
    table = access_table(picked, counts)
    formulas = tuple(dict.fromkeys((*picked, *others)))
    order = order_of(table, shape, num_outer)
    joined = _joined(formulas, shape, num_outer, order)
    return *joined, formulas, table, tuple(_normal(dims, shape, order) for dims in picked)


def without_unit_loops(outer: Shape, reduced: Shape, accesses: Sequence[Dims]) -> tuple[Shape, int, list[Dims]]:
    """Removes loops of size one; returns the other sizes, how many of them are outer loops, and the accesses."""
    sizes = outer + reduced
    real = [i for i, n in enumerate(sizes) if n != 1]
    picked = [tuple(dims[i] for i in real) for dims in accesses]
    return tuple(sizes[i] for i in real), sum(i < len(outer) for i in real), picked


def access_table(accesses: Sequence[Dims], counts: Sequence[int]) -> AccessTable:
    """Returns how often each access is made, in the order of first occurrence."""
    times: dict[Dims, int] = {}
    for dims, count in zip(accesses, counts, strict=True):
        times[dims] = times.get(dims, 0) + count
    return tuple(times.items())


def note_wholes(nest: Nest) -> None:
    """Adds the accesses to whole buffers: all those of a call, and the one to the buffer that a scatter modifies."""
    if nest.loop.mutates is not None:
        nest.reads[nest.loop.mutates, (), ANYWHERE] = nest.loop.mutates.bytes
    if not nest.loop.generated:
        for buffer, _ in nest.loop.reads:
            nest.reads[buffer, (), ANYWHERE] = buffer.bytes
        for buffer in nest.loop.writes:
            nest.writes[buffer, (), ANYWHERE] = buffer.bytes


def padded(access: Access, rank: int) -> Access:
    """Extends an access by dimensions on which it does not depend."""
    dims, start = access
    return (dims + ((),) * (rank - len(dims)), start) if len(dims) < rank else access


def step_of(digits: Digits) -> int:
    """Returns the step of an access along one loop, in elements; for an opaque digit see `index.uneven`."""
    if not digits:
        return 0
    step = digits[-1][1]
    return step if step > -STEPS else -step % STEPS


@lru_cache(maxsize=1 << 13)
def order_of(table: AccessTable, shape: Shape, num_outer: int) -> tuple[int, ...]:
    """Orders loops by strides, the outermost first: the `num_outer` kept loops, then the reduced ones."""
    steps = [(tuple(abs(step_of(digits)) for digits in dims), times) for dims, times in table]
    first = _loop_order([(row[:num_outer], times) for row, times in steps], shape[:num_outer])
    last = _loop_order([(row[num_outer:], times) for row, times in steps], shape[num_outer:])
    return (*reversed(first), *(num_outer + i for i in reversed(last)))


# As `scheduler.pick_loop_order`: the loop with the smallest steps, the innermost, comes first.
def _loop_order(table: Sequence[tuple[Shape, int]], shape: Shape) -> list[int]:
    def compared(a: int, b: int) -> int:
        if shape[a] == 1 or shape[b] == 1:
            return (shape[a] == 1) - (shape[b] == 1)
        first = sum(times for row, times in table if row[b] == 0 or row[a] < row[b])
        second = sum(times for row, times in table if row[a] == 0 or row[b] < row[a])
        if first != second:
            return -1 if first > second else 1
        return (b > a) - (b < a)

    order = list(reversed(range(len(shape))))
    order.sort(key=cmp_to_key(compared))
    return order


@lru_cache(maxsize=1 << 13)
def _joined(formulas: tuple[Dims, ...], shape: Shape, num_outer: int, order: tuple[int, ...]) -> tuple[Shape, Shape]:
    parts: list[Shape] = []
    for part in (order[:num_outer], order[num_outer:]):
        sizes: list[int] = []
        for k, i in enumerate(part):
            if k and all(one_loop(dims[part[k - 1]], dims[i], shape[i]) for dims in formulas):
                sizes[-1] *= shape[i]
            else:
                sizes.append(shape[i])
        parts.append(tuple(sizes))
    return parts[0], parts[1]


def one_loop(outer: Digits, inner: Digits, size: int) -> bool:
    """Returns whether an access treats two neighbouring dimensions as a single loop."""
    if len(outer) > 1 or len(inner) > 1 or any(s <= -STEPS for _, s in (*outer, *inner)):
        return False  # only the first step of an uneven digit is known
    a, b = step_of(outer), step_of(inner)
    return a == b * size and a >= 0


@lru_cache(maxsize=1 << 14)
def _normal(dims: Dims, shape: Shape, order: tuple[int, ...]) -> Dims:
    row: list[Digits] = []
    for i in order:
        digits: Digits = dims[i] or ((shape[i], 0),)
        if row and one_loop(row[-1], digits, shape[i]):
            row[-1] = ((row[-1][0][0] * shape[i], digits[0][1]),)
        else:
            row.append(digits)
    while row and len(row[-1]) == 1 and row[-1][0][1] == 0:
        row.pop()
    return tuple(row)


def moved_bytes(dep: Dep) -> int:
    """Returns the bytes of an access by Inductor's estimate: its points, or the whole buffer if these are unknown."""
    buffer, dims, offset = dep
    points = None if is_runtime_position(offset) else _points(dims)
    return buffer.bytes if points is None else points * buffer.itemsize


@lru_cache(maxsize=1 << 14)
def _points(dims: Dims) -> int | None:
    # Of an uneven digit the step is known, and Inductor counts its points as if they were distinct (`MemoryDep`).
    if any(-STEPS < s < 0 for digits in dims for _, s in digits[:1]):
        return None
    moving = (digits for digits in dims if any(s for _, s in digits))
    return prod(n for digits in moving for n, _ in digits)


def same_after_joining(one: Nest, other: Nest) -> bool:
    """Returns whether two nests have equal loops if loops are joined only where the accesses of both nests allow it."""
    if one.loop.sizes != other.loop.sizes or len(one.formulas[0]) != len(other.formulas[0]):
        return False
    shape = tuple(n for n in one.loop.sizes if n != 1)
    both = tuple(dict.fromkeys((*one.formulas, *other.formulas)))
    left = _joined(both, shape, len(shape), order_of(one.table, shape, len(shape)))
    return left == _joined(both, shape, len(shape), order_of(other.table, shape, len(shape)))
