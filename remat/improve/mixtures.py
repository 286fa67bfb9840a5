"""Mixes a plan within a limit of the peak with a faster one above it.

A mixture saves what the first plan saves up to some value of the forward pass, and what the second one saves from there
on. What is saved late in the forward pass is read, and freed, first in the backward pass.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from remat.answer.plan_facts import distinct_bytes
from remat.improve.limited_search import PAYS, LimitedSearch
from remat.improve.peak_plans import PeakPlan

# The way between two plans is halved this often to mix them.
_HALVINGS = 5


class Mixtures:
    """Mixes plans, as far as one limit of the peak allows."""

    def __init__(self, search: LimitedSearch) -> None:
        self._search, self._limit_bytes, self._rank = search, search.limit_bytes, search.ranking.of

    def make(self, within: PeakPlan, predicted: Collection[PeakPlan]) -> None:
        """Mixes a plan with the fastest plan above the limit, and with the one that gains most time per byte.

        Args:
            within: the plan within the limit.
            predicted: all plans that were predicted.
        """
        rank = self._rank(within.choice)

        def gain(plan: PeakPlan) -> float:
            return (rank - self._rank(plan.choice)) / (plan.peak_bytes - self._limit_bytes)

        above = (plan for plan in predicted if plan.peak_bytes > self._limit_bytes)
        better = [plan for plan in above if self._rank(plan.choice) < (1 - PAYS) * rank]
        if not better:
            return
        partners = max(better, key=gain), min(better, key=lambda plan: self._rank(plan.choice))
        # The fastest plan is needed, too: on a BERT, to save what it saves of the loss freed 0.5 GB of 7.3 GB.
        for plan in dict.fromkeys(partners):
            self._mix(within, plan)

    def _mix(self, within: PeakPlan, above: PeakPlan) -> None:
        """Goes as far to the plan above the limit as keeps the limit, and as long as mixtures do not seem worse."""
        search, graph = self._search, self._search.plans.graph
        masks = within.choice.saved, above.choice.saved
        differences, position = np.flatnonzero(masks[0] != masks[1]), np.arange(len(masks[0]))
        first, last = 0, len(differences)
        for _ in range(_HALVINGS):
            middle = (first + last) // 2
            if middle in (first, last):
                break
            choice = search.plans.legal.saving(np.where(position < differences[middle], *masks))
            keeps = distinct_bytes(graph, graph.for_all_values(choice.saved)) <= self._limit_bytes
            keeps = keeps and not search.ranking.seems_worse(choice, within.choice)
            keeps = keeps and search.plan(choice, "mixture").peak_bytes <= self._limit_bytes
            first, last = (first, middle) if keeps else (middle, last)
