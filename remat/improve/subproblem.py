"""Poses the problem of one graph that shares a budget with other graphs of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import frozen
from remat.facts.graph import Graph
from remat.predict.buffers import Exchanged
from remat.problem.costmodel import CostModel
from remat.problem.multipliers import Multipliers
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes

# Multipliers are rounded to this many bits, so that their product with a cost is no overflow.
_BITS = 24


@dataclass(frozen=True, eq=False)
class Subproblem:
    """Describes one graph of a run, and what it shares with the other graphs.

    Attributes:
        graph: the joint graph.
        problem: its prices and bans, and the budget as it would be for this graph alone (see `subproblem_of`).
        times: the number of calls whose saved values are alive at the same time.
        earlier: the names of inputs that other graphs of the run computed, and that need gradients.
        dropped: the names of results whose storages are free when the graph's backward pass begins.
        gradients: for some results, the names of their tangents. These tangents are freed as soon as the backward pass
            has read them; torch keeps all others until the pass ends.
    """

    graph: Graph
    problem: Problem
    times: int = 1
    earlier: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    gradients: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def exchanged(self) -> Exchanged:
        return Exchanged(self.dropped, frozenset(self.gradients.values()))

    @property
    def earlier_bytes(self) -> int:
        """Returns the bytes of the inputs that other graphs computed; their gradients have the same size."""
        owners = {int(self.graph.base[self.graph.index[name]]) for name in self.earlier}
        return sum(int(self.graph.bytes[owner]) for owner in owners)

    @property
    def smallest_choice(self) -> Choice:
        return least_bytes(self.problem).choice

    def choice_at(self, multipliers: Multipliers) -> Choice:
        """Returns the choice with the least sum of cost and bytes under these Lagrange multipliers."""
        return flow_solver().minimum_cut(self.problem, multipliers.coarser(_BITS)).choice


def subproblem_of(graph: Graph, cost_model: CostModel, earlier_values: Collection[str] = ()) -> Subproblem:
    """Poses the problem of one graph of a run.

    Args:
        earlier_values: the names of inputs that other graphs of the run computed. They are alive only if they are
            saved, so they count as saved bytes. Other inputs, such as parameters, are always alive, and do not count.
    """
    problem = cost_model.pose_without_peak(graph)
    times = 1 if problem.rows else cost_model.calls_in_flight  # rows are those of one call
    is_earlier = np.array([name in earlier_values for name in graph.names], np.bool_)
    if not is_earlier.any():
        return Subproblem(graph, problem, times)
    counted = np.where(is_earlier[graph.base], graph.storage_bytes, 0)[graph.plannable]
    problem = replace(problem, save_bytes=frozen(problem.save_bytes + counted))
    part = Subproblem(graph, problem, times, earlier=frozenset(earlier_values) & {*graph.names})
    fractions = [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]
    if fractions and problem.budget_bytes is not None:
        budget = problem.budget_bytes + math.floor(min(fractions) * part.earlier_bytes)
        return replace(part, problem=replace(problem, budget_bytes=max(budget, least_bytes(problem).weight)))
    return part
