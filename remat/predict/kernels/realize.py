"""Decides which values are stored, in which layout, and which buffers each reader reads.

Source: `StorageBox` and `ExternKernel` of torch 2.13 (`torch/_inductor/ir.py`), reduced to what affects kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.backends import KernelBackend
from remat.predict.kernels.index import (
    Access,
    Shape,
    broadcasts,
    composed,
    contiguous_strides,
    identity,
    opaque,
    strided,
    strides_of,
)
from remat.predict.kernels.ir import Box, Buffer, Leaf, Loop, Reads, Steps, View, no_entries
from remat.predict.kernels.loops import decide_layout
from remat.predict.kernels.padding import Padding
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.strides import channels_last, in_order_of, same_layout
from remat.predict.kernels.view_maps import expanded


class Stores:
    """Collects the loops of one pass, and decides which values are stored.

    Attributes:
        strides: eager's strides of each value in this pass.
        padding: whether layouts that are fixed now are padded; None if the compiler pads none.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        weights: Sequence[rules.Weight],
        strides: Sequence[Shape],
        backend: KernelBackend,
        padding: Padding | None = None,
    ) -> None:
        self.calls, self.strides, self.backend = calls, strides, backend
        self.padding = padding
        self.loops: list[Loop] = []
        self._weights = list(weights)

    def loads(self, view: View) -> Reads:
        """Returns what a reader of the view reads from memory: the value's buffer, or the reads of its expression."""
        box = view.box
        if not view.inlined:
            assert box.buffer is not None
            return {(box.buffer, view.access): 1}
        if view.is_whole:
            return box.reads
        reads: Reads = {}
        for (buffer, access), times in box.reads.items():
            read = (buffer, composed(view.access, access))
            reads[read] = reads.get(read, 0) + times
        return reads

    def store(self, box: Box, strides: Shape | None = None) -> Buffer:
        """Returns the buffer of a value; an expression first gets a buffer and a loop that writes it."""
        if box.buffer is None:
            box.buffer = self.flexible(box.value, box.shape, box.itemsize)
            box.buffer.strides = strides
            written = (identity(box.shape), 0)
            self.loops.append(Loop(box.ops, box.reads, [box.buffer], box.shape, (), box.indices, written))
            if box.reads:  # an expression that reads nothing is kept too
                box.reads, box.steps, box.heavy, box.indices = {}, {}, False, ()
        return box.buffer

    def flexible(self, value: int, shape: Shape, itemsize: int) -> Buffer:
        """Returns a buffer whose layout the compiler may choose."""
        return Buffer(value, shape, itemsize, padding=self.padding)

    def padded(self, shape: Shape, strides: Shape, itemsize: int) -> Shape:
        """Returns the strides that a layout with these dense strides gets now."""
        return strides if self.padding is None else self.padding.applied(shape, strides, itemsize)

    def settle(self, buffer: Buffer) -> None:
        """Fixes the strides of a buffer, in the order in which the loop that writes it reads."""
        if buffer.strides is None and (loop := self.loop_of(buffer)) is not None:
            decide_layout(loop)
        buffer.fix()

    def loop_of(self, buffer: Buffer) -> Loop | None:
        """Returns the loop that writes a buffer; None if a call writes it, or the pass reads it only."""
        return next((loop for loop in reversed(self.loops) if buffer in loop.writes), None)

    def settle_rows(self, view: View) -> None:
        """Fixes the strides of a buffer that is about to be reshaped: row-major, unless they are fixed already.

        Since torch 2.13 its rows are not padded (`View.create`).
        """
        buffer = view.box.buffer
        if view.is_whole and buffer is not None and buffer.strides is None:
            buffer.padding = buffer.padding if self.backend.pads_reshaped else None
            buffer.fix()

    def copy(self, view: View, strides: Shape | None = None) -> View:
        """Adds a loop that stores a value as the view shows it. A copy of a buffer computes no value."""
        whole = self.own_expression(view)
        self.store(whole.box, strides)
        return whole

    def own_expression(self, view: View) -> View:
        """Returns the value as an expression of its own: if a call stores it, other readers do not see that."""
        draft = Draft(self, set())
        draft.take(view)
        return draft.done(view.box.value, view.shape, view.box.itemsize)

    def for_call(self, view: View) -> Buffer:
        """Returns the buffer that a call reads: the value's, if strides can describe the view; otherwise a copy."""
        buffer = self.store(view.box)
        if view.is_whole:
            return buffer
        self._settle_whole(view)
        return buffer if layout(view) is not None else self.store(self.copy(view).box)

    def for_product(self, view: View) -> View:
        """Returns what a matrix product reads: a copy where no stride is 1, as of one number that is expanded."""
        buffer = self.store(view.box)
        if view.is_whole and buffer.strides is None:
            return view
        self._settle_whole(view)
        strides = layout(view)  # that of a dimension of one element is unknown, and may be 1
        return view if strides is None or 1 in (*strides, *view.shape[-2:]) else self.copy(view)

    # As `ExternKernel.convert_to_reinterpret_view`.
    def _settle_whole(self, view: View) -> None:
        buffer = view.box.buffer
        if buffer is not None and buffer.strides is None and not view.is_whole:
            last = channels_last(buffer.shape)
            buffer.lay_out(last if self.strides[buffer.value] == last else contiguous_strides(buffer.shape))

    def exactly(self, view: View, strides: Shape, *, may_pad: bool = False) -> View:
        """Stores a value with the given strides, or copies it if it has others.

        Args:
            may_pad: whether its rows may be padded.
        """
        box = view.box
        chosen = self.padded(view.shape, strides, box.itemsize) if may_pad else strides
        if view.is_whole and (box.buffer is None or box.buffer.strides is None):
            self.store(box).strides = chosen
            return view
        if box.buffer is None:
            return self.copy(view, chosen)
        self._settle_whole(view)
        current = layout(view)
        same = current is not None and any(same_layout(view.shape, current, one) for one in (strides, chosen))
        return view if same else self.copy(view, chosen)

    def in_order(self, view: View, strides: Shape) -> View:
        """Stores or copies a value so that its strides have the same order as `strides`, without their gaps."""
        if len(view.shape) < 2:
            return view
        self._settle_whole(view)
        settled = view.box.buffer is not None and view.box.buffer.strides is not None
        current = layout(view) if settled else None
        if current and _ordered(view.shape, current, strides):
            return view
        has_gaps = sum((n - 1) * stride for n, stride in zip(view.shape, strides, strict=True)) >= prod(view.shape)
        dense = in_order_of(view.shape, strides) if has_gaps else strides
        return self.exactly(view, dense, may_pad=view.is_whole)

    def hint(self, view: View) -> None:
        """Stores an expression that reads more than one tensor (`StorageBox.realize_hint`)."""
        box = view.box
        if box.buffer is None and sum(any(access[0]) for _, access in box.reads) > 1:
            self.store(box)

    def store_if_reused(self, view: View, readers: int) -> None:
        if self.is_stored_for(view.box, readers, by_graph=False):
            self.store(view.box)

    def is_stored_for(self, box: Box, readers: int, *, by_graph: bool = True) -> bool:
        """Returns whether an expression is too large for several readers (`StorageBox.should_realize_on_reuse`).

        Args:
            by_graph: whether the readers are operators, not the elements of a broadcast.
        """
        many = by_graph and len(box.reads) > rules.CHEAP_READS
        too_much = box.heavy or many or self.has_many(box, self.backend.max_ops)
        return box.buffer is None and readers > 1 and too_much

    def has_many_reads(self, box: Box) -> bool:
        """Returns whether an expression is too large to be inlined (`StorageBox.has_exceeded_max_reads`)."""
        return box.buffer is None and (
            len(box.reads) > self.backend.max_reads or self.has_many(box, self.backend.max_ops)
        )

    def limit(self, view: View) -> None:
        """Stores an expression with many reads or operations; with a single read, it may have more operations."""
        self.hint(view)
        if view.box.buffer is None and view.is_whole and self.has_many(view.box, rules.MAX_INLINED_OPS):
            self.store(view.box)

    def has_many(self, box: Box, threshold: int) -> bool:
        # An upper bound first: most expressions are small, and the exact size needs a union of sets.
        most = len(box.reads) + len(box.indices)
        most += sum([self._weights[v].most for values in box.steps.values() for v in values])
        return most > threshold and self.size(box) > threshold

    def size(self, box: Box) -> int:
        """Returns the number of operations of an expression; reads, coordinates and constants count as operations."""
        numbers = frozenset[rules.Number]().union(*(self._weights[v].numbers for v in box.ops))
        operations = sum(self._weights[v].operations for values in box.steps.values() for v in values)
        return len(box.reads) + len(box.indices) + operations + len(numbers)

    def weigh(self, value: int, operations: int, numbers: Iterable[rules.Number] = ()) -> None:
        """Adds to the size of an expression that depends on how the operator is lowered."""
        before = self._weights[value]
        self._weights[value] = rules.Weight(before.operations + operations, before.numbers.union(numbers))

    def take_view(self, view: View, shape: Shape, access: Access) -> View:
        """Returns a view of a value. A view of a buffer fixes the strides of the buffer."""
        rearranged = view.is_rearranged or (shape, access) != (view.shape, view.access)
        if view.box.buffer is not None and (view.stored or view.is_whole):
            self.settle(view.box.buffer)
            return View(view.box, shape, access, stored=True, is_rearranged=rearranged)
        return View(view.box, shape, access, is_rearranged=rearranged)

    def broadcast(self, view: View, shape: Shape) -> View:
        if view.shape == shape:
            return view
        if not broadcasts(view.shape, shape):
            return View(view.box, shape, (tuple(opaque(n, view.box.value, i) for i, n in enumerate(shape)), 0))
        self.store_if_reused(view, prod(shape) // max(prod(view.shape), 1))
        return self.take_view(view, shape, (expanded(view.access[0], view.shape, shape), view.access[1]))


def _same(access: Access) -> Access:
    return access


@dataclass(slots=True)
class Draft:
    """Holds the parts of an expression that is being built; the fields are those of `Box`.

    Attributes:
        ops: the values that it computes itself, once for each of its elements.
    """

    stores: Stores
    ops: set[int]
    reads: Reads = field(default_factory=no_entries)
    heavy: bool = False
    indices: dict[Access, None] = field(default_factory=no_entries)
    steps: Steps = field(default_factory=no_entries)

    def take(self, view: View, moved: Callable[[Access], Access] = _same) -> None:
        """Adds what computes a view.

        Args:
            moved: makes the accesses of the view those of the expression, where an index map cannot say how.
        """
        loads = self.stores.loads(view)
        if moved is _same and not self.reads:
            self.reads = loads.copy()  # keeps the hashes of the accesses, which take long to compute
        else:
            for (buffer, access), times in loads.items():
                read = (buffer, moved(access))
                self.reads[read] = self.reads.get(read, 0) + times
        self.note(view, moved)

    def note(self, view: View, moved: Callable[[Access], Access] = _same) -> None:
        if not view.inlined:
            return
        box = view.box
        is_whole = view.is_whole
        stays = is_whole and moved is _same

        def remapped(access: Access) -> Access:
            return moved(access if is_whole else composed(view.access, access))

        if stays and not self.steps:
            self.steps = box.steps.copy()
        else:
            for leaves, values in box.steps.items():
                here = leaves if stays else frozenset([(buffer, remapped(access)) for buffer, access in leaves])
                self.steps[here] = self.steps.get(here, frozenset()) | values
        self.heavy |= box.heavy
        for index in box.indices:
            self.indices[index if stays else remapped(index)] = None

    def done(self, value: int, shape: Shape, itemsize: int) -> View:
        if self.ops:
            own: frozenset[Leaf] = frozenset(self.reads)  # made of a dict, it keeps the hashes of the keys
            own = own.union((None, index) for index in self.indices) if self.indices else own
            self.steps[own] = self.steps.get(own, frozenset()) | self.ops
        return View.of_box(Box(value, shape, itemsize, self.reads, self.steps, self.heavy, tuple(self.indices)))


def layout(view: View) -> Shape | None:
    return strides_of(memory_access(view)[0], view.shape)


def memory_access(view: View) -> Access:
    """Returns where in the memory of its buffer a view reads."""
    buffer = view.box.buffer
    assert buffer is not None
    strides = buffer.fix()
    # Rows of the view may begin within rows of the buffer.
    if strides == contiguous_strides(buffer.shape) and view.access[1] >= 0:
        return view.access[0], view.access[1] + buffer.offset
    return composed(view.access, (strided(buffer.shape, strides), buffer.offset))


def _ordered(shape: Shape, strides_now: Shape, order: Shape) -> bool:
    real = [i for i, n in enumerate(shape) if n != 1]
    strides = [strides_now[i] for i in sorted(real, key=lambda i: order[i])]
    return strides == sorted(strides)
