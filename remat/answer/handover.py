"""What the forward pass hands to the backward pass for a plan: of what shares memory, the owner alone.

AOTAutograd donates the saved tensors that nobody else can see: Inductor's backward writes results over
them. Whether two of them share memory it does not ask (`collect_fw_donated_buffer_idxs`, torch 2.13), so
one could be overwritten before the other is read. Taking a view again costs nothing and keeps the same
storage alive.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from remat.answer.plan import Plan
from remat.errors import InvalidPlan
from remat.facts.bans import cannot_be
from remat.facts.graph import Graph


def handed_over(graph: Graph, plan: Plan) -> set[str]:
    """The names of the values that the backward pass is given, for a plan that was checked.

    That is what the plan saves; but where it saves several values of one storage that would be donated, the
    owner of the storage, from which the backward pass takes the others again.

    Raises:
        InvalidPlan: one of those depends on more than its owner, which cannot be had in the backward pass.
    """
    saved, recomputed = ({graph.index[name] for name in names} for names in (plan.saved, plan.recomputed))
    visible = np.zeros(len(graph), np.bool_)
    visible[graph.base[graph.input | graph.output]] = True  # never donated
    owner_of = {v: int(graph.base[v]) for v in saved if not visible[graph.base[v]]}
    count = Counter(owner_of.values())
    views = {v for v, owner in owner_of.items() if count[owner] > 1 and v != owner}
    handed = saved - views | {owner_of[v] for v in views}
    if views:
        handed |= _sizes(graph, views, handed | recomputed)
    return {graph.names[v] for v in handed}


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
                raise InvalidPlan(
                    f"the plan saves several values of one storage, which are views that the backward pass takes "
                    f"again; one needs {graph.names[u]!r}, which {cannot_be('recomputed', reason)}: save that, too"
                )
            if graph.input[u]:
                sizes.add(u)
            else:
                stack.append(u)
    return sizes
