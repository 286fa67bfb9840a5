"""Holds what a pass is lowered to: expressions that wait to be inlined, buffers, and the loops that write them.

The names follow TorchInductor's: a box holds a value that is either an expression over what it reads, or, once
*realized*, a buffer that some loop writes. A value of the graph is a box, seen through an index map.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

from remat.predict.kernels.host_copies import CopyStep
from remat.predict.kernels.index import Access, Shape, contiguous_strides, identity


@dataclass(eq=False, slots=True)
class Buffer:
    """A tensor in memory.

    Attributes:
        value: position of the value that it holds, or that it is a part of.
        shape: sizes.
        itemsize: bytes of an element.
        strides: in elements; None while nobody cares, so that the loop that writes it may choose.
        offset: of the first element, for a part of a concatenation.
        output: the pass returns it.
    """

    value: int
    shape: Shape
    itemsize: int
    strides: Shape | None = None
    offset: int = 0
    output: bool = False

    @property
    def bytes(self) -> int:
        """The size of the whole tensor."""
        return prod(self.shape) * self.itemsize

    def fix(self) -> Shape:
        """Settles the strides, as row-major ones if they were still open, and returns them."""
        if self.strides is None:
            self.strides = contiguous_strides(self.shape)
        return self.strides


Read = tuple[Buffer, Access]
"""A buffer, and the row-major positions in it that each point of an iteration reads."""

Reads = dict[Read, int]
"""Reads, each with how often an expression asks for it: what is inlined twice asks twice."""


def merged(into: Reads, reads: Reads) -> None:
    """Adds reads to others, with how often each is asked for."""
    for read, times in reads.items():
        into[read] = into.get(read, 0) + times


@dataclass(eq=False, slots=True)
class Box:
    """A value: an expression, or the buffer that it was stored to.

    Attributes:
        value: position of the value.
        shape: sizes.
        itemsize: bytes of an element.
        reads: what the expression reads, each access once, over `shape`.
        ops: the values that it computes on the way.
        heavy: one of them is costly for the backend.
        indices: maps of coordinates that it computes with, such as `arange`: they shape loops, too.
        buffer: where it is stored. What reads nothing stays an expression besides.
    """

    value: int
    shape: Shape
    itemsize: int
    reads: Reads = field(default_factory=dict[Read, int])
    ops: frozenset[int] = frozenset()
    heavy: bool = False
    indices: tuple[Access, ...] = ()
    buffer: Buffer | None = None


@dataclass(eq=False, slots=True)
class Seen:
    """A box, seen through an index map into its row-major positions.

    Attributes:
        box: what is seen.
        shape: of the view.
        access: the index map.
        stored: the view was taken of a buffer, not of an expression.
    """

    box: Box
    shape: Shape
    access: Access
    stored: bool = False

    @property
    def inlined(self) -> bool:
        """Readers compute it anew: it is not stored; or it reads nothing, and is not a view of a buffer.

        As `ComputedBuffer.make_loader` and `ReinterpretView.make_loader`.
        """
        return self.box.buffer is None or (bool(self.box.ops) and not self.box.reads and not self.stored)

    @classmethod
    def whole(cls, box: Box) -> Seen:
        """Sees the box as it is."""
        return cls(box, box.shape, (identity(box.shape), 0))

    @classmethod
    def of_buffer(cls, buffer: Buffer) -> Seen:
        """Sees what a buffer holds."""
        return cls.whole(Box(buffer.value, buffer.shape, buffer.itemsize, buffer=buffer))

    @property
    def plain(self) -> bool:
        """The box is seen as it is, not through a view."""
        return self.shape == self.box.shape and self.access == (identity(self.shape), 0)


@dataclass(eq=False, slots=True)
class Loop:
    """What is scheduled: a loop nest that writes one buffer, or the call of a library.

    Attributes:
        values: positions of the values that it computes.
        reads: over `sizes` and then `reduced`. Of a call, the accesses say nothing.
        writes: one buffer, but for calls with several results.
        sizes, reduced: iteration space.
        indices: as in `Box`.
        written: where it writes, over `sizes`.
        generated: it is code of the compiler's.
        launched: it is a kernel at all, unlike a concatenation, whose parts are written in place.
        mutates: the buffer that it adds to, for a scatter.
        several: a call with several results.
        unaligned: nobody knows how its results are aligned: they come from an operator of eager's.
        arguments: of a call, what it sees of the tensors that it reads.
        reduction: how it reduces, such as "sum".
        across: it reduces dimensions that are not the innermost in memory.
        unsplit: how much the reduction keeps and reduces of which it is the first of two parts.
        copy: a call that copies an offloaded value to the host, or back, or which of these begins or ends; "" for none.
    """

    values: frozenset[int]
    reads: Reads
    writes: list[Buffer]
    sizes: Shape = ()
    reduced: Shape = ()
    indices: tuple[Access, ...] = ()
    written: Access = ((), 0)
    generated: bool = True
    launched: bool = True
    mutates: Buffer | None = None
    several: bool = False
    unaligned: bool = False
    arguments: tuple[Buffer, ...] = ()
    reduction: str = ""
    across: bool = False
    unsplit: tuple[int, int] | None = None
    copy: CopyStep | Literal[""] = ""
