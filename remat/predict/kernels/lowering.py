"""Lowers one pass, operator by operator, to loops and calls; decides what is stored and what is inlined.

Source: `GraphLowering.run_node` of torch 2.13 (`torch/_inductor/graph.py`). The rules of the operators are in
`pointwise`, `reductions`, `indexing` and `library`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from remat.errors import InvalidGraph
from remat.facts.columns import BoolArray
from remat.predict.kernels.index import Digits, Shape, moves, uneven
from remat.predict.kernels.ir import Buffer, Loop, View
from remat.predict.kernels.loops import step_of
from remat.predict.kernels.passes import Readers
from remat.predict.kernels.realize import Stores
from remat.predict.kernels.recorded_calls import Call, Ref


@dataclass(frozen=True, eq=False)
class Uses:
    """Describes how one pass reads its values; every sequence is indexed by position."""

    readers: Sequence[int]  # how many operators read a value; being returned counts as one
    returned: Sequence[bool]
    # whether a value must have the strides of `images` or eager's: the pass returns it, or an as_strided reads it.
    exact: Sequence[bool]
    realized: Sequence[bool]  # whether an operator reads it that needs its arguments in memory
    ordered: Sequence[bool]  # whether an operator reads it that needs eager's order of strides
    convolves: bool  # whether the compiler keeps images channels-last, because of the convolutions of the pass
    images: Mapping[int, Shape]  # channels-last strides of the values that get them when they are stored
    network: Readers  # which operators read which values


Elements = Callable[["Lowering", Call], View]
"""Makes an element of a tuple on demand, because the shape is known only then."""

Rule = Callable[["Lowering", Call], View | None]
"""Lowers an operator; returns None for a tuple, whose elements follow, and for values that are not tensors."""


class Lowering:
    """Lowers the values of one pass, in order.

    Attributes:
        views: the lowered values, by position.
        elements: for each tuple, the function that lowers one of its elements.
    """

    def __init__(self, stores: Stores, uses: Uses, rules: Sequence[Rule]) -> None:
        self.stores, self.uses, self._rules = stores, uses, rules
        self.views: dict[int, View] = {}
        self.elements: dict[int, Elements] = {}

    def take_arguments(self, values: Iterable[int], strides: Sequence[Shape], hosted: BoolArray) -> dict[int, Buffer]:
        """Adds the arguments of the pass, with their strides, and returns their buffers.

        A value on the host has no elements until it is copied back.
        """
        buffers: dict[int, Buffer] = {}
        for v in values:
            call = self.stores.calls[v]
            on_host = Buffer(v, (0, *call.shape), call.itemsize)
            own = Buffer(v, call.shape, call.itemsize, strides[v], padding=self.stores.padding)
            buffers[v] = on_host if hosted[v] else own
            view = View.of_buffer(buffers[v])
            self.views[v] = self.stores.exactly(view, self._required_strides(v)) if self.uses.exact[v] else view
        return buffers

    def run(self, v: int) -> None:
        call = self.stores.calls[v]
        try:
            result = self._rules[v](self, call)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InvalidGraph(
                f"Graph.arguments must hold the whole call of {call.op} to predict its kernel, got {call.args!r} for "
                f"the value at position {v} ({error!r}); take the graph from remat.capture, or rename the operator"
            ) from error
        self.settle(v, result)

    def settle(self, v: int, view: View | None) -> None:
        """Records what a value was lowered to, and stores it if its readers require that."""
        if view is None:
            return
        stores, uses = self.stores, self.uses
        if uses.returned[v] and not view.is_whole:
            stores.store(view.box)
        if uses.exact[v]:
            if not view.is_whole:
                view = stores.in_order(view, self._required_strides(v))
                view.stored |= not view.is_whole and view.box.buffer is not None and prod(view.shape) > 1
            elif view.shape:
                view = stores.exactly(view, self._required_strides(v), may_pad=True)
        if uses.readers[v] > 1:
            view = self._shared(v, view)
        if stores.has_many_reads(view.box):
            view = self.as_image(v, view)
            stores.limit(view)
        self.views[v] = view

    def _shared(self, v: int, view: View) -> View:
        stores, uses = self.stores, self.uses
        if uses.realized[v]:
            stores.hint(view)
        if uses.ordered[v]:
            view = stores.in_order(view, stores.strides[v])
        if uses.returned[v] and view.box.reads:
            stores.store(view.box)
        if stores.is_stored_for(view.box, uses.readers[v]):
            view = self.as_image(v, view)
            stores.store(view.box)
        return view

    def _required_strides(self, v: int) -> Shape:
        return self.uses.images.get(v, self.stores.strides[v])

    def as_image(self, v: int, view: View) -> View:
        """Stores a value channels-last, if the compiler prefers that for it."""
        return self.stores.in_order(view, self.uses.images[v]) if v in self.uses.images else view

    def finish(self) -> list[Loop]:
        """Stores the expressions that the pass returns, and returns all loops in the order of creation."""
        for v, view in self.views.items():
            if self.uses.returned[v]:
                self.stores.store(view.box).output = True
        return self.stores.loops

    def shifted(self, size: int, digits: Digits, *what: object) -> Digits:
        """Returns the digits of a partly read dimension: only their step is known, which is enough to order loops."""
        if size == 1:
            return ()
        return uneven(size, abs(step_of(digits)), *what) if moves(digits) else ((size, 0),)

    def first(self, call: Call) -> View:
        first = call.args[0]
        return self.views[first.position if isinstance(first, Ref) else -1]

    def arguments(self, call: Call) -> list[View]:
        return [self.views[u] for u in call.refs if u in self.views]
