"""Replays the allocations of a step in CUDA's caching allocator, whose blocks are larger than what is asked for.

As torch's `CUDACachingAllocator.cpp` without options: requests are rounded up to 512 bytes; those of at most 1 MiB are
cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, and others from segments of a multiple of 2 MiB.
The smallest free block that is large enough is taken. It is cut unless 1 MiB or less would be left, and then all of it
counts as allocated. Free neighbours become one block.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from remat.predict.memory.lifetimes import Lifetimes

_ROUNDED, _SMALL, _LARGE = 512, 2**20, 10 * 2**20
_SMALL_SEGMENT, _SEGMENT, _MULTIPLE = 2 * 2**20, 20 * 2**20, 2 * 2**20


@dataclass(eq=False)
class _Block:
    size: int
    address: int
    small: bool
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    def key(self) -> tuple[int, int]:
        return self.size, self.address


class CachingAllocator:
    """Counts the bytes of the blocks that are in use, as `torch.cuda.memory_allocated` does."""

    def __init__(self) -> None:
        self.allocated_bytes = self.most_bytes = 0
        self._free: dict[bool, list[_Block]] = {True: [], False: []}
        self._next = 0

    def allocate(self, size: int) -> _Block:
        """Takes a block for so many bytes."""
        size = max(_up(size, _ROUNDED), _ROUNDED)
        small, free = size <= _SMALL, self._free[size <= _SMALL]
        at = bisect_left(free, (size, -1), key=_Block.key)
        block = free.pop(at) if at < len(free) else self._segment(size, small)
        left = block.size - size
        if left >= _ROUNDED if small else left > _SMALL:
            rest = _Block(left, block.address + size, small, before=block, after=block.after)
            if rest.after is not None:
                rest.after.before = rest
            block.size, block.after = size, rest
            insort(free, rest, key=_Block.key)
        block.free = False
        self.allocated_bytes += block.size
        self.most_bytes = max(self.most_bytes, self.allocated_bytes)
        return block

    def release(self, block: _Block) -> None:
        """Gives a block back."""
        self.allocated_bytes -= block.size
        free = self._free[block.small]
        for first, second in ((block, block.after), (block.before, block)):
            if first is None or second is None:
                continue
            other = second if first is block else first
            if other.free:
                free.remove(other)
                first.size, first.after, block = first.size + second.size, second.after, first
                if first.after is not None:
                    first.after.before = first
        block.free = True
        insort(free, block, key=_Block.key)

    def _segment(self, size: int, small: bool) -> _Block:
        self._next += 2**50  # segments are no neighbours
        return _Block(
            _SMALL_SEGMENT if small else _SEGMENT if size < _LARGE else _up(size, _MULTIPLE), self._next, small
        )


def allocated_peak(lifetimes: Lifetimes) -> int:
    """Returns the most bytes that a step has allocated, if nothing was allocated before it."""
    allocator, held = CachingAllocator(), dict[int, _Block]()
    order = np.argsort(lifetimes.start, kind="stable").tolist()
    by_end: dict[int, list[int]] = {}
    at = 0
    for step in range(int(lifetimes.start.max()) + 1):
        while at < len(order) and lifetimes.start[order[at]] == step:
            held[order[at]] = allocator.allocate(int(lifetimes.size[order[at]]))
            by_end.setdefault(int(lifetimes.end[order[at]]), []).append(order[at])
            at += 1
        for storage in by_end.get(step, ()):
            allocator.release(held.pop(storage))
    return allocator.most_bytes


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
