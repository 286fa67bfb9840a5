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
    """Holds the place and the layout of a tensor in memory."""

    value: int  # position of the value that it holds, or that it is a part of
    shape: Shape
    itemsize: int
    strides: Shape | None = None  # in elements; None while the loop that writes the buffer may still choose them
    offset: int = 0  # of the first element, for a part of a concatenation
    output: bool = False  # whether the pass returns it
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = prod(self.shape) * self.itemsize

    def fix(self) -> Shape:
        """Makes the strides row-major if they are still open, and returns them."""
        if self.strides is None:
            self.strides = contiguous_strides(self.shape)
        return self.strides


Read = tuple[Buffer, Access]
"""A buffer, and the row-major positions in it that each point of an iteration reads."""

Reads = dict[Read, int]
"""Reads, each with how often an expression asks for it: what is inlined twice asks twice."""


def merged(into: Reads, reads: Reads) -> None:
    for read, times in reads.items():
        into[read] = into.get(read, 0) + times


@dataclass(eq=False, slots=True)
class Box:
    """Holds a value as an expression, or as the buffer that the expression was stored in."""

    value: int
    shape: Shape
    itemsize: int
    reads: Reads = field(default_factory=dict[Read, int])  # what the expression reads, each access once, over `shape`
    ops: frozenset[int] = frozenset()  # the values that it computes on the way
    heavy: bool = False  # whether one of these operators is costly on this backend
    # maps of coordinates that it computes with, such as `arange`: they shape loops, too.
    indices: tuple[Access, ...] = ()
    buffer: Buffer | None = None  # where it is stored. What reads nothing stays an expression besides.


@dataclass(eq=False, slots=True)
class View:
    """Shows a box through an index map into its row-major positions."""

    box: Box
    shape: Shape
    access: Access
    stored: bool = False  # whether the view was taken of a buffer, not of an expression
    moved: bool = False  # whether it was taken by a view of another shape or order, be it undone by the next view

    @property
    def inlined(self) -> bool:
        """Returns whether each reader computes the value itself, as in `ComputedBuffer.make_loader`.

        So it is if the value is not stored; or if it reads nothing, and this is not a view of a buffer
        (`ReinterpretView.make_loader`).
        """
        return self.box.buffer is None or (bool(self.box.ops) and not self.box.reads and not self.stored)

    @classmethod
    def of_box(cls, box: Box) -> View:
        return cls(box, box.shape, (identity(box.shape), 0))

    @classmethod
    def of_buffer(cls, buffer: Buffer) -> View:
        return cls.of_box(Box(buffer.value, buffer.shape, buffer.itemsize, buffer=buffer))

    @property
    def is_whole(self) -> bool:
        """Returns whether the box is shown as it is, without a view."""
        return not self.moved and self.shape == self.box.shape and self.access == (identity(self.shape), 0)


@dataclass(eq=False, slots=True)
class Loop:
    """Describes what is scheduled: a loop nest that writes one buffer, or the call of a library."""

    values: frozenset[int]  # positions of the values that it computes
    reads: Reads  # over `sizes` and then `reduced`. The accesses of a call say nothing.
    writes: list[Buffer]  # one buffer; only a call may have several
    sizes: Shape = ()
    reduced: Shape = ()
    indices: tuple[Access, ...] = ()
    written: Access = ((), 0)  # where it writes, over `sizes`
    generated: bool = True  # whether the compiler writes its code
    launched: bool = True  # False for a concatenation, whose parts are written in place, so that no kernel runs
    mutates: Buffer | None = None  # the buffer that a scatter adds to
    several: bool = False  # whether it is a call with several results
    unaligned: bool = False  # whether an eager operator returns its results, so that nobody knows how they are aligned
    arguments: tuple[Buffer, ...] = ()  # the tensors that a call reads, with the shape and the layout that it gets
    reduction: str = ""  # how it reduces, such as "sum"
    across: bool = False  # whether it reduces dimensions that are not the innermost in memory
    # the points kept and reduced of the whole reduction, if this loop is the first of two parts.
    unsplit: tuple[int, int] | None = None
    copy: CopyStep | Literal[""] = ""  # which step of an offloaded value's copy this call is; "" for none
