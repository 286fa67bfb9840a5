"""Decides when a value is stored and in which layout, and says what reading it reads.

This follows `StorageBox` and `ExternKernel` of torch 2.13 (`torch/_inductor/ir.py`), in small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.backends import KernelBackend
from remat.predict.kernels.index import (
    Access,
    Shape,
    broadcasts,
    contiguous_strides,
    identity,
    opaque,
    strided,
    strides_of,
    through,
)
from remat.predict.kernels.ir import Box, Buffer, Loop, Read, Reads, View, merged
from remat.predict.kernels.loops import decide_layout
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.strides import channels_last, same_layout
from remat.predict.kernels.view_maps import expanded


class Stores:
    """Collects the loops of one pass, and decides which values are stored.

    Attributes:
        strides: that eager would give each value in this pass.
    """

    def __init__(
        self, calls: Sequence[Call], weights: Sequence[rules.Weight], strides: Sequence[Shape], backend: KernelBackend
    ) -> None:
        self.calls, self.strides, self.backend = calls, strides, backend
        self.loops: list[Loop] = []
        self._weights = list(weights)

    def loads(self, seen: View) -> Reads:
        """Returns what a reader of a value reads: the buffer of the value, or what its expression reads."""
        box = seen.box
        if not seen.inlined:
            assert box.buffer is not None
            return {(box.buffer, seen.access): 1}
        if seen.plain:
            return box.reads
        reads: Reads = {}
        for (buffer, access), times in box.reads.items():
            read = (buffer, through(seen.access, access))
            reads[read] = reads.get(read, 0) + times
        return reads

    def store(self, box: Box, strides: Shape | None = None) -> Buffer:
        """Returns the buffer of a value. An expression gets a buffer, and a loop that writes it."""
        if box.buffer is None:
            box.buffer = Buffer(box.value, box.shape, box.itemsize, strides)
            written = (identity(box.shape), 0)
            self.loops.append(Loop(box.ops, box.reads, [box.buffer], box.shape, (), box.indices, written))
            if box.reads:  # what reads nothing stays an expression besides
                box.reads, box.ops, box.heavy, box.indices = {}, frozenset(), False, ()
        return box.buffer

    def settle(self, buffer: Buffer) -> None:
        """Fixes the strides of a buffer, in the order in which its loop reads."""
        if buffer.strides is None:
            for loop in reversed(self.loops):
                if buffer in loop.writes:
                    decide_layout(loop)
                    break
        buffer.fix()

    def settle_rows(self, seen: View) -> None:
        """Fixes the strides of a buffer that is about to be reshaped: row-major, unless they are fixed already."""
        if seen.plain and seen.box.buffer is not None:
            seen.box.buffer.fix()

    def copy(self, seen: View, strides: Shape | None = None) -> View:
        """Adds a loop that stores a value as the view shows it. The copy of a buffer computes no value."""
        draft = Draft(self, set())
        draft.take(seen)
        whole = draft.done(seen.box.value, seen.shape, seen.box.itemsize)
        self.store(whole.box, strides)
        return whole

    def for_call(self, seen: View) -> Buffer:
        """Returns the buffer that a call reads: that of the value if strides can describe the view, else a copy."""
        buffer = self.store(seen.box)
        if seen.plain:
            return buffer
        self._settle_whole(seen)
        return buffer if layout(seen) is not None else self.store(self.copy(seen).box)

    # As `ExternKernel.convert_to_reinterpret_view`.
    def _settle_whole(self, seen: View) -> None:
        buffer = seen.box.buffer
        if buffer is not None and buffer.strides is None and not seen.plain:
            last = channels_last(buffer.shape)
            buffer.strides = last if self.strides[buffer.value] == last else contiguous_strides(buffer.shape)

    def exactly(self, seen: View, strides: Shape) -> View:
        """Stores a value with these strides, or copies it if it has others."""
        box = seen.box
        if seen.plain and (box.buffer is None or box.buffer.strides is None):
            self.store(box).strides = strides
            return seen
        if box.buffer is None:
            return self.copy(seen, strides)
        self._settle_whole(seen)
        found = layout(seen)
        same = found is not None and same_layout(seen.shape, found, strides)
        return seen if same else self.copy(seen, strides)

    def in_order(self, seen: View, strides: Shape) -> View:
        """Stores a value so that its strides have the same order as these, or copies it."""
        if len(seen.shape) < 2:
            return seen
        self._settle_whole(seen)
        settled = seen.box.buffer is not None and seen.box.buffer.strides is not None
        found = layout(seen) if settled else None
        return seen if found and _ordered(seen.shape, found, strides) else self.exactly(seen, strides)

    def hint(self, seen: View) -> None:
        """Stores an expression that reads more than one tensor (`StorageBox.realize_hint`)."""
        box = seen.box
        if box.buffer is None and sum(any(access[0]) for _, access in box.reads) > 1:
            self.store(box)

    def reused(self, seen: View, readers: int) -> None:
        if self.is_stored_for(seen.box, readers, by_graph=False):
            self.store(seen.box)

    def is_stored_for(self, box: Box, readers: int, *, by_graph: bool = True) -> bool:
        """Says whether an expression is too large for several readers (`StorageBox.should_realize_on_reuse`).

        Args:
            by_graph: whether the readers are operators; if not, they are the elements of a broadcast.
        """
        many = by_graph and len(box.reads) > rules.CHEAP_READS
        too_much = box.heavy or many or self.has_many(box, self.backend.max_ops)
        return box.buffer is None and readers > 1 and too_much

    def has_many_reads(self, box: Box) -> bool:
        """Says whether an expression is too large to be inlined at all (`StorageBox.has_exceeded_max_reads`)."""
        return box.buffer is None and (
            len(box.reads) > self.backend.max_reads or self.has_many(box, self.backend.max_ops)
        )

    def limit(self, seen: View) -> None:
        """Stores an expression that has many reads or operations. One that reads a single tensor may be larger."""
        self.hint(seen)
        if seen.box.buffer is None and seen.plain and self.has_many(seen.box, rules.MAX_INLINED_OPS):
            self.store(seen.box)

    def has_many(self, box: Box, threshold: int) -> bool:
        """Says whether an expression has more operations than a threshold."""
        # Most expressions are so small that it does not matter which numbers are the same.
        most = len(box.reads) + sum(self._weights[v].most for v in box.ops)
        return most > threshold and self.size(box) > threshold

    def size(self, box: Box) -> int:
        """Counts the operations of an expression. Reads and numbers count as operations."""
        numbers = frozenset[float]().union(*(self._weights[v].numbers for v in box.ops))
        return len(box.reads) + self.operations(box.ops) + len(numbers)

    def weigh(self, value: int, operations: int, numbers: Iterable[float] = ()) -> None:
        """Adds to the size of a reduction's expression, which depends on how the reduction is lowered."""
        before = self._weights[value]
        self._weights[value] = rules.Weight(before.operations + operations, before.numbers.union(numbers))

    def operations(self, ops: Iterable[int]) -> int:
        """Counts the operations that compute these values."""
        return sum(self._weights[v].operations for v in ops)

    def shown(self, of: View, shape: Shape, access: Access) -> View:
        """Returns a view of a value. A view of a buffer fixes the strides of the buffer."""
        if of.box.buffer is not None and (of.stored or of.plain):
            self.settle(of.box.buffer)
            return View(of.box, shape, access, stored=True)
        return View(of.box, shape, access)

    def broadcast(self, seen: View, shape: Shape) -> View:
        if seen.shape == shape:
            return seen
        if not broadcasts(seen.shape, shape):
            return View(seen.box, shape, (tuple(opaque(n, seen.box.value, i) for i, n in enumerate(shape)), 0))
        self.reused(seen, prod(shape) // max(prod(seen.shape), 1))
        return self.shown(seen, shape, (expanded(seen.access[0], seen.shape, shape), seen.access[1]))


@dataclass(slots=True)
class Draft:
    """Collects the parts of an expression; the fields are those of `Box`."""

    stores: Stores
    ops: set[int]
    reads: Reads = field(default_factory=dict[Read, int])
    heavy: bool = False
    indices: dict[Access, None] = field(default_factory=dict[Access, None])

    def take(self, seen: View) -> None:
        merged(self.reads, self.stores.loads(seen))
        self.note(seen)

    def note(self, seen: View) -> None:
        """Adds what a value computes to the expression, without its reads."""
        if seen.inlined:
            box = seen.box
            self.ops |= box.ops
            self.heavy |= box.heavy
            for index in box.indices:
                self.indices[through(seen.access, index)] = None

    def done(self, value: int, shape: Shape, itemsize: int) -> View:
        box = Box(value, shape, itemsize, self.reads, frozenset(self.ops), self.heavy, tuple(self.indices))
        return View.whole(box)


def layout(seen: View) -> Shape | None:
    buffer = seen.box.buffer
    assert buffer is not None
    dims, _ = through(seen.access, (strided(buffer.shape, buffer.fix()), buffer.offset))
    return strides_of(dims, seen.shape)


def _ordered(shape: Shape, found: Shape, wanted: Shape) -> bool:
    real = [i for i, n in enumerate(shape) if n != 1]
    strides = [found[i] for i in sorted(real, key=lambda i: wanted[i])]
    return strides == sorted(strides)
