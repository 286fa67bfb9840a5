"""What is legal by a graph's facts and the user's annotations, before any cost model has an opinion.

Every cost model starts from this problem, and every plan for the graph is checked by it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.facts.columns import any_set, frozen
from remat.facts.graph import Graph, checked_graph
from remat.facts.lazy_field import Deferred
from remat.problem.feasibility import forced_values
from remat.problem.offload import Offload, cannot_offload
from remat.problem.problem import Problem


def base_problem(graph: Graph, *, offload: bool = False) -> Problem:
    """The problem of a graph at no price: bans and needs alone. It is computed once for each graph.

    Args:
        graph: of n values.
        offload: with a host to offload to, at no price: there every plan that can run is legal.
    """
    return checked_graph(graph).derived(_with_host if offload else _unpriced)


def _unpriced(graph: Graph) -> Problem:
    demands = _demands(graph)
    ours = graph.plannable
    keep, redo = graph.prefer_save[ours], graph.prefer_recompute[ours]
    if not any_set(keep | redo):
        return demands
    redo &= ~forced_values(demands).not_recomputable
    keep &= ~demands.cannot_save.mask
    return demands.priced(
        save_cost=demands.save_cost,
        recompute_cost=demands.recompute_cost,
        cannot_save=demands.cannot_save.also(redo, "marked PREFER_RECOMPUTE"),
        cannot_recompute=demands.cannot_recompute.also(keep, "marked PREFER_SAVE"),
        budget_bytes=None,
    )


def _with_host(graph: Graph) -> Problem:
    problem = base_problem(graph)
    return replace(problem, offload=Offload(problem.save_cost, cannot_offload(graph).take(graph.plannable)))


def _demands(graph: Graph) -> Problem:
    """The facts, and what the user demands of values; not what the user asks for where it is possible."""
    ours, known = graph.plannable, ~graph.in_tangents
    position = known.cumsum() - 1
    inner = known[graph.consumers]  # and so its producer
    free = frozen(np.zeros(len(ours), np.int64))
    positions: list[int] = ours.tolist()
    return Problem(
        names=tuple([graph.names[i] for i in positions]),
        save_cost=free,
        recompute_cost=free,
        save_bytes=frozen(graph.activation_bytes[ours]),
        producers=frozen(position[graph.producers[inner]]),
        consumers=frozen(position[graph.consumers[inner]]),
        needed=frozen(graph.needed[ours]),
        cannot_save=graph.cannot_save.also(graph.must_recompute, "marked MUST_RECOMPUTE").take(ours),
        cannot_recompute=graph.cannot_recompute.also(graph.input, "an input of the graph")
        .also(graph.must_save, "marked MUST_SAVE")
        .take(ours),
        signature=Deferred(lambda: graph.signature),
        places=Deferred(lambda: tuple([graph.places[i] for i in positions])),
    )
