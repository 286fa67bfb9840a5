"""Rewrites the graph of a pass before lowering, as Inductor does, where this changes memory traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray, mask_of
from remat.predict.kernels.backends import KernelBackend
from remat.predict.kernels.index import Shape
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.rules import ELEMENTWISE, HALF
from remat.predict.kernels.strides import same_layout


@dataclass(frozen=True, eq=False)
class Rewrites:
    """Holds the rewritings that may apply to a pass, independent of the plan."""

    copies: Mapping[int, int]  # clones -> what they copy
    # sums -> (matrix product, addend) for each product in the sum (the `addmm` pattern).
    sums: Mapping[int, Sequence[tuple[int, int]]]
    elements: Mapping[int, Sequence[int]]  # tuples -> their elements
    # matrix products with a bias that become a product and a sum if only elementwise operators read them
    # (`unfuse_bias_add_to_pointwise`: only on GPUs, and not in half precision).
    biased: frozenset[int]
    elementwise: Sequence[bool]
    seen_through: Sequence[bool]  # (n,) views and elements of tuples: only their readers count
    ops: Sequence[str]
    shapes: Sequence[Shape]
    base: Sequence[int]  # (n,) the value that owns the storage of each value
    for_gpu: bool

    @classmethod
    def of(cls, calls: Sequence[Call], views: Sequence[bool], base: Sequence[int], backend: KernelBackend) -> Rewrites:
        copies: dict[int, int] = {}
        sums: dict[int, list[tuple[int, int]]] = {}
        elements: dict[int, list[int]] = {}
        for call in calls:
            v = call.position
            if call.op == "getitem" and call.sources:
                elements.setdefault(call.sources[0], []).append(v)
            elif call.op == "aten.clone" and call.sources:
                copies[v] = call.sources[0]
            elif call.op == "aten.add" and (pairs := _products(call, calls)):
                sums[v] = pairs
        apart = [call for call in calls if backend.gpu and call.op == "aten.addmm" and call.dtype not in HALF]
        biased = frozenset(call.position for call in apart)
        ops = [call.op for call in calls]
        through = [view or op == "getitem" for view, op in zip(views, ops, strict=True)]
        elementwise, shapes = [op in ELEMENTWISE for op in ops], [call.shape for call in calls]
        return cls(copies, sums, elements, biased, elementwise, through, ops, shapes, base, backend.gpu)


# Of two products in a sum, Inductor adds the second to the first.
def _products(call: Call, calls: Sequence[Call]) -> list[tuple[int, int]]:
    terms = [argument.position for argument in call.args if isinstance(argument, Ref)]
    if len(terms) != 2 or len(call.args) != 2 or call.kwargs:
        return []
    a, b = terms
    return [
        (product, addend)
        for product, addend in ((b, a), (a, b))
        if product != addend
        and calls[product].op == "aten.mm"
        and calls[product].shape == call.shape
        and calls[addend].dtype == call.dtype
    ]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """Represents a pass after the rewritings."""

    values: Sequence[int]  # what it computes, in order
    # producers, readers: its uses; `readers[i]` reads `producers[i]`.
    producers: IntArray
    readers: IntArray
    returned: BoolArray  # (n,) what it returns
    copies: Mapping[int, int]  # removed clones -> what they copied
    products: Mapping[int, tuple[int, int]]  # sums that are one call with a product -> (product, addend)
    unfused: frozenset[int]  # products with a bias that become a product and a sum
    uses: Readers

    @classmethod
    def of(
        cls,
        rewrites: Rewrites,
        values: IntArray,
        producers: IntArray,
        readers: IntArray,
        returned: BoolArray,
        strides: Sequence[Shape],
    ) -> Rewritten:
        """Applies the rewritings to one pass.

        Args:
            producers, readers: all uses in the graph.
            strides: eager's strides of each value in this pass; a clone that does not change them is removed.
        """
        n = len(returned)
        inside = mask_of(values, n)
        here = inside[readers]
        u, v = producers[here], readers[here]
        owners, holds = np.array(rewrites.base), np.zeros(n, np.bool_)  # storages that the pass returns or receives
        holds[owners[returned]] = True
        holds |= ~inside
        copies = {
            copy: source
            for copy, source in rewrites.copies.items()
            if inside[copy]
            and same_layout(rewrites.shapes[copy], strides[source], strides[copy])  # `remove_noop_ops`
            and not (holds[owners[copy]] and holds[owners[source]])
        }
        products, unfused = _fused(
            rewrites, values.tolist(), np.bincount(u, minlength=n), returned, Readers(rewrites, u, v, returned)
        )
        order = _raised(rewrites, values.tolist(), inside)
        skipped = {product for product, _ in products.values()}
        if copies or skipped:
            order = [value for value in order if value not in skipped]
            u, v, returned = _renamed(u, v, returned, copies, products)
        return cls(order, u, v, returned, copies, products, unfused, Readers(rewrites, u, v, returned))


class Readers:
    """Holds the readers of each value of a pass, and whether they are elementwise operators (`is_pointwise_use`)."""

    def __init__(self, rewrites: Rewrites, u: IntArray, v: IntArray, returned: BoolArray) -> None:
        order = np.argsort(u, kind="stable")
        self._rewrites, self._returned = rewrites, returned
        self._u, self._v = u[order], v[order]
        self.calls: set[int] = set()
        """Operators that became parts of calls."""

    def of(self, value: int) -> list[int]:
        start, end = np.searchsorted(self._u, [value, value + 1])
        return self._v[start:end].tolist()

    def elementwise(self, value: int, *others: str) -> bool:
        """Returns whether only elementwise operators read a value; a view counts as its readers."""
        return not self._returned[value] and all(self.is_elementwise(reader, *others) for reader in self.of(value))

    def is_elementwise(self, reader: int, *others: str) -> bool:
        """Returns whether an operator is elementwise, one of `others`, or a view that only such operators read."""
        rewrites = self._rewrites
        if rewrites.seen_through[reader]:
            return self.elementwise(reader, *others)
        return (rewrites.elementwise[reader] and reader not in self.calls) or rewrites.ops[reader] in others


# Later sums are decided first. On GPUs, a product is not fused into a sum that only elementwise operators read.
def _fused(
    rewrites: Rewrites, values: Sequence[int], readers: IntArray, returned: BoolArray, uses: Readers
) -> tuple[dict[int, tuple[int, int]], frozenset[int]]:
    products: dict[int, tuple[int, int]] = {}
    unfused: set[int] = set()
    inside = set(values)
    for value in reversed(values):
        if value in rewrites.biased and uses.elementwise(value):
            unfused.add(value)
        for product, addend in rewrites.sums.get(value, ()):
            if product in inside and readers[product] == 1 and not returned[product]:
                if not (rewrites.for_gpu and uses.elementwise(value)):
                    products[value] = product, addend
                    uses.calls.add(value)
                break
    return products, frozenset(unfused)


# As torch's `raise_getitems`.
def _raised(rewrites: Rewrites, values: Sequence[int], inside: BoolArray) -> list[int]:
    here = inside.tolist()
    moved = {e for source, elements in rewrites.elements.items() if here[source] for e in elements}
    order: list[int] = []
    for v in values:
        if v not in moved:
            order.append(v)
            order += [e for e in rewrites.elements.get(v, ()) if here[e]]
    return order


def _renamed(
    u: IntArray, v: IntArray, returned: BoolArray, copies: Mapping[int, int], products: Mapping[int, tuple[int, int]]
) -> tuple[IntArray, IntArray, BoolArray]:
    n = len(returned)
    source, reader = np.arange(n), np.arange(n)
    for copy in sorted(copies):
        source[copy] = source[copies[copy]]
    for total, (product, _) in products.items():
        reader[product] = total
    gone = [product for product, _ in products.values()]
    kept = ~np.isin(v, list(copies)) & ~np.isin(u, gone)
    pairs = np.unique(source[u[kept]] * n + reader[v[kept]])
    returned = returned.copy()
    for copy in copies:
        if returned[copy]:
            returned[source[copy]], returned[copy] = True, False
    return pairs // n, pairs % n, returned
