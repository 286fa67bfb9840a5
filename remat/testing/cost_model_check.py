"""Checks that a cost model keeps its contract."""

from __future__ import annotations

import numpy as np

from remat.facts.graph import Graph, Region
from remat.problem.costmodel import CostModel, Terms
from remat.problem.feasibility import check_feasible
from remat.testing.strategies import graphs
from remat.testing.trials import for_all, relabelled, require, require_options


def check_cost_model(model: type[CostModel] | CostModel, *, max_examples: int = 100) -> None:
    """Checks that a cost model keeps its contract, on random graphs of up to 12 values.

    - Its options are a frozen dataclass with a readable repr.
    - It prices every value with a non-negative integer, and prices the same graph the same.
      Names and storage ids are labels: other ones change no price and no ban.
    - Its problems have the values of the graph that the forward pass can compute, and respect
      the graph's facts: an input is never recomputed, a tuple never saved.
    - Where the graph forbids nothing, the model leaves a plan.
    - `model + model` costs twice as much and forbids the same.

    Args:
        model: a class, checked with its default options, or a configured instance.
        max_examples: graphs to draw, with facts and annotations and without each.

    Raises:
        AssertionError: what is wrong, and with which graph.
    """
    chosen = model() if isinstance(model, type) else model
    require_options(chosen)
    require(isinstance(getattr(chosen, "unit", None), str), f"{chosen!r} must have a unit: that of its prices")
    for_all(graphs(), max_examples, chosen, lambda graph: _check_terms(chosen, graph))
    for_all(graphs(), max_examples, chosen, lambda graph: _check_facts(chosen, graph))
    for_all(graphs(facts=False), max_examples, chosen, lambda graph: check_feasible(chosen.pose(graph)))


def _check_terms(model: CostModel, graph: Graph) -> None:
    terms = model.checked_terms(graph)
    require(_same(terms, model.terms(graph)), f"{model!r} prices the same graph differently the second time")
    require(
        _same(terms, model.terms(relabelled(graph))), f"{model!r} looks at names or storage ids, which are only labels"
    )
    require(_same(terms, (model + model).terms(graph), factor=2), f"{model!r} + itself must cost twice as much")


def _same(left: Terms, right: Terms, factor: int = 1) -> bool:
    return (
        np.array_equal(factor * left.save_cost, right.save_cost)
        and np.array_equal(factor * left.recompute_cost, right.recompute_cost)
        and (left.cannot_save, left.cannot_recompute) == (right.cannot_save, right.cannot_recompute)
        and left.budget_bytes == right.budget_bytes
    )


def _check_facts(model: CostModel, graph: Graph) -> None:
    problem, ours = model.pose(graph), np.flatnonzero(graph.region != Region.TANGENTS)
    expected = tuple(graph.names[i] for i in ours.tolist())
    require(problem.names == expected, f"{model!r} must pose the values outside the tangents, in graph order")
    require(np.array_equal(problem.needed, graph.needed[ours]), f"{model!r} changes what is needed")
    unsaved = (graph.cannot_save.mask | graph.must_recompute)[ours] & ~problem.cannot_save.mask
    redone = (graph.cannot_recompute.mask | graph.must_save | graph.input)[ours] & ~problem.cannot_recompute.mask
    for what, broken in (("saving", unsaved), ("recomputing", redone)):
        names = ", ".join(expected[i] for i in np.flatnonzero(broken))
        require(not names, f"{model!r} allows {what} {names}, which the graph or its user forbids")
