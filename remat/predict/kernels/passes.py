"""Rewrites the graph of a pass before it is lowered, as those of Inductor's passes do that change traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.predict.kernels.index import Shape
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.strides import same_layout


@dataclass(frozen=True, eq=False)
class Rewrites:
    """The rewritings that may apply to a pass, whatever the plan.

    Attributes:
        copies: clones that change nothing -> what they copy (`remove_noop_ops`).
        sums: sums -> (matrix product, what is added to it) for each product in it (the `addmm` pattern).
        elements: tuples -> their elements.
    """

    copies: Mapping[int, int]
    sums: Mapping[int, Sequence[tuple[int, int]]]
    elements: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, calls: Sequence[Call], strides: Sequence[Shape]) -> Rewrites:
        """Reads a graph, in time linear in its size."""
        copies: dict[int, int] = {}
        sums: dict[int, list[tuple[int, int]]] = {}
        elements: dict[int, list[int]] = {}
        for call in calls:
            v = call.position
            if call.op == "getitem" and call.sources:
                elements.setdefault(call.sources[0], []).append(v)
            elif call.op == "aten.clone" and call.sources:
                if same_layout(call.shape, strides[call.sources[0]], strides[v]):
                    copies[v] = call.sources[0]
            elif call.op == "aten.add" and (pairs := _products(call, calls)):
                sums[v] = pairs
        return cls(copies, sums, elements)


def _products(call: Call, calls: Sequence[Call]) -> list[tuple[int, int]]:
    """Lists the matrix products in a sum, each with what is added; of two, Inductor adds the second to the first."""
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
    """A pass after the rewritings.

    Attributes:
        values: what it computes, in order.
        producers, readers: its uses.
        returned: (n,) what it returns.
        copies: clones that are gone -> what they copied.
        products: sums that are one call with a product -> (product, what is added).
    """

    values: Sequence[int]
    producers: IntArray
    readers: IntArray
    returned: BoolArray
    copies: Mapping[int, int]
    products: Mapping[int, tuple[int, int]]

    @classmethod
    def of(
        cls, rewrites: Rewrites, values: IntArray, producers: IntArray, readers: IntArray, returned: BoolArray
    ) -> Rewritten:
        """Applies what applies to one pass.

        Args:
            rewrites: of the graph.
            values: what the pass computes, in order.
            producers, readers: all uses of the graph.
            returned: (n,) what the pass returns.
        """
        n = len(returned)
        inside = np.zeros(n, np.bool_)
        inside[values] = True
        here = inside[readers]
        u, v = producers[here], readers[here]
        copies = {
            copy: source
            for copy, source in rewrites.copies.items()
            if inside[copy] and not (returned[copy] and (returned[source] or not inside[source]))
        }
        products = _fused(rewrites, inside, np.bincount(u, minlength=n), returned)
        order = _raised(rewrites, values.tolist(), inside)
        skipped = {product for product, _ in products.values()}
        if copies or skipped:
            order = [value for value in order if value not in skipped]
            u, v, returned = _renamed(u, v, returned, copies, products)
        return cls(order, u, v, returned, copies, products)


def _fused(rewrites: Rewrites, inside: BoolArray, readers: IntArray, returned: BoolArray) -> dict[int, tuple[int, int]]:
    """Finds the sums with a product that nobody else reads."""
    found: dict[int, tuple[int, int]] = {}
    for total, pairs in rewrites.sums.items():
        if inside[total]:
            for product, addend in pairs:
                if inside[product] and readers[product] == 1 and not returned[product]:
                    found[total] = product, addend
                    break
    return found


def _raised(rewrites: Rewrites, values: Sequence[int], inside: BoolArray) -> list[int]:
    """Moves the elements of a tuple right behind it, and keeps the order else (torch's `raise_getitems`)."""
    moved = {e for source, elements in rewrites.elements.items() if inside[source] for e in elements}
    found: list[int] = []
    for v in values:
        if v not in moved:
            found.append(v)
            found += [e for e in rewrites.elements.get(v, ()) if inside[e]]
    return found


def _renamed(
    u: IntArray,
    v: IntArray,
    returned: BoolArray,
    copies: Mapping[int, int],
    products: Mapping[int, tuple[int, int]],
) -> tuple[IntArray, IntArray, BoolArray]:
    """Returns the uses without copies and products: readers read the originals, and the sums take the arguments."""
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
