"""What the forward pass hands to the backward pass for a plan: of what shares memory, the owner alone.

AOTAutograd donates the saved tensors that nobody else can see: Inductor's backward writes results over
them. Whether two of them share memory it does not ask (`collect_fw_donated_buffer_idxs`, torch 2.13), so
one could be overwritten before the other is read. Taking a view again costs nothing and keeps the same
storage alive.
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
    """The names of the values that the backward pass is given, for a plan that was checked.

    That is what the plan saves, on the device or offloaded, but for `storage_owners`; and the sizes that the views need
    which it takes again.

    Raises:
        InvalidPlan: a view depends on more than its owner, which cannot be had in the backward pass.
    """
    choice = Choice.from_plan(graph, plan, offload=True)
    handed = storage_owners(graph, choice.saved)
    views = set(np.flatnonzero(choice.saved & ~handed).tolist())
    values = set(np.flatnonzero(handed).tolist())
    if views:
        values |= _sizes(graph, views, values | set(np.flatnonzero(choice.recomputed).tolist()))
    return {graph.names[v] for v in values}


def storage_owners(graph: Graph, saved: BoolArray) -> BoolArray:
    """(n,) what is handed over for what is saved: of several values of one storage that would be donated, its owner."""
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
    """(n,) values in storages that somebody else can see, which are never donated: of inputs and outputs."""
    visible = np.zeros(len(graph), np.bool_)
    visible[graph.base[graph.input | graph.output]] = True
    return visible[graph.base]


def _sizes(graph: Graph, views: set[int], available: set[int]) -> set[int]:
    """The inputs that `views` are computed from, beside what is available: symbolic sizes."""
    sizes, seen, stack = set[int](), available | views, list(views)
    while stack:
        for u in graph.operands[stack.pop()]:
            if u in seen:
                continue
            seen.add(u)
            reason = graph.cannot_recompute.reason(u)
            if reason is not None:
                needed = placed(repr(graph.names[u]), graph.places[u])
                raise InvalidPlan(
                    f"the plan saves several values of one storage, which are views that the backward pass takes "
                    f"again; one needs {needed}, which {cannot_be('recomputed', reason)}: save that, too"
                )
            if graph.input[u]:
                sizes.add(u)
            else:
                stack.append(u)
    return sizes
