"""Turns the budgets that a model gives to parts of one graph, by marks of PyTorch, into rows of its problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from remat.answer.registry import DEFAULT_TIME_MODEL, find_costmodel
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_saved_bytes, rows_of
from remat.problem.costmodel import CostModel, Terms


class MarkedParts(CostModel):
    """Limits what is saved of the values that `region_activation_memory_budget` marks, for each budget together.

    Args:
        budget_of: the budget of each marked value of one graph, by name: a share of what PyTorch's default plan saves.
    """

    name: ClassVar[str] = "budgets of marked regions"

    def __init__(self, budget_of: Mapping[str, float]) -> None:
        self._budget_of = budget_of

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # that of `MemoryBudget`
        return find_costmodel(DEFAULT_TIME_MODEL).unit

    def terms(self, graph: Graph) -> Terms:
        problem, budgets = find_costmodel(DEFAULT_TIME_MODEL).pose(graph), sorted({*self._budget_of.values()})
        values = [np.array([self._budget_of.get(name) == budget for name in graph.names]) for budget in budgets]
        shares = [Fraction(str(budget)) for budget in budgets]
        parts = zip([f"regions marked {budget}" for budget in budgets], values, shares, strict=True)
        return replace(Terms.nothing(graph), rows=rows_of(graph, problem, parts, default_saved_bytes(graph)))
