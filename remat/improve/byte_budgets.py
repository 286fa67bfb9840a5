"""Reads the budgets of saved bytes that users write: a number, a size such as "8GB", a share, or a count of budgets.

A share is a part of what PyTorch's default plan saves. That plan is found without PyTorch: it is a minimum cut at
PyTorch's prices (`remat.answer.registry.DEFAULT_STEP_MODEL`). On all 41 graphs of the corpus for which PyTorch's own
partitioner (2.13) can be called, this plan and PyTorch's save the same number of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts, distinct_bytes
from remat.answer.registry import DEFAULT_COST_MODEL, DEFAULT_STEP_MODEL, find_costmodel
from remat.errors import Infeasible, InvalidOption, InvalidProblem
from remat.facts.argument_checks import checked_bytes
from remat.facts.columns import BoolArray, is_whole
from remat.facts.graph import Graph
from remat.problem.budget_row import BudgetRow
from remat.problem.feasibility import check_feasible, forced_values
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes
from remat.words import parse_bytes, parse_share

# A smaller whole number is refused: whoever writes 1 may mean all of it, and 8 may mean gigabytes.
_FEWEST = 1024


def read_budgets(budgets: int | Iterable[int | str]) -> int | list[int]:
    """Converts a list of budgets (bytes, or sizes such as "8GB") to bytes; returns a number of budgets unchanged.

    Raises:
        InvalidOption: `budgets` is neither a list nor a number of budgets, or an entry of the list is no budget.
    """
    if isinstance(budgets, Iterable) and not isinstance(budgets, str):
        return [checked_bytes(f"budgets[{i}]", budget) for i, budget in enumerate(budgets)]
    if isinstance(budgets, str) or not is_whole(budgets) or budgets < 0:
        raise InvalidOption(f'budgets must be a number of budgets, or a list such as [1024, "8GB"], got {budgets!r}')
    return int(budgets)


def read_amount(budget: float | int | str, label: str) -> int | Fraction:
    """Reads a number of bytes, or a share, without rounding: 0.3 means three tenths, not the double next to them.

    Args:
        budget: a whole number of bytes from 1024 on (2e9, too), a size ("8GB"), a fraction from 0.0 to 1.0, or a
            percentage ("50%"). 0 is read as a share: the plan saves as little as possible.
        label: the name of the option, for error messages.

    Returns:
        bytes as an `int`, or a share as a `Fraction`.

    Raises:
        InvalidOption: `budget` is none of these.

    >>> read_amount(0.3, "budget"), read_amount("30%", "budget"), read_amount("8 GB", "budget")
    (Fraction(3, 10), Fraction(3, 10), 8000000000)
    """
    if isinstance(budget, str):
        if (share := parse_share(budget)) is not None:
            return share
        with suppress(InvalidOption):
            return parse_bytes(budget, label)
    elif is_whole(budget):
        if budget == 0 or budget >= _FEWEST:
            return int(budget) or Fraction(0)
    elif isinstance(budget, float | np.floating):
        if 0 <= budget <= 1:
            return Fraction(str(float(budget)))
        if budget >= _FEWEST and float(budget).is_integer():
            return int(budget)
    hint = ""
    if is_whole(budget) and not isinstance(budget, str) and budget > 0:
        hint = f'; for so many bytes write "{budget} B", for all of it 1.0'
    raise InvalidOption(
        f"{label} must be a fraction from 0.0 to 1.0, a percentage, a whole number of bytes from {_FEWEST} on, or a "
        f'size such as "8GB", got {budget!r}{hint}'
    )


def default_plan(graph: Graph) -> Plan | None:
    """Finds PyTorch's default plan; returns None if the user's demands contradict PyTorch's rules."""
    try:
        try:
            problem = replace(find_costmodel(DEFAULT_STEP_MODEL).pose(graph), budget_bytes=None)
        except InvalidProblem:  # PyTorch weighs prices by distance, so that they may be too large where bytes are not
            problem = replace(find_costmodel(DEFAULT_COST_MODEL).pose(graph), budget_bytes=None)
        check_feasible(problem)
    except Infeasible:
        return None
    return flow_solver().minimum_cut(problem).choice.plan(problem)


def default_saved(graph: Graph) -> BoolArray | None:
    """Returns a mask (n,) of the values, also views, that PyTorch's default plan saves; None without such a plan."""
    plan = default_plan(graph)
    return None if plan is None else Choice.from_plan(graph, plan).saved


def default_choice(graph: Graph, problem: Problem) -> Choice | None:
    """Returns PyTorch's default plan as a choice of a problem; None if there is no plan, or if a ban forbids it.

    In place of a view, the value that owns its storage is saved, as most cost models demand.
    """
    saved = default_saved(graph)
    if saved is None:
        return None
    choice = Choice.from_saved(problem, graph.owners(saved)[graph.plannable])
    return choice if choice.keeps_bans(problem) else None


def default_saved_bytes(graph: Graph) -> int:
    """Counts the bytes that PyTorch's default plan saves, each storage once, inputs left out; 0 without a plan."""
    plan = default_plan(graph)
    return 0 if plan is None else PlanFacts.of(graph, plan).saved_bytes


def saved_limit(graph: Graph, problem: Problem, amount: int | Fraction) -> int:
    """Turns an amount into the bytes that a plan for a graph may save.

    A share is a part of `default_saved_bytes`, but at least the fewest bytes that any plan saves.

    Args:
        problem: the problem of the graph; its bytes and bans decide how few bytes a plan can save.
        amount: bytes, which are returned as they are, or a share, as `read_amount` returns them.
    """
    if isinstance(amount, int):
        return amount
    rules = forced_values(problem)
    if bool((rules.unavailable & problem.needed).any()):
        return 0  # no plan at all, whatever the budget; `remat.solve` explains
    return max(math.floor(amount * default_saved_bytes(graph)), least_bytes(problem, rules).weight)


def rows_of(
    graph: Graph, problem: Problem, parts: Iterable[tuple[str, BoolArray, int | Fraction]], limit: int
) -> tuple[BudgetRow, ...]:
    """Turns budgets of parts of a graph, each with a name, a mask of its values (n,) and an amount, into budget rows.

    Memory belongs to storages, so a value counts in the part that computes the owner of its storage. A share is a part
    of what PyTorch's default plan saves there, but at least what one reference plan saves there: the plan that saves
    the fewest bytes in all parts together, or the fewest in total if the first exceeds `limit`, the budget of all
    values. So if all amounts are shares, the reference plan keeps all of them.
    """
    rules, activation = forced_values(problem), ~graph.input[graph.base]
    if bool((rules.unavailable & problem.needed).any()):
        return ()  # no plan at all; `remat.solve` explains
    rows = [(name, values[graph.base] & activation, amount) for name, values, amount in parts]
    inside = sum(values[graph.plannable] * problem.save_bytes for _, values, _ in rows)
    # Of plans that save equally little inside, the least cost decides: here, the bytes in total.
    in_total = replace(problem, save_cost=problem.save_bytes, recompute_cost=0 * problem.recompute_cost)
    least = least_bytes(replace(in_total, save_bytes=inside), rules).choice
    if least.saved_bytes(problem) > limit:
        least = least_bytes(problem, rules).choice
    default = default_saved(graph)

    def bytes_within(values: BoolArray, amount: int | Fraction) -> int:
        if isinstance(amount, int):
            return amount
        share = 0 if default is None else math.floor(amount * distinct_bytes(graph, default & values))
        return max(share, int(problem.save_bytes[least.on_device & values[graph.plannable]].sum()))

    return tuple(BudgetRow(name, values, bytes_within(values, amount)) for name, values, amount in rows)


def evenly_spaced(least: int, most: int, count: int) -> list[int]:
    """Lists `count` whole numbers, evenly spaced from `least` to `most`, with both ends if `count` is at least 2.

    Each number is rounded down in integer arithmetic, because floats are exact only up to 2**53.

    >>> evenly_spaced(0, 10, 5), evenly_spaced(2**60 + 1, 2**60 + 1, 2)[0] == 2**60 + 1
    ([0, 2, 5, 7, 10], True)
    """
    return [least + (most - least) * i // max(count - 1, 1) for i in range(count)]
