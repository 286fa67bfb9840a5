"""Computes what the forward pass passes to the backward pass: of several saved values in one storage, only the owner.

AOTAutograd donates the saved tensors that are not visible outside: Inductor's backward pass overwrites them. It does
not check whether two of them share memory (`collect_fw_donated_buffer_idxs`, torch 2.13), so one could be overwritten
before the other is read. Passing only the owner is safe and free: the backward pass recomputes the views, and the
storage stays alive either way.
"""

from __future__ import annotations

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.errors import InvalidPlan
from remat.facts.bans import cannot_be
from remat.facts.columns import BoolArray, any_set
from remat.facts.graph import Graph
from remat.words import placed


def handed_over(graph: Graph, plan: Plan) -> set[str]:
    """Returns the names of the values that the forward pass passes to the backward pass, for a checked plan.

    These are the saved values of the plan, on the device or offloaded, with owners instead of views (see
    `storage_owners`), and the sizes that are needed to recompute the views. Raises `InvalidPlan` if a view depends on
    a value that is not available in the backward pass.
    """
    choice = Choice.from_plan(graph, plan, offload=True)
    handed = storage_owners(graph, choice.saved)
    views = set(np.flatnonzero(choice.saved & ~handed).tolist())
    values = set(np.flatnonzero(handed).tolist())
    if views:
        values |= _sizes(graph, views, values | set(np.flatnonzero(choice.recomputed).tolist()))
    return {graph.names[v] for v in values}


def storage_owners(graph: Graph, saved: BoolArray) -> BoolArray:
    """Returns a mask (n,) of the values to pass: of donated saved values in one storage, only the owner."""
    base = graph.base
    donated = saved & ~graph.derived(externally_visible)
    count = np.bincount(base[donated], minlength=len(graph))
    views = donated & (count[base] > 1) & (base != np.arange(len(graph)))
    return (saved & ~views) | graph.owners(views) if any_set(views) else saved


def externally_visible(graph: Graph) -> BoolArray:
    """Returns a mask (n,) of the values whose storage the caller can see (inputs, outputs): these are never donated."""
    return graph.owners(graph.input | graph.output)[graph.base]


# The symbolic sizes (inputs of the graph) from which these views are computed, besides available values.
def _sizes(graph: Graph, views: set[int], available: set[int]) -> set[int]:
    sizes, visited, stack = set[int](), available | views, list(views)
    while stack:
        for u in graph.operands[stack.pop()]:
            if u in visited:
                continue
            visited.add(u)
            reason = graph.cannot_recompute.reason(u)
            if reason is not None:
                operand = placed(repr(graph.names[u]), graph.places[u])
                raise InvalidPlan(
                    f"the plan saves several views of one storage, which the backward pass makes again; one of them "
                    f"needs {operand}, which {cannot_be('recomputed', reason)}: save that, too"
                )
            if graph.input[u]:
                sizes.add(u)
            else:
                stack.append(u)
    return sizes
