"""What must not matter, does not: names and order. The unit of price is in `test_large_capacity.py`."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
from depth import drawn
from helpers import EXACT, FLOW, each, largest_price, most_values
from hypothesis import given
from hypothesis import strategies as st

from remat import Choice, Problem, solve
from remat.plugin import Solver
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
