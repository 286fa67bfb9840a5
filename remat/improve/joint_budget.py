"""Solves several graphs within one budget, because their saved values are alive at the same time.

A graph break makes two graphs of a model, and a block that is compiled by itself has one graph that is called once for
each layer. When the first backward pass begins, all that their forward passes saved is alive. So they are posed as one
problem: the values of all graphs, each counted as often as its graph is called, with one budget and one Lagrange
multiplier on memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.solution import Solution
from remat.answer.solver import Solver
from remat.errors import Infeasible, LimitReached
from remat.facts.bans import Bans
from remat.facts.columns import frozen
from remat.facts.graph import Graph
from remat.improve.byte_budgets import evenly_spaced
from remat.improve.peak_search import MEASURED, measuring
from remat.predict.buffers import memory_of
from remat.problem.costmodel import CostModel
from remat.problem.multipliers import BY_COST, Multipliers
from remat.problem.offload import Offload
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes
from remat.proof.hull import Hull
from remat.proof.solve import solve

# Multipliers are rounded to so many bits, so that their product with a cost is no overflow.
_BITS = 24
# For a limit of the peak, plans at so many budgets of saved bytes are tried, besides the vertices of the hull.
_BETWEEN = 8
# So often a joint problem is solved at most, to count once what several graphs save.
_ROUNDS = 3

SharedStorage: TypeAlias = tuple[int, Sequence[tuple[int, str]]]
"""The bytes of a storage, and which calls may save it: the position of the subproblem, and the name of the value."""


@dataclass(frozen=True, eq=False)
class Subproblem:
    """Describes one graph of a run, and how many of its calls are alive at once.

    Attributes:
        graph: the joint graph.
        problem: its prices and bans, and the budget as it would be for this graph alone (see `subproblem_of`).
        times: the number of calls whose saved values are alive at the same time.
    """

    graph: Graph
    problem: Problem
    times: int = 1

    @property
    def least(self) -> Choice:
        """Returns the choice that saves the fewest bytes."""
        return least_bytes(self.problem).choice

    def at(self, multipliers: Multipliers) -> Choice:
        """Returns the choice that minimizes cost and bytes, weighted by these multipliers."""
        return flow_solver().minimum_cut(self.problem, multipliers.coarser(_BITS)).choice


def subproblem_of(graph: Graph, cost_model: CostModel, earlier_values: Collection[str] = ()) -> Subproblem:
    """Poses the problem of one graph of a run.

    Args:
        earlier_values: names of the inputs that other graphs of the run computed. Only because they are saved they are
            alive, so that they count as saved bytes. Other inputs, such as parameters, are alive anyway and count
            nothing.
    """
    problem = cost_model.pose_without_peak(graph)
    is_earlier = np.array([name in earlier_values for name in graph.names], np.bool_)
    if not is_earlier.any():
        return Subproblem(graph, problem)
    counted = np.where(is_earlier[graph.base], graph.storage_bytes, 0)[graph.plannable]
    problem = replace(problem, save_bytes=frozen(problem.save_bytes + counted))
    fractions = [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]
    if fractions and problem.budget_bytes is not None:
        owners = is_earlier & (graph.base == np.arange(len(graph)))
        budget = problem.budget_bytes + math.floor(min(fractions) * int(graph.bytes[owners].sum()))
        problem = replace(problem, budget_bytes=max(budget, least_bytes(problem).weight))
    return Subproblem(graph, problem)


def budget_of(parts: Sequence[Subproblem], cost_model: CostModel, other_bytes: int = 0) -> int | None:
    """Returns how many bytes the subproblems may save together; None if one of them has no budget.

    A fixed number of bytes is a limit for all of them; a fraction limits each, and these limits are added.
    `other_bytes`, which other graphs hold at that time, count against the budget.
    """
    budgets = [part.times * budget for part in parts if (budget := part.problem.budget_bytes) is not None]
    if len(budgets) < len(parts):
        return None
    fractions = [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]
    in_bytes = [limit for limit in cost_model.saved_limits if isinstance(limit, int)]
    added = sum(budgets) + (math.floor(min(fractions) * other_bytes) if fractions else 0)
    available = max(min([added, *in_bytes]) - other_bytes, 0)
    if in_bytes:
        return available
    return max(available, sum(part.times * least_bytes(part.problem).weight for part in parts))


def solve_jointly(
    parts: Sequence[Subproblem],
    cost_model: CostModel,
    solver: str | Solver | None = None,
    *,
    other_bytes: int = 0,
    shared: Sequence[SharedStorage] = (),
) -> tuple[list[Plan], Multipliers, float | None]:
    """Finds plans that cost least in total, and that keep one budget together.

    Args:
        parts: the subproblems, whose saved values are alive at the same time.
        cost_model: the one that they were posed under, with the budget.
        solver: for a problem with a byte budget; None takes the default of `remat.solve`.
        other_bytes: bytes that other graphs hold at that time; they count against the budget.
        shared: storages that several subproblems may save. Only a budget in bytes counts each once.

    Returns:
        a plan for each subproblem; the Lagrange multipliers at the budget; and the optimality gap, as a fraction of the
        cost, or None if there is no lower bound.

    Raises:
        Infeasible: all plans together save more than the budget.
        LimitReached: no plans were found whose joint peak keeps the limit.
    """
    union = union_problem(parts)
    if cost_model.limits_peak:
        choice, multipliers = _within_peak(parts, union, cost_model, other_bytes)
        return [own.plan(part.problem) for part, own in split(parts, choice)], multipliers, None
    budget = budget_of(parts, cost_model, other_bytes)
    in_bytes = any(isinstance(limit, int) for limit in cost_model.saved_limits)
    solution = _counted_once(replace(union, budget_bytes=budget), solver, shared if in_bytes else ())
    assert solution.plan is not None  # solve() raises where there is none
    plans = [own.plan(part.problem) for part, own in split(parts, Choice.from_plan(union, solution.plan))]
    edge = None if budget is None else Hull(union, flow_solver()).edge_at(budget)
    return plans, BY_COST if edge is None else edge.certificate.multipliers, solution.gap


# "Paid once, whoever saves it" is not submodular beside the choice to recompute, so no minimum cut. One that saved a
# storage in the round before pays for it: never more than is held, so bounds hold. What exceeds the budget is left out.
def _counted_once(union: Problem, solver: str | Solver | None, shared: Sequence[SharedStorage]) -> Solution:
    index = {name: i for i, name in enumerate(union.names)}
    storages = [(size, [index.get(f"{name} of graph {i + 1}", -1) for i, name in uses]) for size, uses in shared]
    storages = [(size, uses) for size, uses in storages if min(uses) >= 0 and union.save_bytes[uses].all()]
    choice, posed, found = least_bytes(union).choice, union, list[Solution]()
    for _ in range(_ROUNDS if storages else 0):
        with suppress(Infeasible):
            solution = solve(posed, solver)
            choice = Choice.from_plan(union, cast(Plan, solution.plan))
            twice = sum(size * max(int(choice.on_device[uses].sum()) - 1, 0) for size, uses in storages)
            if choice.saved_bytes(union) - twice <= cast(int, union.budget_bytes):
                found.append(solution)
        save_bytes = union.save_bytes.copy()
        for size, uses in storages:
            np.subtract.at(save_bytes, uses, size)
            save_bytes[max(reversed(uses), key=choice.on_device.__getitem__)] += size
        posed = replace(union, save_bytes=frozen(save_bytes))
    return min(found, key=lambda one: cast(int, one.objective)) if found else solve(union, solver)


def union_problem(parts: Sequence[Subproblem]) -> Problem:
    """Poses one problem for all subproblems, without a budget; each value costs as often as its graph is called."""
    starts = np.cumsum([0, *(len(part.problem) for part in parts)])
    problems = [part.problem for part in parts]
    costs: dict[str, Any] = {
        label: np.concatenate([getattr(part.problem, label) * part.times for part in parts])
        for label in ("save_cost", "recompute_cost", "save_bytes")
    }
    uses: dict[str, Any] = {
        label: np.concatenate([getattr(one, label) + start for one, start in zip(problems, starts, strict=False)])
        for label in ("producers", "consumers")
    }
    return Problem(
        names=tuple(f"{name} of graph {i}" for i, one in enumerate(problems, 1) for name in one.names),
        needed=np.concatenate([one.needed for one in problems]),
        cannot_save=_joined([one.cannot_save for one in problems]),
        cannot_recompute=_joined([one.cannot_recompute for one in problems]),
        offload=_joint_offload([(part.times, host) for part in parts if (host := part.problem.offload) is not None]),
        **costs,
        **uses,
    )


def _joint_offload(hosts: Sequence[tuple[int, Offload]]) -> Offload | None:
    if not hosts:  # one cost model posed all problems, so that all can offload, or none
        return None
    costs = [times * offload.cost for times, offload in hosts]
    return Offload(np.concatenate(costs), _joined([offload.banned for _, offload in hosts]))


def _joined(bans: Sequence[Bans]) -> Bans:
    starts = np.cumsum([0, *map(len, bans)]).tolist()
    reasons = {start + i: why for start, one in zip(starts, bans, strict=False) for i, why in one.as_dict().items()}
    return Bans.of(starts[-1], reasons)


def split(parts: Sequence[Subproblem], choice: Choice) -> Iterator[tuple[Subproblem, Choice]]:
    """Yields each subproblem with its own part of a choice for the problem of `union_problem`."""
    start = 0
    for part in parts:
        end = start + len(part.problem)
        yield part, Choice(choice.saved[start:end], choice.recomputed[start:end], choice.offloaded[start:end])
        start = end


def _candidates(union: Problem) -> list[tuple[Choice, Multipliers]]:
    """Lists vertices of the convex hull, and plans at budgets of saved bytes between them, the cheapest first."""
    hull = Hull(union, flow_solver())
    candidates = [(hull.cheapest.choice, BY_COST), (hull.smallest.choice, BY_COST)]
    candidates += [(edge.left.choice, edge.certificate.multipliers) for edge in hull.edges()]
    for budget in evenly_spaced(hull.smallest.saved_bytes, hull.cheapest.saved_bytes, _BETWEEN + 2)[1:-1]:
        plan = solve(replace(union, budget_bytes=budget)).plan
        edge = hull.edge_at(budget)
        if plan is not None and edge is not None:
            candidates.append((Choice.from_plan(union, plan), edge.certificate.multipliers))
    return sorted(candidates, key=lambda one: one[0].cost(union))  # a stable sort: the cheapest choice stays the first


def _within_peak(
    parts: Sequence[Subproblem], union: Problem, cost_model: CostModel, other_bytes: int
) -> tuple[Choice, Multipliers]:
    """Finds the cheapest candidate whose joint peak keeps the limit, also by measurement."""
    candidates, joint_peak = _candidates(union), JointPeak(parts)

    def peak(choice: Choice) -> int:
        return joint_peak.of([own for _, own in split(parts, choice)]) + other_bytes

    cheapest_peak = peak(candidates[0][0])
    limits = cost_model.peak_limits
    limit = min(limit if isinstance(limit, int) else math.floor(limit * cheapest_peak) for limit in limits)
    peaks, tightened, measured = [cheapest_peak], limit, dict[int, int]()

    def keeps_limit(i: int) -> bool:
        measured_bytes = joint_peak.measured([own for _, own in split(parts, candidates[i][0])], limit - other_bytes)
        if measured_bytes is not None:
            measured[i] = measured_bytes + other_bytes
        return measured.get(i, 0) <= limit

    for i in range(len(candidates)):
        peaks += [peak(candidates[i][0])] if i else []
        if len(measured) < MEASURED and peaks[i] <= tightened:
            if keeps_limit(i):
                return candidates[i]
            tightened = peaks[i] * limit // measured[i]
    lowest = peaks.index(min(peaks))
    if 0 < len(measured) < MEASURED and lowest not in measured and keeps_limit(lowest):
        return candidates[lowest]
    peak_of = measured or dict(enumerate(peaks))
    lowest = min(peak_of, key=peak_of.__getitem__)
    smallest = peak_of[lowest]
    if all(isinstance(limit, Fraction) or limit >= smallest for limit in limits):
        return candidates[lowest]  # a fraction may always be kept by the smallest peak found
    raise LimitReached(
        f"no plans were found with a peak of at most {limit} bytes for {len(parts)} graphs that are alive at the same "
        f"time; the smallest found is {smallest}{' by the check' if measured else ''}; raise the budget"
    )


class JointPeak:
    """Computes the peak memory of graphs whose saved values are alive at the same time.

    Peaks are those of the compiled step, if a graph records its calls (`remat.predict.buffers.memory_of`).
    """

    def __init__(self, parts: Sequence[Subproblem]) -> None:
        self.parts = parts
        self._memory = [memory_of(part.graph) for part in parts]

    def of(self, choices: Sequence[Choice]) -> int:
        """Returns the peak in bytes: the highest of any one call, while all other calls hold what they save."""
        peaks = [
            memory.peak(part.graph.for_all_values(choice.saved), part.graph.for_all_values(choice.offloaded))
            for part, memory, choice in zip(self.parts, self._memory, choices, strict=True)
        ]
        return self._joint_peak(peaks, choices)

    def measured(self, choices: Sequence[Choice], limit_bytes: int) -> int | None:
        """Measures the peak in bytes by `peak_search.measuring_with`; returns None if it cannot be measured."""
        measure = measuring.get()
        if measure is None:
            return None
        pairs = zip(self.parts, choices, strict=True)
        peaks = [measure(part.graph, choice.plan(part.problem), limit_bytes) for part, choice in pairs]
        measured = [peak for peak in peaks if peak is not None]
        return self._joint_peak(measured, choices) if len(measured) == len(peaks) else None

    def _joint_peak(self, peaks: Sequence[int], choices: Sequence[Choice]) -> int:
        own_bytes = [choice.saved_bytes(part.problem) for part, choice in zip(self.parts, choices, strict=True)]
        return self.saved_bytes(choices) + max(peak - saved for peak, saved in zip(peaks, own_bytes, strict=True))

    def saved_bytes(self, choices: Sequence[Choice]) -> int:
        """Returns the bytes that all calls save together."""
        pairs = zip(self.parts, choices, strict=True)
        return sum(part.times * choice.saved_bytes(part.problem) for part, choice in pairs)
