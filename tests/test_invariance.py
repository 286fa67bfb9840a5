"""What must not matter, does not: names, order, a second run and hash seeds. For units: `test_large_capacity.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from heapq import heapify, heappop, heappush

import numpy as np
import pytest
from depth import deep_except, drawn
from helpers import CONFIGURED, EXACT, FLOW, each, largest_price, most_values
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from remat import Choice, Problem, solve
from remat.plugin import Feature, Solver
from remat.testing import problems

FEW = drawn(75)


def drawn_problem(data: st.DataObject, solver: Solver) -> Problem:
    values = most_values(solver, 7)
    return data.draw(problems(max_values=values, largest=largest_price(solver, values)))


def reordered(problem: Problem, priority: list[int]) -> Problem:
    """The same problem with its values in the topological order that `priority` asks for."""
    waiting = np.bincount(problem.consumers, minlength=len(problem)).tolist()
    ready = [(priority[v], v) for v in range(len(problem)) if not waiting[v]]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, u = heappop(ready)
        order.append(u)
        for v in problem.consumers[problem.producers == u].tolist():
            waiting[v] -= 1
            if not waiting[v]:
                heappush(ready, (priority[v], v))
    position = np.argsort(order)
    return Problem(
        tuple(problem.names[v] for v in order),
        problem.save_cost[order],
        problem.recompute_cost[order],
        problem.save_bytes[order],
        position[problem.producers],
        position[problem.consumers],
        problem.needed[order],
        problem.cannot_save.take(np.array(order)),
        problem.cannot_recompute.take(np.array(order)),
    )


@each(EXACT)
@FEW
@given(data=st.data())
def test_order(solver: Solver, data: st.DataObject) -> None:
    """Nor does it change the plan of a flow solver, of all cheapest ones."""
    problem = drawn_problem(data, solver)
    other = reordered(problem, data.draw(st.permutations(range(len(problem)))))
    first, second = solve(problem, solver), solve(other, solver)
    assert first.objective == second.objective
    if solver in FLOW:
        plan, same = first.plan, second.plan
        assert (set(plan.saved), set(plan.recomputed)) == (set(same.saved), set(same.recomputed))


@each(EXACT)
@FEW
@given(data=st.data())
def test_names(solver: Solver, data: st.DataObject) -> None:
    problem = drawn_problem(data, solver)
    other = replace(problem, names=tuple(f"z{len(problem) - v}" for v in range(len(problem))))
    plan, same = solve(problem, solver).plan, solve(other, solver).plan
    assert same == Choice.from_plan(problem, plan).plan(other)


def tied_problem(seed: int, values: int, budget: bool) -> Problem:
    """A problem with prices of 0 to 2 only, and so with many cheapest plans."""
    random = default_rng(seed)
    edges = {(int(random.integers(v)), v) for v in range(1, values) for _ in range(2)}
    return Problem.of(
        random.integers(3, size=values).tolist(),
        edges=sorted(edges),
        needed=random.permutation(values)[: values // 2].tolist(),
        recompute_cost=random.integers(3, size=values).tolist(),
        save_bytes=random.integers(3, size=values),
        budget_bytes=values // 2 if budget else None,
    )


@cache
def digests(solver: Solver) -> list[str]:
    """One digest a problem: it stands for the plan."""
    values = most_values(solver, 30)
    budgets = (False, True) if Feature.BUDGET in solver.features else (False,)
    solutions = [solve(tied_problem(seed, values, budget), solver) for seed in range(5) for budget in budgets]
    return [solution.plan.digest for solution in solutions if solution.plan is not None]


@cache
def digests_in_a_new_process(hash_seed: str) -> dict[str, list[str]]:
    code = "import json, test_invariance as t; print(json.dumps({repr(s): t.digests(s) for s in t.CONFIGURED}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)


@each(CONFIGURED)
@pytest.mark.parametrize("hash_seed", deep_except(["31337"], ["0", "1", "31337"]))
def test_same_plan_with_any_hash_seed(solver: Solver, hash_seed: str) -> None:
    assert digests_in_a_new_process(hash_seed)[repr(solver)] == digests(solver)


@each(CONFIGURED)
def test_the_problems_have_ties_worth_testing(solver: Solver) -> None:
    """Different problems have different plans, so equal digests above say something."""
    assert len(set(digests(solver))) >= 5
