"""Counts what a plan saves and recomputes on a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph, Region
from remat.facts.uses import propagate_to_operands


@dataclass(frozen=True)
class PlanFacts:
    """Describes a plan on a graph, independent of cost models. Names are in graph order.

    Attributes:
        saved_activations: saved values that take device memory until the backward pass.
        saved_inputs: saved inputs and views of inputs. They take no memory, because inputs are alive anyway.
        saved_bytes: memory of the saved activations. Values that share a storage count once, and a view counts as the
            whole storage that it keeps alive.
        offloaded: saved values that wait on the host, and views of them.
        offloaded_bytes: their host memory, each storage once.
        recomputed_ops: operators that run a second time, in the backward pass.
        recomputed_views: views that are recomputed, for free.
        deferred_ops: operators that run only in the backward pass, because neither an output nor a saved value depends
            on them. A plan lists them as recomputed, but they are no extra work.
    """

    saved_activations: tuple[str, ...]
    saved_inputs: tuple[str, ...]
    saved_bytes: int
    offloaded: tuple[str, ...]
    offloaded_bytes: int
    recomputed_ops: tuple[str, ...]
    recomputed_views: tuple[str, ...]
    deferred_ops: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> PlanFacts:
        """Computes the facts about a plan, in time linear in the graph.

        Raises:
            InvalidPlan: the plan names a value that the graph does not have.
        """
        choice = Choice.from_plan(graph, plan, offload=True)
        saved, recomputed, hosted = choice.saved, choice.recomputed, choice.offloaded[graph.base]
        activation = saved & ~graph.input[graph.base] & ~hosted
        ops, forward = recomputed & ~graph.view, computed_by_forward(graph, saved)
        return cls(
            saved_activations=_names(graph, activation),
            saved_inputs=_names(graph, saved & graph.input[graph.base]),
            saved_bytes=distinct_bytes(graph, activation),
            offloaded=_names(graph, saved & hosted),
            offloaded_bytes=distinct_bytes(graph, saved & hosted),
            recomputed_ops=_names(graph, ops & forward),
            recomputed_views=_names(graph, recomputed & graph.view),
            deferred_ops=_names(graph, ops & ~forward),
        )


def computed_by_forward(graph: Graph, saved: BoolArray) -> BoolArray:
    """Returns a mask (n,) of what the forward pass computes: all on which its outputs or saved values depend."""
    return propagate_to_operands(graph.operands, graph.in_forward | saved, graph.region == Region.EITHER)


def _names(graph: Graph, mask: BoolArray) -> tuple[str, ...]:
    return tuple(graph.names[i] for i in np.flatnonzero(mask).tolist())


def distinct_bytes(graph: Graph, values: BoolArray) -> int:
    """Adds up the memory that saving these values, (n,), takes: each storage counts once, and inputs are free."""
    return int(graph.activation_bytes[np.unique(graph.base[values])].sum())


def no_recompute_saved_bytes(graph: Graph) -> int:
    """Returns the bytes between the passes if no operator of the forward pass runs twice.

    This is about what autograd saves: on the ten small models of the corpus, 0.75 to 1.42 times what eager autograd
    saves, which runs other operators. It counts the activations of the region FORWARD that other regions read, or
    that are gradients; those that share a storage count once.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("exp", g.input("x", bytes=4))
    >>> g.output(y)
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=4), y))
    >>> no_recompute_saved_bytes(g.build())
    4
    """
    return distinct_bytes(graph, no_recompute_saved(graph) & ~graph.input[graph.base])


def no_recompute_saved(graph: Graph) -> BoolArray:
    """Returns a mask (n,) of what the forward pass saves if no operator runs twice: see `no_recompute_saved_bytes`."""
    forward = graph.with_elements(graph.in_forward)
    handed_over = graph.gradient & forward
    handed_over[graph.producers[forward[graph.producers] & ~forward[graph.consumers]]] = True
    return handed_over


def no_recompute_plan(graph: Graph) -> Plan:
    """Returns a plan close to eager mode: no operator of the forward pass runs twice, unless a ban requires it."""
    saved = no_recompute_saved(graph) & ~graph.cannot_save.mask & ~graph.must_recompute
    return Choice.from_saved(graph, saved).plan(graph)
