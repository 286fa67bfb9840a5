"""Solves several graphs within one budget of saved bytes, because their saved values are alive at the same time.

A graph break makes two graphs of a model, and a block that is compiled by itself has one graph that is called once for
each layer. When the first backward pass begins, all that their forward passes saved is alive. So they are posed as one
problem: the values of all graphs, each counted as often as its graph is called, with one budget and one Lagrange
multiplier on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.solution import Solution
from remat.answer.solver import Solver
from remat.errors import Infeasible
from remat.facts.bans import Bans
from remat.facts.columns import frozen
from remat.improve.subproblem import Subproblem
from remat.problem.costmodel import CostModel
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.problem.multipliers import BY_COST, Multipliers
from remat.problem.offload import Offload
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes
from remat.proof.hull import Hull
from remat.proof.solve import solve

SharedStorage: TypeAlias = tuple[int, Sequence[tuple[int, str]]]
"""The bytes of a storage, and for each graph that may save it: the subproblem's position, and the value's name."""

# A joint problem is solved at most this often, to count once what several graphs save.
_ROUNDS = 3


def budget_of(parts: Sequence[Subproblem], cost_model: CostModel, other_bytes: int = 0) -> int | None:
    """Returns how many bytes the subproblems may save together; None if one of them has no budget.

    A fixed number of bytes is a limit for all of them; a fraction limits each, and these limits are added.
    `other_bytes`, which other graphs hold at the same time, count against the budget.
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
    """Finds the plans with the least total cost that together keep one budget of saved bytes.

    Args:
        parts: the subproblems, whose saved values are alive at the same time.
        cost_model: the cost model of all subproblems, with the budget.
        solver: for a problem with a byte budget; None takes the default of `remat.solve`.
        other_bytes: bytes that other graphs hold at the same time; they count against the budget.
        shared: storages that several subproblems may save. If a limit is given in bytes, each counts only once.

    Returns:
        a plan for each subproblem; the Lagrange multipliers at the budget; and the optimality gap, as a fraction of the
        cost, or None if there is no lower bound.

    Raises:
        Infeasible: no plans of these graphs together keep the budget.
    """
    union = union_problem(parts)
    budget = budget_of(parts, cost_model, other_bytes)
    in_bytes = any(isinstance(limit, int) for limit in cost_model.saved_limits)
    solution = _counted_once(replace(union, budget_bytes=budget), solver, shared if in_bytes else ())
    assert solution.plan is not None  # solve() raises where there is none
    plans = [own.plan(part.problem) for part, own in split_choice(parts, Choice.from_plan(union, solution.plan))]
    edge = None if budget is None else Hull(union, flow_solver()).edge_at(budget)
    return plans, BY_COST if edge is None else edge.certificate.multipliers, solution.gap


# A storage should cost its bytes once, however many graphs save it. Together with the choice to recompute, such a price
# is not submodular, so no minimum cut can have it. Instead, only one of the graphs that saved a storage in the round
# before pays for it. A plan never pays for more than it holds, so the bounds hold. Plans that exceed the budget do not
# count.
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
    """Poses one problem for all subproblems, without a budget; prices and bytes are multiplied by each one's calls."""
    starts = np.cumsum([0, *(len(part.problem) for part in parts)])
    problems = [part.problem for part in parts]
    if sum(part.times for part in parts) > 1:
        for one in problems:
            check_features(features_of(one), "a budget that several calls share", ONE_BUDGET)
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
        rows=problems[0].rows,
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


def split_choice(parts: Sequence[Subproblem], choice: Choice) -> Iterator[tuple[Subproblem, Choice]]:
    """Yields each subproblem, with its part of a choice for the problem of `union_problem`."""
    start = 0
    for part in parts:
        end = start + len(part.problem)
        yield part, Choice(choice.saved[start:end], choice.recomputed[start:end], choice.offloaded[start:end])
        start = end
