"""Checks that an estimator keeps its contract."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from remat.errors import InvalidProblem, RematError
from remat.facts.columns import checked_prices
from remat.facts.graph import Graph, Region
from remat.facts.graph_builder import GraphBuilder
from remat.problem.estimator import Estimator
from remat.testing.strategies import graphs
from remat.testing.trials import for_all, hashes, relabelled, require, require_options


def check_estimator(estimator: type[Estimator] | Estimator, *, max_examples: int = 100) -> None:
    """Checks that an estimator keeps its contract, on random graphs of up to 12 values.

    - Its options are a frozen, hashable dataclass with a readable repr, it has a unit, and `data` is a text.
    - It prices every value with a non-negative integer, all together below 2**62; what is not computed
      again (inputs, views, elements of tuples, the tangents' closure) with 0. Sums that could wrap it refuses.
    - It prices the same graph the same. Names and storage ids are labels: other ones change no price.

    Args:
        estimator: a class, checked with its default options, or a configured instance.
        max_examples: graphs to draw.

    Raises:
        AssertionError: what is wrong, and with which graph.
    """
    chosen = estimator() if isinstance(estimator, type) else estimator
    require_options(chosen)
    require(hashes(chosen), f"{chosen!r} must be hashable, by its options")
    require(isinstance(getattr(chosen, "unit", None), str), f"{chosen!r} must have a unit: that of its prices")
    is_text = isinstance(chosen.data(), str)  # pyright: ignore[reportUnnecessaryIsInstance]  # a stranger's
    require(is_text, f"{chosen!r}.data() must be a text, got {chosen.data()!r}")
    for_all(graphs(), max_examples, chosen, lambda graph: _check_estimates(chosen, graph))
    for unusual in _unusual_graphs():
        for_all(st.just(unusual), 1, chosen, lambda graph: _check_estimates(chosen, graph))


def _unusual_graphs() -> Iterator[Graph]:
    """Yields what random graphs lack: a tuple with its elements, and figures whose products with others wrap."""
    for figure in (100, 2**58 - 1):
        g = GraphBuilder()
        g.input("x", bytes=figure)
        g.op("sort", "x", bytes=0, fusible=False)
        g.op("getitem", "sort", bytes=figure, flops=figure, fusible=False, name="first")
        g.op("getitem", "sort", bytes=figure, flops=figure, fusible=False, name="second")
        g.output(g.op("mm", "first", "second", bytes=figure, flops=figure, compute_bound=True))
        yield g.build()


def _check_estimates(estimator: Estimator, graph: Graph) -> None:
    what = f"{estimator!r}.recompute_cost"
    try:
        answer = estimator.recompute_cost(graph)
    except RematError:
        if int(graph.bytes.max()) < 2**56:
            raise
        return  # larger than anything real: refused, which is better than wrapped
    prices = checked_prices(what, answer, len(graph), InvalidProblem)
    never = graph.input | graph.view | graph.tuple_element | (graph.region == Region.TANGENTS)
    priced = [graph.names[i] for i in np.flatnonzero(never & (prices > 0)).tolist()]
    require(not priced, f"{what} must be 0 for inputs, views, elements and the tangents' closure, but prices {priced}")
    again = np.array_equal(prices, estimator.recompute_cost(graph))
    require(again, f"{what} prices the same graph differently the second time")
    same = np.array_equal(prices, estimator.recompute_cost(relabelled(graph)))
    require(same, f"{what} looks at names or storage ids, which are only labels")
