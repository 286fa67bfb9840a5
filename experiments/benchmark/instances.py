"""Poses the graphs of the corpus with the budgets of the benchmark.

A budget of the peak depends on a search, which a later version of the library may do better. So budgets are found once,
and then stand in the manifest of a release; with them, an instance follows from its graph byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from costmodels import RecomputeTime
from experiments.benchmark import check
from remat import Corpus, Graph, Problem
from remat.answer.registry import QUICK_BUDGET_SOLVER, find_solver
from remat.improve.byte_budgets import saved_limit
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.predict.memory.memory_export import stated_memory
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import Roofline
from remat.problem.problem_file import Budget, problem_document

LARGE = 25_000
"""Values from which on a search changes no single values of plans: that would take hours."""

# Attention with a mask became half as fast in the library's model after 2026.1. An instance keeps its prices.
PRICES = RecomputeTime(Roofline(replace(find_device("a100"), masked_attention_fraction=1.0)))
"""The prices of all releases."""

FRACTIONS = ("0.1", "0.2", "0.3", "0.5", "0.7")


def different_budgets(budgets: Iterable[Budget]) -> list[Budget]:
    """Returns the first one of the budgets of one kind that are equal in bytes, and leaves out the others."""
    first: dict[tuple[str, int], Budget] = {}
    for budget in budgets:
        first.setdefault((budget.of, budget.bytes), budget)
    return list(first.values())


@dataclass(frozen=True)
class Posed:
    """A graph with its problem, without a budget, and with the budgets to answer it for.

    Attributes:
        name: of the instance.
        graph, problem: what is asked about, and the question.
        budgets: ten of them.
    """

    name: str
    graph: Graph
    problem: Problem
    budgets: tuple[Budget, ...]

    @classmethod
    def of(cls, corpus: Corpus, name: str, budgets: Sequence[Budget]) -> Posed:
        """Poses a graph of the corpus with budgets that are known."""
        graph = corpus.graph(name)
        return cls(name, graph, PRICES.pose(graph), tuple(budgets))

    @cached_property
    def data(self) -> bytes:
        """The JSON of the instance."""
        about = {
            "model": f"{self.graph.meta['model']}; {self.graph.meta['sizes']}, {self.graph.meta['dtype']}",
            "cite": self.graph.meta["cite"],
            "cost_model": "recompute-time, by the roofline of an A100",
        }
        document = problem_document(
            self.problem,
            name=self.name,
            unit=PRICES.unit,
            remarks=about,
            budgets=self.budgets,
            memory=stated_memory(self.graph),
        )
        return json.dumps(document, separators=(",", ":")).encode()

    @cached_property
    def sha256(self) -> str:
        """Of `data`."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def checked(self) -> check.Instance:
        """The instance as the checker reads it."""
        document: dict[str, Any] = json.loads(self.data)
        return check.Instance(document, self.sha256)


def peak_plans(graph: Graph, problem: Problem) -> tuple[int, tuple[PeakPlan, ...]]:
    """The search that makes the budgets of the peak, and answers them to begin with.

    Returns:
        the peak of the plan that costs least; and the plans found, from the smallest peak to the lowest cost. For
        graphs of more than `LARGE` values they are those of the first part of the search.
    """
    plans = PeakPlans(graph, problem, find_solver(QUICK_BUDGET_SOLVER))
    return plans.cheapest.peak_bytes, plans.front if len(graph) <= LARGE else plans.from_saved_budgets


def found_budgets(graph: Graph, problem: Problem, most: int, least: int) -> tuple[Budget, ...]:
    """The ten budgets of a graph, in bytes: see docs/benchmark.md.

    Args:
        graph, problem: what is asked about.
        most: the peak of the plan that costs least.
        least: the smallest peak that was found.
    """
    fractions = {name: Fraction(name) for name in FRACTIONS}
    saved = [Budget(f"saved-{f}", "saved", saved_limit(graph, problem, share)) for f, share in fractions.items()]
    peak = [Budget(f"peak-{f}", "peak", max(math.floor(share * most), least)) for f, share in fractions.items()]
    return (*saved, *peak)
