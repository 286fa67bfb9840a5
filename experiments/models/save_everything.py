"""Plans that experiments compare with: what autograd saves, the least that can be saved, and that of a cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import remat


@dataclass(frozen=True)
class SaveEverything(remat.CostModel):
    """Saves what autograd saves: no operator of the forward pass runs twice."""

    name: ClassVar[str] = "save-everything"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices each save at the bytes it moves; of the forward pass, only views may be computed again."""
        nothing = remat.plugin.Terms.nothing(graph)
        forward = (graph.region == remat.plugin.Region.FORWARD) & ~graph.view
        bans = nothing.cannot_recompute.also(forward, "everything is saved")
        return replace(nothing, save_cost=graph.moved_bytes, cannot_recompute=bans)


@dataclass(frozen=True)
class SaveLeast(remat.CostModel):
    """Recomputes everything that may be recomputed: only memory has a price."""

    name: ClassVar[str] = "save-least"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices a saved activation at its bytes; inputs are in memory anyway."""
        return replace(remat.plugin.Terms.nothing(graph), save_cost=graph.activation_bytes)


def plan_of(graph: remat.Graph, cost_model: remat.CostModel) -> remat.Plan:
    """Returns the plan that a cost model leads to."""
    plan = remat.choose(graph, cost_model).plan
    assert plan is not None  # choose() raises where there is none
    return plan
