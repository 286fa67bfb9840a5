"""Finds what the forward pass hands to the backward pass: of several saved values in one storage, the owner alone.

AOTAutograd donates the saved tensors that nobody else can see: Inductor's backward pass writes results over
them. It does not check whether two of them share memory (`collect_fw_donated_buffer_idxs`, torch 2.13), so
one could be overwritten before the other is read. To hand over the owner is safe and free: the backward pass takes
the views again, and the storage stays alive either way.
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
    """Names the values that the forward pass hands to the backward pass, for a plan that was checked.

    These are the values that the plan saves, on the device or offloaded, with the owner in the place of views (see
    `storage_owners`), and the sizes that are needed to take the views again. Raises `InvalidPlan` if a view depends
    on something else that the backward pass cannot have.
    """
    choice = Choice.from_plan(graph, plan, offload=True)
    handed = storage_owners(graph, choice.saved)
    views = set(np.flatnonzero(choice.saved & ~handed).tolist())
    values = set(np.flatnonzero(handed).tolist())
    if views:
        values |= _sizes(graph, views, values | set(np.flatnonzero(choice.recomputed).tolist()))
    return {graph.names[v] for v in values}


def storage_owners(graph: Graph, saved: BoolArray) -> BoolArray:
    """Returns (n,) what is handed over: of several saved values in one storage that would be donated, its owner."""
    base = graph.base
    donated = saved & ~graph.derived(externally_visible)
    count = np.bincount(base[donated], minlength=len(graph))
    views = donated & (count[base] > 1) & (base != np.arange(len(graph)))
    if not any_set(views):
        return saved
    handed = saved & ~views
    handed[base[views]] = True
    return handed


def externally_visible(graph: Graph) -> BoolArray:
    """Returns (n,) values in storages of inputs and outputs: others can see these, so they are never donated."""
    return graph.owners(graph.input | graph.output)[graph.base]


def _sizes(graph: Graph, views: set[int], available: set[int]) -> set[int]:
    """Finds the symbolic sizes, inputs of the graph, that these views are computed from beside what is available."""
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
