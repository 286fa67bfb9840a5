"""One plan for all ranks of a distributed run.

Ranks that save different values may order their collectives differently, and hang.
"""

# torch.distributed is partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import hashlib

import torch.distributed as dist

from remat.graph import Graph
from remat.plan import Plan


def several_ranks() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def agreed(plan: Plan, graph: Graph) -> Plan:
    """The plan of the lowest rank that compiles the same graph as this one.

    Every rank of the default process group must get here as often as the others; ranks with
    different graphs (as in pipeline parallelism) keep plans of their own.
    """
    mine = hashlib.sha256("\n".join(graph.signature).encode()).hexdigest()
    offers: list[tuple[str, Plan] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(offers, (mine, plan))
    return next(offer[1] for offer in offers if offer is not None and offer[0] == mine)
