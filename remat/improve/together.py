"""Plans of several graphs within one budget: of graphs whose saved values are alive at the same time.

A graph break makes two graphs of a model, and a block that is compiled by itself has one graph that is called once a
layer. All that their forward passes save is alive when the first backward pass begins. So they are one problem: the
graphs side by side, each counted as often as it is called, under one budget; and one price of memory for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.errors import LimitReached
from remat.facts.bans import Bans
from remat.facts.columns import frozen
from remat.facts.graph import Graph
from remat.improve.byte_budgets import evenly_spaced
from remat.improve.peak_search import MEASURED, measuring
from remat.predict.buffers import memory_of
from remat.problem.costmodel import CostModel
from remat.problem.offload import Offload
from remat.problem.problem import Problem
from remat.problem.weights import BY_COST, Weights
from remat.proof.budget import flow_solver, least_bytes
from remat.proof.hull import Hull
from remat.proof.solve import solve

_BITS = 24
"""Of a price, so that it can be multiplied with whatever a graph costs."""

_BETWEEN = 8
"""Budgets of saved bytes to look at for a budget of the peak, besides the vertices of the frontier."""


@dataclass(frozen=True, eq=False)
class Part:
    """A graph of a run, and how often its saved values are alive at once.

    Attributes:
        graph: the joint graph.
        problem: its prices and bans, and the budget as it would be for this graph alone (see `part_of`).
        times: of how many calls.
    """

    graph: Graph
    problem: Problem
    times: int = 1

    @property
    def least(self) -> Choice:
        """The choice that saves the fewest bytes."""
        return least_bytes(self.problem).choice

    def at(self, price: Weights) -> Choice:
        """The choice that is best where a saved byte has a price."""
        return flow_solver().minimum_cut(self.problem, price.coarser(_BITS)).choice


def part_of(graph: Graph, cost_model: CostModel, made_before: Collection[str] = ()) -> Part:
    """Poses the problem of a graph of a run.

    Args:
        graph: the joint graph.
        cost_model: prices, bans, and the budget.
        made_before: its inputs that other graphs of the run have made: they are alive only because they are saved,
            and count. Other inputs are given, and count nothing.
    """
    problem = cost_model.pose_without_peak(graph)
    made = np.array([name in made_before for name in graph.names], np.bool_)
    if not made.any():
        return Part(graph, problem)
    counted = np.where(made[graph.base], graph.storage_bytes, 0)[graph.plannable]
    problem = replace(problem, save_bytes=frozen(problem.save_bytes + counted))
    fractions = [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]
    if fractions and problem.budget_bytes is not None:
        owned = made & (graph.base == np.arange(len(graph)))
        budget = problem.budget_bytes + math.floor(min(fractions) * int(graph.bytes[owned].sum()))
        problem = replace(problem, budget_bytes=max(budget, least_bytes(problem).weight))
    return Part(graph, problem)


def budget_of(parts: Sequence[Part], cost_model: CostModel, beside_bytes: int = 0) -> int | None:
    """Says what parts may save together: of a budget in bytes all there is, of a fraction that of each.

    Args:
        parts, cost_model: as in `plans_together`.
        beside_bytes: what is alive beside them, and counts.
    """
    budgets = [part.times * budget for part in parts if (budget := part.problem.budget_bytes) is not None]
    if len(budgets) < len(parts):
        return None
    fractions = [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]
    fixed = [limit for limit in cost_model.saved_limits if isinstance(limit, int)]
    added = sum(budgets) + (math.floor(min(fractions) * beside_bytes) if fractions else 0)
    room = max(min([added, *fixed]) - beside_bytes, 0)
    return room if fixed else max(room, sum(part.times * least_bytes(part.problem).weight for part in parts))


def plans_together(
    parts: Sequence[Part], cost_model: CostModel, solver: str | Solver | None = None, *, beside_bytes: int = 0
) -> tuple[list[Plan], Weights, float | None]:
    """Finds the plans that cost least in all, with everything that is alive at once within the budget.

    Args:
        parts: whose saved values are alive at the same time.
        cost_model: that they were posed under, with the budget.
        solver: for the budget; when left out, that of `remat.solve`.
        beside_bytes: what is alive beside the parts, and counts.

    Returns:
        a plan of each part, the price of memory at the budget, and what they all cost above the best at most, as a part
        of their cost; None if nobody knows.

    Raises:
        Infeasible: together they save more than the budget, whatever the plans.
        LimitReached: no plans were found with so small a peak.
    """
    union = side_by_side(parts)
    if cost_model.limits_peak:
        choice, price = _within_peak(parts, union, cost_model, beside_bytes)
        return [mine.plan(part.problem) for part, mine in split(parts, choice)], price, None
    budget = budget_of(parts, cost_model, beside_bytes)
    solution = solve(replace(union, budget_bytes=budget), solver)
    assert solution.plan is not None  # solve() raises where there is none
    plans = [mine.plan(part.problem) for part, mine in split(parts, Choice.from_plan(union, solution.plan))]
    edge = None
    if budget is not None:
        edge = Hull(union, flow_solver()).edge_at(budget)
    return plans, BY_COST if edge is None else edge.certificate.weights, solution.gap


def side_by_side(parts: Sequence[Part]) -> Problem:
    """Poses one problem of several, without a budget: each counts as often as it is called."""
    starts = np.cumsum([0, *(len(part.problem) for part in parts)])
    problems = [part.problem for part in parts]
    hosts = [(part.times, problem.offload) for part, problem in zip(parts, problems, strict=True)]
    costs: dict[str, Any] = {
        label: np.concatenate([getattr(part.problem, label) * part.times for part in parts])
        for label in ("save_cost", "recompute_cost", "save_bytes")
    }
    uses: dict[str, Any] = {
        label: np.concatenate([getattr(one, label) + start for one, start in zip(problems, starts, strict=False)])
        for label in ("producers", "consumers")
    }
    where = [f" of graph {i}" if len(parts) > 1 else "" for i in range(1, len(parts) + 1)]
    return Problem(
        names=tuple(f"{name}{of}" for of, one in zip(where, problems, strict=True) for name in one.names),
        needed=np.concatenate([one.needed for one in problems]),
        cannot_save=_joined([one.cannot_save for one in problems]),
        cannot_recompute=_joined([one.cannot_recompute for one in problems]),
        offload=_hosts([(times, one) for times, one in hosts if one is not None]),
        **costs,
        **uses,
    )


def _hosts(hosts: Sequence[tuple[int, Offload]]) -> Offload | None:
    """What offloading costs in all parts; they have one cost model, so that all have a host, or none."""
    if not hosts:
        return None
    costs = [times * offload.cost for times, offload in hosts]
    return Offload(np.concatenate(costs), _joined([offload.banned for _, offload in hosts]))


def _joined(bans: Sequence[Bans]) -> Bans:
    starts = np.cumsum([0, *map(len, bans)]).tolist()
    reasons = {start + i: why for start, one in zip(starts, bans, strict=False) for i, why in one.as_dict().items()}
    return Bans.of(starts[-1], reasons)


def split(parts: Sequence[Part], choice: Choice) -> Iterator[tuple[Part, Choice]]:
    """Gives each part its own of a choice for all of them, as `side_by_side` poses them."""
    start = 0
    for part in parts:
        end = start + len(part.problem)
        yield part, Choice(choice.saved[start:end], choice.recomputed[start:end], choice.offloaded[start:end])
        start = end


def _thinner_and_thinner(union: Problem) -> list[tuple[Choice, Weights]]:
    hull = Hull(union, flow_solver())
    found = [(hull.cheapest.choice, BY_COST), (hull.smallest.choice, BY_COST)]
    found += [(edge.left.choice, edge.certificate.weights) for edge in hull.edges()]
    for budget in evenly_spaced(hull.smallest.saved_bytes, hull.cheapest.saved_bytes, _BETWEEN + 2)[1:-1]:
        plan = solve(replace(union, budget_bytes=budget)).plan
        edge = hull.edge_at(budget)
        if plan is not None and edge is not None:
            found.append((Choice.from_plan(union, plan), edge.certificate.weights))
    return sorted(found, key=lambda one: one[0].cost(union))  # stable: the cheapest stays the first


def _within_peak(
    parts: Sequence[Part], union: Problem, cost_model: CostModel, beside_bytes: int
) -> tuple[Choice, Weights]:
    """Finds the cheapest choice for all parts whose peak fits, of some that save fewer and fewer bytes."""
    found = _thinner_and_thinner(union)
    together = PeakTogether(parts)

    def peak(choice: Choice) -> int:
        return together.of([mine for _, mine in split(parts, choice)]) + beside_bytes

    most = peak(found[0][0])
    limit = min(limit if isinstance(limit, int) else math.floor(limit * most) for limit in cost_model.peak_limits)
    peaks, tighter, tried = [most], limit, dict[int, int]()

    def keeps(i: int) -> bool:
        taken = together.measured([mine for _, mine in split(parts, found[i][0])], limit - beside_bytes)
        if taken is not None:
            tried[i] = taken + beside_bytes
        return tried.get(i, 0) <= limit

    for i in range(len(found)):
        peaks += [peak(found[i][0])] if i else []
        if len(tried) < MEASURED and peaks[i] <= tighter:
            if keeps(i):
                return found[i]
            tighter = peaks[i] * limit // tried[i]
    last = peaks.index(min(peaks))
    if 0 < len(tried) < MEASURED and last not in tried and keeps(last):
        return found[last]
    found_bytes = tried or dict(enumerate(peaks))
    least = min(found_bytes, key=found_bytes.__getitem__)
    smallest = found_bytes[least]
    if all(isinstance(limit, Fraction) or limit >= smallest for limit in cost_model.peak_limits):
        return found[least]  # a fraction is at least the smallest peak that is found
    raise LimitReached(
        f"no plans were found with a peak of at most {limit} bytes for {len(parts)} graphs that are alive at the same "
        f"time; the smallest found is {smallest}{' by the check' if tried else ''}; raise the budget"
    )


class PeakTogether:
    """Says what is alive at most in graphs whose saved values are alive at the same time.

    Peaks are those of the compiled step, if a graph knows its calls (`remat.predict.buffers.memory_of`).

    Args:
        parts: the graphs.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._memory = [memory_of(part.graph) for part in parts]

    def of(self, choices: Sequence[Choice]) -> int:
        """Returns the peak in bytes: in one call of a part, beside what all other calls save."""
        both = zip(self.parts, self._memory, choices, strict=True)
        peaks = [
            memory.peak(part.graph.widened(mine.saved), part.graph.widened(mine.offloaded))
            for part, memory, mine in both
        ]
        return self._beside(peaks, choices)

    def measured(self, choices: Sequence[Choice], limit_bytes: int) -> int | None:
        """Returns the peak by `remat.improve.peak_search.measured_by`; None if nobody measures, or it is not known."""
        measure, both = measuring.get(), zip(self.parts, choices, strict=True)
        if measure is None:
            return None
        peaks = [measure(part.graph, mine.plan(part.problem), limit_bytes) for part, mine in both]
        known = [peak for peak in peaks if peak is not None]
        return self._beside(known, choices) if len(known) == len(peaks) else None

    def _beside(self, peaks: Sequence[int], choices: Sequence[Choice]) -> int:
        """Returns the largest of some peaks, each beside what all other calls save."""
        own = [mine.saved_bytes(part.problem) for part, mine in zip(self.parts, choices, strict=True)]
        return self.saved_bytes(choices) + max(peak - saved for peak, saved in zip(peaks, own, strict=True))

    def saved_bytes(self, choices: Sequence[Choice]) -> int:
        """Returns what all calls save."""
        return sum(part.times * mine.saved_bytes(part.problem) for part, mine in zip(self.parts, choices, strict=True))
