"""Computes what is legal by a graph's facts and the user's annotations, without any cost model.

Every cost model starts from this problem, and every plan for the graph is checked against it.
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
    """Returns the problem of a graph without prices: only bans and needed values. It is computed once per graph.

    Args:
        offload: whether values may be offloaded, for free; then every plan that can run is legal.

    Raises:
        InvalidOption: `graph` is no `remat.Graph`.
    """
    return checked_graph(graph).derived(_with_host if offload else _unpriced)


def _unpriced(graph: Graph) -> Problem:
    demands = _demands(graph)
    save, recompute = graph.prefer_save[graph.plannable], graph.prefer_recompute[graph.plannable]
    if not any_set(save | recompute):
        return demands
    recompute &= ~forced_values(demands).not_recomputable
    save &= ~demands.cannot_save.mask
    return demands.priced(
        save_cost=demands.save_cost,
        recompute_cost=demands.recompute_cost,
        cannot_save=demands.cannot_save.also(recompute, "marked PREFER_RECOMPUTE"),
        cannot_recompute=demands.cannot_recompute.also(save, "marked PREFER_SAVE"),
        budget_bytes=None,
    )


def _with_host(graph: Graph) -> Problem:
    problem = base_problem(graph)
    return replace(problem, offload=Offload(problem.save_cost, cannot_offload(graph).take(graph.plannable)))


# Facts and strict annotations: only MUST_SAVE and MUST_RECOMPUTE count.
def _demands(graph: Graph) -> Problem:
    plannable, is_plannable = graph.plannable, ~graph.in_tangents
    position = is_plannable.cumsum() - 1
    use = is_plannable[graph.consumers]  # then its producer is plannable, too
    free = frozen(np.zeros(len(plannable), np.int64))
    positions: list[int] = plannable.tolist()
    return Problem(
        names=tuple([graph.names[i] for i in positions]),
        save_cost=free,
        recompute_cost=free,
        save_bytes=frozen(graph.activation_bytes[plannable]),
        producers=frozen(position[graph.producers[use]]),
        consumers=frozen(position[graph.consumers[use]]),
        needed=frozen(graph.needed[plannable]),
        cannot_save=graph.cannot_save.also(graph.must_recompute, "marked MUST_RECOMPUTE").take(plannable),
        cannot_recompute=graph.cannot_recompute.also(graph.input, "an input of the graph")
        .also(graph.must_save, "marked MUST_SAVE")
        .take(plannable),
        signature=Deferred(lambda: graph.signature),
        places=Deferred(lambda: tuple([graph.places[i] for i in positions])),
    )
