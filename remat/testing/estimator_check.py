"""Checks that an estimator meets its contract."""

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
from remat.testing.trials import for_all, is_hashable, require, require_options, with_other_labels


def check_estimator(estimator: type[Estimator] | Estimator, *, max_examples: int = 100) -> None:
    """Checks that an estimator meets its contract, on random graphs of up to 12 values and on two fixed graphs.

    - Its options are a frozen, hashable dataclass with a readable repr, it has a unit, and `data()` returns text.
    - It prices every value with a non-negative integer, with a sum below 2**62. Values that are never recomputed
      (inputs, views, elements of tuples, what needs tangents) cost 0. It refuses sums that could overflow.
    - The same graph always has the same prices. Names and storage ids are labels: other labels change no price.

    Args:
        estimator: a class, checked with its default options, or a configured instance.
        max_examples: the number of random graphs.

    Raises:
        AssertionError: the contract is broken; the message says how, and on which graph.
    """
    instance = estimator() if isinstance(estimator, type) else estimator
    require_options(instance)
    require(is_hashable(instance), f"{instance!r} must be hashable, by its options")
    require(isinstance(getattr(instance, "unit", None), str), f"{instance!r} must have a unit: that of its prices")
    is_text = isinstance(instance.data(), str)  # pyright: ignore[reportUnnecessaryIsInstance]  # plug-ins may be untyped
    require(is_text, f"{instance!r}.data() must be a text, got {instance.data()!r}")
    for_all(graphs(), max_examples, instance, lambda graph: _check_estimates(instance, graph))
    for unusual in _unusual_graphs():
        for_all(st.just(unusual), 1, instance, lambda graph: _check_estimates(instance, graph))


# What random graphs lack: a tuple with its elements, and figures whose products overflow.
def _unusual_graphs() -> Iterator[Graph]:
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
        return  # no machine has so much memory: an error is better than an overflow
    prices = checked_prices(what, answer, len(graph), InvalidProblem)
    never = graph.input | graph.view | graph.tuple_element | (graph.region == Region.TANGENTS)
    wrongly_priced = [graph.names[i] for i in np.flatnonzero(never & (prices > 0)).tolist()]
    require(
        not wrongly_priced,
        f"{what} must be 0 for inputs, views, elements and the tangents' closure, but prices {wrongly_priced}",
    )
    is_repeatable = np.array_equal(prices, estimator.recompute_cost(graph))
    require(is_repeatable, f"{what} prices the same graph differently the second time")
    ignores_labels = np.array_equal(prices, estimator.recompute_cost(with_other_labels(graph)))
    require(ignores_labels, f"{what} looks at names or storage ids, which are only labels")
