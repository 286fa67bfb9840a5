"""One read a kernel and a shared write: the program's optimum is the best of all saved sets."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from depth import drawn
from hypothesis import given
from hypothesis import strategies as st

import remat
from costmodels import MultiRead
from experiments.traffic_study.shared_write import SharedWrite
from remat import Graph, GraphBuilder, Infeasible, InvalidOption, InvalidPlan, LimitReached, UnsupportedProblem
from remat.errors import InvalidProblem
from remat.facts.columns import BoolArray
from remat.testing import graphs

MODES: Any = st.sampled_from(("conservative", "aggressive"))
SMALL = graphs(max_values=10, largest=2**20)


class Pass:
    """Runs the backward pass with a saved set in memory, and notes what moves.

    Attributes:
        memory: what is saved.
        reads: pairs (kernel, value).
        rewritten: what a kernel of its own computed and wrote.
    """

    def __init__(self, its: SharedWrite, saved: BoolArray) -> None:
        self.its, self.memory = its, {v for v in range(len(saved)) if saved[v]}
        self.reads: set[tuple[object, int]] = set()
        self.rewritten: set[int] = set()
        for k, uses in enumerate(its.kernels):
            for v in uses:
                self.fetch(k, v)
        for v in range(len(saved)):
            if its.graph.gradient[v] and not its.graph.in_tangents[v]:
                self.fetch("returned", v)

    def fetch(self, kernel: object, v: int) -> None:
        if v in self.memory or self.its.apart[v]:
            self.reads.add((kernel, v))
        if v not in self.memory:
            if self.its.stuck[v]:
                raise LookupError
            for u in self.its.graph.operands[v]:
                self.fetch(("apart", v) if self.its.apart[v] else kernel, u)
            self.rewritten |= {v} if self.its.apart[v] else set()

    def bytes(self) -> int:
        saves = {v for _, v in self.reads} & self.memory
        return (
            sum(int(self.its.read_bytes[v]) for k, v in self.reads if k != "returned")
            + sum(int(self.its.write_bytes[v]) for v in saves)
            + sum(int(self.its.read_bytes[v]) for v in self.rewritten)
        )


def moved(its: SharedWrite, saved: BoolArray) -> int | None:
    """Bytes; None if the backward pass cannot run."""
    try:
        return Pass(its, saved).bytes()
    except LookupError:
        return None


def best(its: SharedWrite, budget_bytes: int | None) -> int | None:
    """The least of all saved sets."""
    free = (~its.unsaveable & ~its.graph.in_tangents).tolist()
    costs: list[int] = []
    for choice in product(*((False, True) if may else (False,) for may in free)):
        saved = np.array(choice, np.bool_)
        if budget_bytes is None or int(its.graph.activation_bytes[saved].sum()) <= budget_bytes:
            cost = moved(its, saved)
            costs += [] if cost is None else [cost]
    return min(costs, default=None)


@drawn(60)
@given(SMALL, MODES, st.none() | st.integers(0, 2**20))
def test_the_optimum_is_that_of_all_saved_sets(graph: Graph, mode: Any, budget_bytes: int | None) -> None:
    try:
        its = SharedWrite.of(graph, mode)
    except Infeasible:
        return  # `test_feasibility.py` is about that
    expected = best(its, budget_bytes)
    if expected is None:
        with pytest.raises(LimitReached):
            its.solve(budget_bytes=budget_bytes)
        return
    answer = its.solve(budget_bytes=budget_bytes)
    assert (answer.bytes, answer.bound, answer.gap) == (expected, expected, 0.0)
    assert budget_bytes is None or answer.saved_bytes <= budget_bytes
    remat.check_plan(remat.plugin.base_problem(graph), answer.plan)


@given(SMALL, MODES, st.integers(0, 2**10 - 1))
def test_the_price_of_a_set_is_what_it_moves(graph: Graph, mode: Any, bits: int) -> None:
    try:
        its = SharedWrite.of(graph, mode)
    except Infeasible:
        return
    saved = np.array([bits >> v & 1 for v in range(len(graph))], np.bool_) & ~graph.in_tangents
    expected = moved(its, saved)
    if expected is None:
        with pytest.raises(InvalidPlan, match="neither saved nor may be recomputed"):
            its.price(saved)
    else:
        assert its.price(saved) == expected


@drawn(30)
@given(graphs(max_values=14, facts=False), MODES)
def test_no_cut_is_better(graph: Graph, mode: Any) -> None:
    its = SharedWrite.of(graph, mode)
    plan = remat.solve(MultiRead(mode=mode).pose(graph)).plan
    assert plan is not None
    assert its.solve().bytes <= its.price(np.isin(graph.names, plan.saved))


def test_a_kernel_pays_for_a_read_only_where_nothing_between_is_saved() -> None:
    """x -> s -> a, b; each kernel of the backward pass uses a or b. Saving s serves both with one write."""
    g = GraphBuilder()
    x = g.input("x", bytes=8)
    s = g.op("sin", g.op("mm", x, name="mm", bytes=8, compute_bound=True), name="s", bytes=1)
    a, b = g.op("exp", s, name="a", bytes=8), g.op("cos", s, name="b", bytes=8)
    g.output(g.op("add", a, b, bytes=8))
    first = g.op("mul", g.tangent("dy", bytes=8), a, bytes=8)
    g.gradient(g.op("mul", g.op("mm", first, bytes=8, compute_bound=True), b, bytes=8))
    answer = SharedWrite.of(g.build()).solve()
    assert (answer.plan.saved, answer.bytes) == (("s",), 1 + 1 + 1)


def test_a_kernel_reads_what_is_saved_though_it_has_all_to_compute_it() -> None:
    """Kernel 1 uses v = sin(u), kernel 2 uses u and v: for kernel 1 a save is worth it, so kernel 2 reads v, too."""
    g = GraphBuilder()
    u = g.input("u", bytes=100)
    v = g.op("sin", u, name="v", bytes=30)
    g.output(g.op("exp", v, bytes=100))
    first = g.op("mul", g.tangent("dy", bytes=100), v, bytes=100)
    product = g.op("mm", first, bytes=100, compute_bound=True)
    g.gradient(g.op("mul", g.op("mul", product, u, bytes=100), v, bytes=100))
    answer = SharedWrite.of(g.build()).solve()
    assert answer.plan.saved == ("u", "v")
    assert answer.bytes == answer.bound == 100 + 30 + 2 * 30  # u once, v written and read twice


def test_a_budget_that_no_plan_keeps_is_one_clear_error() -> None:
    g = GraphBuilder()
    g.output(noise := g.op("rand_like", g.input("x", bytes=8), bytes=8, random=True))
    g.gradient(g.op("mul", g.tangent("dy", bytes=8), noise, bytes=8))
    with pytest.raises(LimitReached, match=r"HiGHS found no plan.*budget_bytes"):
        SharedWrite.of(g.build()).solve(budget_bytes=7)


def test_prices_that_a_float_cannot_tell_apart_are_refused() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=2**53 + 1)
    g.output(g.op("sin", x, bytes=2**53 + 2))
    g.gradient(g.op("mul", g.tangent("dy", bytes=8), x, bytes=8))
    with pytest.raises(UnsupportedProblem, match=r"less than 2\*\*53 units"):
        SharedWrite.of(g.build()).solve()


def test_an_empty_graph_takes_nothing() -> None:
    answer = SharedWrite.of(GraphBuilder().build()).solve()
    assert (answer.plan.saved, answer.bytes, answer.bound, answer.gap) == ((), 0, 0, 0.0)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "x"])
def test_a_limit_that_is_no_time_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidOption, match=r"time_limit_s must be a positive number, got"):
        SharedWrite.of(GraphBuilder().build()).solve(time_limit_s=limit)


@pytest.mark.parametrize("budget", [-1, 1.5, "8GB"])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"budget_bytes must be a non-negative integer or None, got"):
        SharedWrite.of(GraphBuilder().build()).solve(budget_bytes=budget)
