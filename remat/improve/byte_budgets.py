"""Reads budgets of saved bytes as users give them: numbers, sizes such as "8GB", shares, or so many of them.

A share is one of what PyTorch's default plan saves. What that is, a graph tells without PyTorch: its default is a
minimum cut by its own prices, and so is ours (`remat.answer.registry.DEFAULT_STEP_MODEL`). On all 41 graphs of our
corpus about which PyTorch's own partitioner (2.13) can be asked, it saves exactly as many bytes.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np

from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_COST_MODEL, DEFAULT_STEP_MODEL, find_costmodel
from remat.errors import Infeasible, InvalidOption, InvalidProblem
from remat.facts.columns import is_whole
from remat.facts.graph import Graph
from remat.problem.feasibility import check_feasible, forced_values
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes
from remat.words import parse_bytes, parse_share

_FEWEST = 1024
"""A whole number below is taken for a slip: 1 may mean all of it, 8 gigabytes."""


def read_budget(budget: int | str) -> int:
    """Reads one budget, in bytes or as a size such as "8GB".

    Raises:
        InvalidOption: it is neither, or negative.
    """
    if isinstance(budget, str):
        return parse_bytes(budget, "budget")
    if not is_whole(budget) or budget < 0:
        raise InvalidOption(f'a budget must be a non-negative number of bytes or a size such as "8GB", got {budget!r}')
    return int(budget)


def read_amount(budget: float | int | str, label: str) -> int | Fraction:
    """Reads a number of bytes, or a share, exactly: 0.3 means three tenths, not the double next to them.

    Args:
        budget: a whole number of bytes from 1024 on (2e9, too), a size ("8GB"), a fraction from 0.0 to 1.0, or a
            percentage ("50%"). 0 is the share: as little as possible.
        label: what to call it in an error message.

    Returns:
        bytes as an `int`, a share as a `Fraction`.

    Raises:
        InvalidOption: it is none of these.

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
    """Finds PyTorch's default plan; None if there is none, since the user's demands contradict its rules."""
    try:
        try:
            problem = replace(find_costmodel(DEFAULT_STEP_MODEL).pose(graph), budget_bytes=None)
        except InvalidProblem:  # weighed by distance, as PyTorch's are, prices may be too large where bytes are not
            problem = replace(find_costmodel(DEFAULT_COST_MODEL).pose(graph), budget_bytes=None)
        check_feasible(problem)
    except Infeasible:
        return None
    return flow_solver().minimum_cut(problem).choice.plan(problem)


def default_saved_bytes(graph: Graph) -> int:
    """Counts what PyTorch's default plan saves, each storage once, inputs not: a share of 1; 0 if there is none."""
    plan = default_plan(graph)
    return 0 if plan is None else PlanFacts.of(graph, plan).saved_bytes


def saved_limit(graph: Graph, problem: Problem, amount: int | Fraction) -> int:
    """Turns an amount, as `read_amount` returns it, into bytes that a plan for a graph may save.

    A share is one of `default_saved_bytes`, but at least what every plan saves.

    Args:
        graph: the joint graph.
        problem: its prices and bans; they decide what every plan saves.
        amount: bytes, which are returned, or a share.
    """
    if isinstance(amount, int):
        return amount
    rules = forced_values(problem)
    if bool((rules.unavailable & problem.needed).any()):
        return 0  # no plan at all, whatever the budget; `remat.solve` explains
    return max(math.floor(amount * default_saved_bytes(graph)), least_bytes(problem, rules).weight)


def evenly_spaced(least: int, most: int, count: int) -> list[int]:
    """Lists `count` whole numbers from `least` to `most`, with both ends if there are two or more.

    Each is rounded down, exactly: bytes may be past the 2**53 up to which floats are exact.

    >>> evenly_spaced(0, 10, 5), evenly_spaced(2**60 + 1, 2**60 + 1, 2)[0] == 2**60 + 1
    ([0, 2, 5, 7, 10], True)
    """
    return [least + (most - least) * i // max(count - 1, 1) for i in range(count)]
