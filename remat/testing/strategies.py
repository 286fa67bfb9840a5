"""Defines strategies of Hypothesis that draw small problems and graphs that are difficult for solvers."""

from __future__ import annotations

import dataclasses
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

from remat.answer.choice import Choice
from remat.facts.columns import IntArray
from remat.facts.graph import Graph
from remat.facts.graph_builder import GraphBuilder
from remat.problem.budget_row import BudgetRow
from remat.problem.feasibility import forced_values
from remat.problem.problem import Problem

LARGEST = 2**34
"""A size past 2**33: doubles are still exact, but 32-bit integers overflow."""

_BANS = ("", "", "", "", "save", "recompute", "recompute", "save recompute")

_OPS: dict[str, dict[str, Any]] = {
    "add": {},
    "sum": {"fusible": False},
    "mm": {"compute_bound": True},
    "rand": {"random": True},
    "view": {"view": True},
}
_MARKS: tuple[dict[str, Any], ...] = tuple(
    {mark: True} for mark in ("must_save", "must_recompute", "prefer_save", "prefer_recompute")
)
_FACTS: tuple[dict[str, Any], ...] = (*_MARKS, {"cannot_save": "a tuple"}, {"cannot_recompute": "a collective"})


def dags(num_values: int, *, max_arguments: int = 3) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Draws uses (producer, consumer) over values 0 to `num_values` - 1, in topological order.

    A value uses up to `max_arguments` earlier ones; the simplest graph has no uses.
    """
    distances = [st.lists(st.integers(1, v), max_size=max_arguments) for v in range(1, num_values)]
    return st.tuples(*distances).map(
        lambda drawn: [(v - far, v) for v, back in enumerate(drawn, start=1) for far in sorted(set(back))]
    )


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    min_values: int = 2,
    max_values: int = 12,
    budget: bool = False,
    offload: bool = False,
    rows: bool = False,
    feasible: bool | None = True,
    largest: int = LARGEST,
) -> Problem:
    """Draws problems over `min_values` to `max_values` values.

    Args:
        draw: Hypothesis passes this.
        min_values, max_values: bounds on the number of values.
        budget: whether the problems have a byte budget.
        offload: whether values can be offloaded.
        rows: whether one to three more budgets limit parts of the values.
        feasible: True draws only problems that have a plan, other values draw any. Problems are made feasible, not
            rejected: a ban that excludes every plan is lifted, a budget is raised.
        largest: the largest finite price or size. A bound on the prices is drawn first, so that small prices, full of
            ties, are as likely as large ones.
    """
    n = draw(st.integers(min_values, max_values))
    price = st.integers(0, draw(st.sampled_from((1, 3, 1000, largest))))
    columns = st.lists(st.tuples(price, price, st.sampled_from(_BANS), st.booleans()), min_size=n, max_size=n)
    values = draw(columns)
    sizes = draw(st.none() | st.lists(price, min_size=n, max_size=n))
    copies = draw(st.lists(st.one_of(st.none(), price, price, price), min_size=n, max_size=n)) if offload else None
    problem = Problem.of(
        [inf if "save" in ban else save for save, _, ban, _ in values],
        edges=draw(dags(n)),
        needed=[v for v, row in enumerate(values) if row[3]],
        recompute_cost=[recompute for _, recompute, _, _ in values],
        save_bytes=sizes,
        cannot_recompute={v: "random" for v, row in enumerate(values) if "recompute" in row[2]},
        offload_cost=None if copies is None else [inf if copy is None else copy for copy in copies],
    )
    if feasible:
        victims = forced_values(problem).unavailable & problem.needed
        problem = dataclasses.replace(problem, cannot_save=problem.cannot_save.without(victims))
    least = _small_choice(problem)

    def limit(sizes: IntArray) -> int:
        fewest = int(sizes[least.saved].sum()) if feasible else 0
        return draw(st.integers(fewest, int(sizes.sum())))

    if budget:
        problem = dataclasses.replace(problem, budget_bytes=limit(problem.save_bytes))
    if rows:
        masks = draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=3))
        drawn = [BudgetRow(f"r{i}", np.array(mask), limit(problem.save_bytes * mask)) for i, mask in enumerate(masks)]
        problem = dataclasses.replace(problem, rows=tuple(drawn))
    return problem


# A plan that fits every budget: one that recomputes all it can, or one that saves all it can.
def _small_choice(problem: Problem) -> Choice:
    saved = (forced_values(problem).not_recomputable, ~problem.cannot_save.mask)
    return min((Choice.from_saved(problem, mask) for mask in saved), key=lambda choice: choice.saved_bytes(problem))


@st.composite
def graphs(draw: st.DrawFn, *, max_values: int = 12, facts: bool = True, largest: int = LARGEST) -> Graph:
    """Draws joint graphs: inputs, forward operators, outputs with their tangents, operators of both passes.

    Args:
        draw: Hypothesis passes this.
        max_values: the largest number of values; up to half of them belong to each pass.
        facts: whether there are annotations, and values that cannot be saved or recomputed. They may contradict each
            other; without them, every graph has a plan.
        largest: the largest size in bytes.
    """
    g = GraphBuilder()
    size = st.integers(0, draw(st.sampled_from((1, 8, largest))))
    half = max(max_values // 2, 2)
    forward = [g.input(f"x{i}", bytes=draw(size)) for i in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(0, half - len(forward)))):
        forward.append(_draw_op(draw, g, forward, size, facts))
    outputs = [forward[-1], *(name for name in forward[:-1] if draw(st.booleans()))][: half - 1]
    g.output(*outputs)
    backward = [g.tangent(f"d_{name}", bytes=draw(size)) for name in outputs]
    for i in range(draw(st.integers(1, half - len(backward)))):
        if i and draw(st.integers(0, 2)) == 0:
            forward.append(_draw_op(draw, g, forward, size, facts))
            if draw(st.booleans()):
                g.output(forward[-1])
        else:
            backward.append(_draw_op(draw, g, forward + backward, size, facts))
    g.gradient(backward[-1], *(name for name in forward + backward[:-1] if draw(st.booleans())))
    return g.build()


def _draw_op(draw: st.DrawFn, g: GraphBuilder, values: list[str], size: st.SearchStrategy[int], facts: bool) -> str:
    op = draw(st.sampled_from(tuple(_OPS)))
    # The latest value comes first, because Hypothesis shrinks to it: simple examples are chains.
    arguments = draw(st.lists(st.sampled_from(values[::-1]), min_size=1, max_size=3))
    flags = draw(st.sampled_from(({}, {}, {}, *_FACTS))) if facts else {}
    return g.op(op, *arguments, bytes=draw(size), **_OPS[op], **flags)
