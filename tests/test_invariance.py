"""What must not matter, does not: names, order, the unit of price, a value that is not there."""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
from depth import drawn
from helpers import EXACT, FLOW, each, largest_price, most_values
from hypothesis import given
from hypothesis import strategies as st

from remat import Problem, solve
from remat.answer.choice import Choice
from remat.plugin import Solver
from remat.testing import problems

FEW = drawn(75)


def drawn(data: st.DataObject, solver: Solver, values: int = 14, scale: int = 1) -> Problem:
    """A problem that leaves the solver room for twice as many values, and prices `scale` times as high."""
    values = most_values(solver, values) // 2
    return data.draw(problems(max_values=values, largest=largest_price(solver, 2 * values) // scale))


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


def with_value_between(problem: Problem, use: int) -> Problem:
    """Puts a value that is free to recompute, and never saved, into the middle of a use."""
    middle = int(problem.producers[use]) + 1

    def moved(v: int) -> int:
        return v + (v >= middle)

    def widened(column: np.ndarray) -> list[int]:
        return np.insert(column, middle, 0).tolist()

    edges = [(moved(u), moved(v)) for u, v in zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True)]
    producer, consumer = edges[use]
    edges[use] = (middle, consumer)
    return Problem.of(
        widened(problem.save_cost),
        edges=[*edges, (producer, middle)],
        needed=[moved(v) for v in np.flatnonzero(problem.needed).tolist()],
        recompute_cost=widened(problem.recompute_cost),
        save_bytes=widened(problem.save_bytes),
        cannot_save={middle: "not there", **{moved(v): why for v, why in problem.cannot_save.as_dict().items()}},
        cannot_recompute={moved(v): why for v, why in problem.cannot_recompute.as_dict().items()},
    )


@each(EXACT)
@FEW
@given(data=st.data())
def test_order(solver: Solver, data: st.DataObject) -> None:
    """Nor does it change the plan of a flow solver, of all cheapest ones."""
    problem = drawn(data, solver)
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
    problem = drawn(data, solver)
    other = replace(problem, names=tuple(f"z{len(problem) - v}" for v in range(len(problem))))
    plan, same = solve(problem, solver).plan, solve(other, solver).plan
    assert same == Choice.from_plan(problem, plan).plan(other)


@each(EXACT)
@FEW
@given(data=st.data(), factor=st.sampled_from([2, 3, 7, 1000]))
def test_the_unit_of_price(solver: Solver, data: st.DataObject, factor: int) -> None:
    problem = drawn(data, solver, scale=1000)
    scaled = replace(problem, save_cost=factor * problem.save_cost, recompute_cost=factor * problem.recompute_cost)
    first, second = solve(problem, solver), solve(scaled, solver)
    assert factor * first.objective == second.objective
    assert first.plan == second.plan


@each(EXACT)
@FEW
@given(data=st.data())
def test_a_value_that_is_free_and_never_saved(solver: Solver, data: st.DataObject) -> None:
    problem = drawn(data, solver)
    other = problem
    for use in range(min(len(problem.producers), len(problem))):
        other = with_value_between(other, use)
    assert solve(problem, solver).objective == solve(other, solver).objective
