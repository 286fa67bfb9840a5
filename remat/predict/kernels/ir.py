"""Defines the intermediate representation of a lowered pass: expressions, buffers, and the loops that write them.

The names follow TorchInductor. A box holds a value: either an expression over what it reads or, once *realized*, a
buffer that a loop writes. A value of the graph is a box, seen through an index map.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, Literal

from remat.predict.kernels.host_copies import CopyStep
from remat.predict.kernels.index import Access, Shape, contiguous_strides, identity
from remat.predict.kernels.padding import Padding


@dataclass(eq=False, slots=True)
class Buffer:
    """Represents a tensor in memory, with its layout."""

    value: int  # position of the value that it holds, or that it is a part of
    shape: Shape
    itemsize: int
    strides: Shape | None = None  # in elements; None while the loop that writes the buffer may still choose them
    offset: int = 0  # of the first element, for a part of a concatenation
    output: bool = False  # whether the pass returns it
    padding: Padding | None = None  # whether its rows are padded, if its strides may still be chosen
    bytes: int = field(init=False)  # without gaps

    def __post_init__(self) -> None:
        self.bytes = prod(self.shape) * self.itemsize

    @property
    def storage_bytes(self) -> int:
        """Returns the bytes of its memory, with the gaps between its rows."""
        if self.padding is None or self.strides is None or not self.bytes:
            return self.bytes
        return (_last_place(self.shape, self.strides) + 1) * self.itemsize

    def lay_out(self, strides: Shape) -> Shape:
        """Sets the strides, with gaps where the compiler pads rows, and returns them."""
        self.strides = strides if self.padding is None else self.padding.applied(self.shape, strides, self.itemsize)
        return self.strides

    def fix(self) -> Shape:
        """Makes the strides row-major if they are still None, and returns them."""
        return self.lay_out(contiguous_strides(self.shape)) if self.strides is None else self.strides


@lru_cache(maxsize=1 << 13)
def _last_place(shape: Shape, strides: Shape) -> int:
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


Read = tuple[Buffer, Access]
"""A buffer, and the row-major positions in it that each point of an iteration reads."""

Reads = dict[Read, int]
"""How often an expression makes each read; an expression that is inlined twice reads twice."""


Leaf = tuple[Buffer | None, Access]
"""What an expression depends on: a read, or coordinates, which have no buffer."""

Steps = dict[frozenset[Leaf], frozenset[int]]
"""The values that an expression computes, by what each depends on: a value that is needed twice is computed twice only
if it depends on different elements (`OpCounterCSE`)."""


def no_entries() -> dict[Any, Any]:
    """Returns an empty dict, for fields with one by default: calls of `dict[int, int]` take five times as long."""
    return {}


def merged(into: Reads, reads: Reads) -> None:
    for read, times in reads.items():
        into[read] = into.get(read, 0) + times


@dataclass(eq=False, slots=True)
class Box:
    """Represents a value as an expression, or as the buffer in which the expression was stored."""

    value: int
    shape: Shape
    itemsize: int
    reads: Reads = field(default_factory=no_entries)  # what the expression reads, each access once, over `shape`
    steps: Steps = field(default_factory=no_entries)  # what it computes on the way
    heavy: bool = False  # whether one of these operators is costly on this backend
    # maps of coordinates in the expression, such as those of `arange`: they too constrain how loops are joined.
    indices: tuple[Access, ...] = ()
    buffer: Buffer | None = None  # where it is stored; readers still inline an expression that reads nothing

    @property
    def ops(self) -> frozenset[int]:
        """Returns the values that the expression computes on the way."""
        return frozenset(chain.from_iterable(self.steps.values()))


@dataclass(eq=False, slots=True)
class View:
    """Represents a box, seen through an index map into its row-major positions."""

    box: Box
    shape: Shape
    access: Access
    stored: bool = False  # whether the view was taken of a buffer, not of an expression
    is_rearranged: bool = False  # whether a view changed its shape or order, even if a later view undid it

    @property
    def inlined(self) -> bool:
        """Returns whether each reader computes the value itself (`ComputedBuffer.make_loader`).

        This is so if the value is not stored, or if it reads nothing and this is not a view of a buffer
        (`ReinterpretView.make_loader`).
        """
        return self.box.buffer is None or (bool(self.box.steps) and not self.box.reads and not self.stored)

    @classmethod
    def of_box(cls, box: Box) -> View:
        return cls(box, box.shape, (identity(box.shape), 0))

    @classmethod
    def of_buffer(cls, buffer: Buffer) -> View:
        return cls.of_box(Box(buffer.value, buffer.shape, buffer.itemsize, buffer=buffer))

    @property
    def is_whole(self) -> bool:
        """Returns whether this is the box itself, without a view."""
        if self.is_rearranged or self.shape != self.box.shape:
            return False
        return self.access[1] == 0 and self.access[0] == identity(self.shape)


@dataclass(eq=False, slots=True)
class Loop:
    """Represents a node of the schedule: a loop nest that writes one buffer, or a library call."""

    values: frozenset[int]  # positions of the values that it computes
    reads: Reads  # over `sizes` and then `reduced`; the accesses of a call mean nothing
    writes: list[Buffer]  # one buffer; only a call may have several
    sizes: Shape = ()
    reduced: Shape = ()
    indices: tuple[Access, ...] = ()
    written: Access = ((), 0)  # where it writes, over `sizes`
    generated: bool = True  # whether the compiler writes its code
    launched: bool = True  # False for a concatenation, whose parts are written in place, so that no kernel runs
    mutates: Buffer | None = None  # the buffer that a scatter or `copy_` modifies
    several: bool = False  # whether it is a call with several results
    over: dict[Buffer, Buffer] = field(default_factory=no_entries)  # results -> overwritten arguments
    unaligned: bool = False  # whether an eager operator returns its results, whose alignment is then unknown
    arguments: tuple[Buffer, ...] = ()  # the tensors that a call reads, with the shape and the layout that it gets
    reduction: str = ""  # how it reduces, such as "sum"
    across: bool = False  # whether it reduces dimensions that are not the innermost in memory
    # numbers of kept and of reduced points of the whole reduction, if this loop is the first of two parts.
    unsplit: tuple[int, int] | None = None
    copy: CopyStep | Literal[""] = ""  # which step of an offloaded value's copy this call is; "" for none
