"""Prices memory traffic between two fusion groups (paper, section 3.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from costmodels.recompute_rules import RULES
from remat.plugin import Bans, CostModel, Graph, Terms

_RULES = ("random", "compute_bound", "not_fusible", "small_reduction", "materialized_in_backward")
"""The rules for one pair. The others concern a whole pass: the distance between uses, the length of chains."""


@dataclass(frozen=True)
class FusionPairs(CostModel):
    """Prices what two fusion groups A -> B read and write, if B may recompute some of A's values.

    The model takes the joint graph of A and B that `remat.improve.cross_kernel.pair` makes, where A's values are the
    forward pass and B's are the tangents' closure. If B reads a value v of A from memory, that costs a read, B(v), and
    a write, B(v) more, unless v is in memory anyway as an input of A or as an output (used outside A and B).
    Recomputing in B is free, but the values that B reads for it count, unless B reads them anyway.

    The model does not count what A reads, as in the paper. If A has nothing left to do, the true traffic is lower. B
    never recomputes values that are random, compute-bound, or not fusible (into B, for example). Nor does it recompute
    a value that reduces its inputs more than four times: B would read much to save little.
    """

    name: ClassVar[str] = "fusion-pairs"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        """Prices a read for each value that B reads from memory, and a write if only B needs it."""
        bans, operators = Bans.none(len(graph)), ~graph.view & ~graph.input & ~graph.in_tangents
        for name in _RULES:
            bans = bans.also(RULES[name].bans(graph, bans.mask) & operators, RULES[name].reason)
        return replace(Terms.nothing(graph), save_cost=graph.save_traffic, cannot_recompute=bans)
