"""Makes all ranks of a distributed run use one plan.

Ranks that save different values may run their collectives in different orders, and then wait for each other for ever.

Ranks of a pipeline run different stages, one after the other. If a rank compiled its stage and waited for the plans of
the others, it would wait for ever, because they wait for its results. So a stage of `torch.distributed.pipelining` is
planned as if its rank were alone. Ranks that run the same stage find the same plan, unless a time limit ends a search.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch.distributed as dist

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.problem.offload import cannot_offload
from remat.pytorch.seam.compilations import in_pipeline_stage
from remat.pytorch.seam.fakes import real_tensors

# The subjects of the warnings of this process.
_warned_about: set[str] = set()


def several_ranks() -> bool:
    """Returns whether this process is one of several ranks, and plans are exchanged with the others."""
    is_one_of_several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return is_one_of_several and not in_pipeline_stage()


def warn(text: str, about: str = "") -> None:
    """Warns, but only on the first rank; with a subject `about`, only once in each process."""
    if about not in _warned_about and not (several_ranks() and dist.get_rank()):
        warnings.warn(text, stacklevel=3)
        _warned_about.update({about} - {""})


def agreed_plan(own: Plan | Exception, graph: Graph | None) -> Plan | Exception:
    """Exchanges plans between all ranks, and returns that of the lowest rank with a plan for the graph of this rank.

    Every rank of the default process group must call this equally often, or the others wait for it for ever. So a rank
    that has no plan, or could not read its graph, calls it, too. Ranks with different graphs keep their own plans.

    Args:
        own: the plan of this rank, or the error because of which it has none.
        graph: the graph of the plan; None if it could not be read.

    Returns:
        the plan, which is `own` itself if both are equal; or the error of this rank, if no rank has a plan for its
        graph.
    """
    if not several_ranks():
        return own
    key = key_of_graph(graph) if graph is not None else None
    offers: list[tuple[str | None, Plan | str] | None] = [None] * dist.get_world_size()
    distributed: Any = dist  # whose types are known in part
    with real_tensors():
        distributed.all_gather_object(offers, (key, own if isinstance(own, Plan) else f"{type(own).__name__}: {own}"))
    for rank, offer in enumerate(offers):
        if offer is not None and offer[0] == key is not None and isinstance(offer[1], Plan):
            if isinstance(own, Exception):
                warnings.warn(f"this rank found no plan and takes that of rank {rank}: {own}", stacklevel=2)
            return own if offer[1] == own else offer[1]
    return own


def key_of_graph(graph: Graph) -> str:
    """Computes a key of a graph; graphs with equal keys have the same legal plans."""
    return graph.derived(_key)


def _key(graph: Graph) -> str:
    digest = hashlib.sha256("\n".join(graph.signature).encode())
    bans = (graph.cannot_save.mask, graph.cannot_recompute.mask, cannot_offload(graph).mask)
    marks = (graph.must_save, graph.must_recompute, graph.prefer_save, graph.prefer_recompute)
    for column in (graph.needed, *bans, *marks):
        digest.update(column.tobytes())
    return digest.hexdigest()
