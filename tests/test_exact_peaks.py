"""The exact search within a limit of the peak: its program holds for every plan, its optimum is that of all plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model
from strategies import Dice, every_legal_mask, late_views, planned, training_steps

from costmodels import RecomputeTime
from remat import (
    Choice,
    Corpus,
    Graph,
    GraphBuilder,
    Infeasible,
    InvalidPlan,
    Problem,
    Solution,
    TerminationReason,
    solve,
)
from remat.facts.columns import BoolArray
from remat.improve.peak_plans import PeakPlans
from remat.improve.peak_search import fit_peak
from remat.predict.memory import Simulator
from remat.testing import graphs
from solvers import Lagrangian
from solvers.cpsat_peak import cheapest_within_peak
from solvers.peak_program import BETWEEN, PeakProgram, moment_of, needs_gradients_only


def check_clauses(graph: Graph, saved: BoolArray) -> None:
    """Checks that a plan satisfies the clauses of all its moments, where the limit of each is what is alive then."""
    simulator = Simulator(graph)
    order, alive = simulator.alive(saved)
    program = PeakProgram(graph, Dice(0).pose(graph), int(alive.max(initial=0)))
    program.add(BETWEEN)
    for step, alive_bytes in enumerate(alive.tolist()):
        program.limit_bytes = alive_bytes
        program.add(moment_of(simulator.facts, order, step))
    for v in np.flatnonzero(simulator.facts.computed[graph.plannable]).tolist():
        node = graph.plannable[v]
        program.program.add(program.saved[node] == bool(order.saved[node]))
    backend = cp_model.CpSolver()
    assert backend.solve(program.program) == cp_model.OPTIMAL


@settings(max_examples=15 * settings.default.max_examples)  # what a clause forgets shows in one plan of a thousand
@given(planned())
def test_every_plan_satisfies_the_clauses_of_all_its_moments(drawn: tuple[Graph, BoolArray]) -> None:
    graph, saved = drawn
    assume(needs_gradients_only(graph, Dice(0).pose(graph)))
    check_clauses(graph, saved)


@pytest.mark.parametrize("where", ["saved", "output", "gradient"])
def test_a_value_is_in_memory_if_a_view_of_it_is_saved_or_returned(where: str) -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=1)
    if where == "gradient":
        g.output(g.op("neg", x, bytes=1))
        dy = g.tangent("dy", bytes=1)
    q = g.op("neg", x, name="q", bytes=5)
    w = g.op("mul", g.op("mm", x, bytes=10, compute_bound=True), q, name="w", bytes=1)
    if where == "gradient":
        late = g.op("mm", g.op("mul", dy, w, bytes=1), bytes=10, compute_bound=True)
        view = g.op("view", w, name="view", bytes=1, view=True)
        g.gradient(view, g.op("mul", late, w, q, bytes=1))
    else:
        c = g.op("mm", x, bytes=10, compute_bound=True)
        view = g.op("view", w, name="view", bytes=1, view=True)
        g.output(g.op("mul", c, view, bytes=1) if where == "saved" else g.op("neg", c, bytes=1))
        if where == "output":
            g.output(view)
        dy = g.tangent("dy", bytes=1)
        g.gradient(g.op("mul", dy, q, *([view] if where == "saved" else []), bytes=1))
    graph = g.build()
    for saved in every_legal_mask(graph):
        check_clauses(graph, saved)


@given(graphs(max_values=8) | training_steps() | late_views(), st.data())
def test_the_optimum_is_that_of_all_plans(graph: Graph, data: st.DataObject) -> None:
    simulator = Simulator(graph)
    problem = Dice(1).pose(graph)
    assume(needs_gradients_only(graph, problem))
    costs = [
        (Choice.from_saved(problem, mask[graph.plannable]).cost(problem), simulator.peak(mask))
        for mask in every_legal_mask(graph)
    ]
    limit_bytes = data.draw(st.sampled_from(sorted({peak for _, peak in costs} | {0})))
    least = min((cost for cost, peak in costs if peak <= limit_bytes), default=None)
    found = cheapest_within_peak(graph, problem, limit_bytes)
    assert found.objective == least
    if least is None:
        assert found.termination.reason is TerminationReason.INFEASIBLE
        with pytest.raises(Infeasible, match=f"no plan has a peak of at most {limit_bytes} bytes"):
            fit_peak(graph, problem, (limit_bytes,))
        return
    assert found.termination.reason is TerminationReason.OPTIMAL
    assert found.termination.bound == least
    choice = Choice.from_plan(problem, found.plan)
    assert simulator.peak(graph.for_all_values(choice.saved)) <= limit_bytes
    again = cheapest_within_peak(graph, problem, limit_bytes, choice)
    assert (again.objective, again.termination.reason) == (least, TerminationReason.OPTIMAL)
    searched = fit_peak(graph, problem, (limit_bytes,))
    assert (searched.objective, searched.is_optimal) == (least, True)


LIMIT_BYTES = 84_691_538
"""Of the peak of qehvi-4."""


def qehvi() -> tuple[Graph, Problem]:
    graph = Corpus.open().graph("qehvi-4")
    graph = replace(graph, arguments=("",) * len(graph))  # so that the peak is simulated value by value
    return graph, RecomputeTime().pose(graph)


def test_what_the_search_misses_is_found_and_proven() -> None:
    graph, problem = qehvi()
    alone = fit_peak(graph, problem, (LIMIT_BYTES,), "lagrangian")
    assert not alone.is_optimal
    exact = fit_peak(graph, problem, (LIMIT_BYTES,))
    assert (exact.is_optimal, exact.is_proven) == (True, False)
    assert "claimed by CP-SAT, of memory at some moments" in str(exact.certificate)
    assert exact.objective == exact.bound == 624 < alone.objective
    assert Simulator(graph).peak(graph.for_all_values(Choice.from_plan(problem, exact.plan).saved)) <= LIMIT_BYTES


def test_a_search_without_time_returns_its_incumbent() -> None:
    graph, problem = qehvi()
    incumbent = Choice.from_plan(problem, fit_peak(graph, problem, (LIMIT_BYTES,), "lagrangian").plan)
    hurried = cheapest_within_peak(graph, problem, LIMIT_BYTES, incumbent, time_limit_s=1e-9)
    assert hurried.plan == incumbent.plan(problem)
    assert (hurried.termination.reason, hurried.termination.limit) == (TerminationReason.FEASIBLE, "time")


def test_a_free_plan_that_only_the_exact_search_finds_is_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, problem = qehvi()
    limit_bytes = PeakPlans(graph, problem, Lagrangian()).cheapest.peak_bytes
    monkeypatch.setattr(PeakPlans, "within", lambda *_: None)
    found = fit_peak(graph, problem, (limit_bytes,))
    assert (found.objective, found.bound, found.is_optimal, found.is_proven) == (0, 0, True, False)


def test_a_plan_beyond_the_limit_is_refused() -> None:
    class Careless(Lagrangian):
        name = "careless"

        def within_peak(self, graph: Graph, problem: Problem, *_: Any, time_limit_s: float | None) -> Solution:
            del graph, time_limit_s
            return solve(problem)

    graph, problem = qehvi()
    with pytest.raises(InvalidPlan, match=f"solver 'careless': its plan has a peak of .* bytes, above {LIMIT_BYTES}"):
        fit_peak(graph, problem, (LIMIT_BYTES,), Careless())


def test_what_torch_drops_is_not_stated() -> None:
    g = GraphBuilder()
    y = g.op("mm", g.input("x", bytes=4), compute_bound=True, bytes=4)
    g.output(g.op("sum", y, bytes=1, fusible=False))
    d = g.tangent("dz", bytes=1)
    g.op("mul", d, y, name="unused", bytes=4)
    g.gradient(g.op("neg", d, name="dx", bytes=4))
    graph = g.build()
    assert cheapest_within_peak(graph, RecomputeTime().pose(graph), 1 << 20) is None
