"""Makes all ranks of a distributed run follow one plan.

Ranks that save different values may order their collectives differently, and hang.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import torch.distributed as dist

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.problem.offload import cannot_offload
from remat.pytorch.seam.fakes import real_tensors


def several_ranks() -> bool:
    """Returns whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def warn(text: str, about: str = "") -> None:
    """Warns on the first rank alone; with a subject `about`, once a process."""
    if about not in _warned_about and not (several_ranks() and dist.get_rank()):
        warnings.warn(text, stacklevel=3)
        _warned_about.update({about} - {""})


_warned_about: set[str] = set()


def agreed(mine: Plan | Exception, graph: Graph | None) -> Plan | Exception:
    """Returns the plan of the lowest rank that has one for the same graph as this one.

    Every rank of the default process group must get here as often as the others, or they wait for it
    for ever: so one that has no plan, or not even a graph, comes as well. Ranks with different graphs
    (as in pipeline parallelism) keep plans of their own.

    Args:
        mine: this rank's plan, or why it has none.
        graph: what the plan is for; None where it could not be read.

    Returns:
        the plan; this rank's own reason if no rank has a plan for its graph.
    """
    if not several_ranks():
        return mine
    key = key_of_graph(graph) if graph is not None else None
    offers: list[tuple[str | None, Plan | str] | None] = [None] * dist.get_world_size()
    distributed: Any = dist  # whose types are known in part
    with real_tensors():
        distributed.all_gather_object(
            offers, (key, mine if isinstance(mine, Plan) else f"{type(mine).__name__}: {mine}")
        )
    for rank, offer in enumerate(offers):
        if offer is not None and offer[0] == key is not None and isinstance(offer[1], Plan):
            if isinstance(mine, Exception):
                warnings.warn(f"this rank found no plan and takes that of rank {rank}: {mine}", stacklevel=2)
            return offer[1]
    return mine


def key_of_graph(graph: Graph) -> str:
    """Makes a key of a graph: two graphs with one key have the same legal plans."""
    return graph.derived(_key)


def _key(graph: Graph) -> str:
    digest = hashlib.sha256("\n".join(graph.signature).encode())
    bans = (graph.cannot_save.mask, graph.cannot_recompute.mask, cannot_offload(graph).mask)
    marks = (graph.must_save, graph.must_recompute, graph.prefer_save, graph.prefer_recompute)
    for column in (graph.needed, *bans, *marks):
        digest.update(column.tobytes())
    return digest.hexdigest()
