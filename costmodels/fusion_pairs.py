"""Memory traffic between two fusion groups (paper, section 3.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from costmodels.recompute_rules import RULES
from remat.plugin import Bans, CostModel, Graph, Terms

_RULES = ("random", "compute_bound", "not_fusible", "small_reduction", "materialized_in_backward")
"""The others of `RULES` are about a pass as a whole: how far apart uses are, and how long chains grow."""


@dataclass(frozen=True)
class FusionPairs(CostModel):
    """What two touching fusion groups A -> B read and write, if B computes some of A's values again.

    Poses the joint graph of A and B that `remat.improve.cross_kernel.pair` makes: A's values are the forward pass,
    B's the tangents' closure. A value of A that B reads from memory costs a read, B(v); and a write, B(v) more, unless
    it is in memory anyway: it is an input of A, or an output (used outside A and B). What B computes again is free; so
    what B reads for it counts, unless B reads that anyway.

    Left out, as in the paper: what A reads. Where a choice leaves A nothing to do, the true traffic is lower.

    Not computed again: what is random, compute-bound, not fusible (into B, for one), or reduces its
    inputs more than four times, in which case B would read much to save little.
    """

    name: ClassVar[str] = "fusion-pairs"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        """A read for what B takes from memory, and a write where only B asks for it."""
        bans, own = Bans.none(len(graph)), ~graph.view & ~graph.input & ~graph.in_tangents
        for name in _RULES:
            bans = bans.also(RULES[name].bans(graph, bans.mask) & own, RULES[name].reason)
        price = np.where(graph.materialized, graph.moved_bytes, 2 * graph.moved_bytes)
        return replace(Terms.nothing(graph), save_cost=price, cannot_recompute=bans)
