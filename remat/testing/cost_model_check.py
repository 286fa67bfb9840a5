"""Checks that a cost model meets its contract."""

from __future__ import annotations

import numpy as np

from remat.facts.graph import Graph, Region
from remat.problem.costmodel import CostModel, Terms
from remat.problem.feasibility import check_feasible
from remat.testing.strategies import graphs
from remat.testing.trials import for_all, require, require_options, with_other_labels


def check_cost_model(model: type[CostModel] | CostModel, *, max_examples: int = 100) -> None:
    """Checks that a cost model meets its contract, on random graphs of up to 12 values.

    - Its options are a frozen dataclass with a readable repr.
    - It prices every value with a non-negative integer, and the same graph always has the same prices. Names and
      storage ids are labels: other labels change no price and no ban.
    - Its problems have the values of the graph that the forward pass can compute, and respect the graph's facts: an
      input is never recomputed, a tuple never saved.
    - If the graph forbids nothing, the model allows a plan.
    - `model + model` costs twice as much and forbids the same.

    Args:
        model: a class, checked with its default options, or a configured instance.
        max_examples: the number of random graphs for each of the three checks; one of these has no annotations.

    Raises:
        AssertionError: the contract is broken; the message says how, and on which graph.
    """
    instance = model() if isinstance(model, type) else model
    require_options(instance)
    require(isinstance(getattr(instance, "unit", None), str), f"{instance!r} must have a unit: that of its prices")
    for_all(graphs(), max_examples, instance, lambda graph: _check_terms(instance, graph))
    for_all(graphs(), max_examples, instance, lambda graph: _check_facts(instance, graph))
    for_all(graphs(facts=False), max_examples, instance, lambda graph: check_feasible(instance.pose(graph)))


def _check_terms(model: CostModel, graph: Graph) -> None:
    terms = model.checked_terms(graph)
    require(_same(terms, model.terms(graph)), f"{model!r} prices the same graph differently the second time")
    relabelled = model.terms(with_other_labels(graph))
    require(_same(terms, relabelled), f"{model!r} looks at names or storage ids, which are only labels")
    require(_same(terms, (model + model).terms(graph), factor=2), f"{model!r} + itself must cost twice as much")


def _same(left: Terms, right: Terms, factor: int = 1) -> bool:
    return (
        np.array_equal(factor * left.save_cost, right.save_cost)
        and np.array_equal(factor * left.recompute_cost, right.recompute_cost)
        and (left.cannot_save, left.cannot_recompute) == (right.cannot_save, right.cannot_recompute)
        and left.budget_bytes == right.budget_bytes
    )


def _check_facts(model: CostModel, graph: Graph) -> None:
    problem, plannable = model.pose(graph), np.flatnonzero(graph.region != Region.TANGENTS)
    expected = tuple(graph.names[i] for i in plannable.tolist())
    require(problem.names == expected, f"{model!r} must pose the values outside the tangents, in graph order")
    require(np.array_equal(problem.needed, graph.needed[plannable]), f"{model!r} changes what is needed")
    no_save = graph.cannot_save.mask | graph.must_recompute
    no_recompute = graph.cannot_recompute.mask | graph.must_save | graph.input
    for what, forbidden, bans in (
        ("saving", no_save, problem.cannot_save),
        ("recomputing", no_recompute, problem.cannot_recompute),
    ):
        names = ", ".join(expected[i] for i in np.flatnonzero(forbidden[plannable] & ~bans.mask))
        require(not names, f"{model!r} allows {what} {names}, which the graph or its user forbids")
