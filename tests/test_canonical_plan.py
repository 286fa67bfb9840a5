"""Every flow solver returns the same plan, whatever the ties.

Of all cheapest plans it saves the fewest bytes, then the fewest values, then recomputes the least.
Tied values: of one group, what the backward pass reads is all saved, or all recomputed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from depth import drawn
from helpers import EXACT, FLOW, each, every_plan, largest_price
from hypothesis import given
from hypothesis import strategies as st

from remat import Infeasible, InvalidPlan, Plan, Problem, UnsupportedProblem, check_plan, solve
from remat.plugin import Feature, IntArray, InvalidProblem, Network, Reduction, Sides, Solver
from remat.problem.mps_file import write_mps
from remat.testing import problems
from solvers import NetworkX


@each(FLOW)
@drawn(75)
@given(data=st.data())
def test_is_the_least_of_all_cheapest_plans(solver: Solver, data: st.DataObject) -> None:
    problem = data.draw(problems(max_values=6, largest=largest_price(solver, 6)))
    plans = list(every_plan(problem))
    least = min((plan.cost, plan.saved_bytes, len(plan.saved)) for plan in plans)
    tied = [plan for plan in plans if least == (plan.cost, plan.saved_bytes, len(plan.saved))]

    plan = solve(problem, solver).plan
    saved, recomputed = (frozenset(problem.index[name] for name in names) for names in (plan.saved, plan.recomputed))
    assert (saved, recomputed) in [(other.saved, other.recomputed) for other in tied]
    assert all(recomputed <= other.recomputed for other in tied)


@each(FLOW[1:])
@given(data=st.data())
def test_is_the_same_from_every_flow_solver(solver: Solver, data: st.DataObject) -> None:
    largest = largest_price(solver, 40)
    problem = data.draw(problems(max_values=40, largest=largest) | problems(offload=True, largest=largest))
    assert solve(problem, FLOW[0]).plan == solve(problem, solver).plan


@each(FLOW)
def test_prefers_fewer_bytes_to_fewer_values(solver: Solver) -> None:
    """Saving 0 and 1 takes 2 bytes, saving 2 takes 3, and both cost 4."""
    problem = Problem.of(
        [2, 2, 4], edges=[(0, 2), (1, 2)], needed=[2], save_bytes=[1, 1, 3], cannot_recompute={0: "input", 1: "input"}
    )
    plan = solve(problem, solver).plan
    assert (plan.saved, plan.recomputed) == (("v0", "v1"), ("v2",))


class Counting(NetworkX):
    flows: ClassVar[list[Network]] = []

    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        self.flows.append(network)
        return super()._max_flow(network)


def test_what_nobody_reads_again_makes_no_tie() -> None:
    """v1 is needed; v2 to v4 follow from it, and nothing needs them: no cut decides their side."""
    problem = Problem.of(
        [2, 4, 4, 4, 4], edges=[(0, 1), (1, 2), (2, 3), (3, 4)], needed=[1], cannot_recompute={0: "an input"}
    )
    Counting.flows.clear()
    plan = solve(problem, Counting()).plan
    assert (plan.saved, plan.recomputed) == (("v0",), ("v1",))
    assert len(Counting.flows) == 1


def test_what_nobody_reads_again_has_no_arcs() -> None:
    problem = Problem.of([5, 5], edges=[(0, 1)], needed=[0], recompute_cost=[3, 3], cannot_recompute={0: "an input"})
    assert len(Reduction.of(problem).network.tails) == 0
    assert solve(problem, "networkx").objective == 5


TAKES = [solver for solver in EXACT if Feature.TIED in solver.features]


def chain(budget: int | None = None) -> Problem:
    """x (an input) -> y -> z; the backward pass needs y and z, which are tied."""
    return replace(
        Problem.of(
            [0, 0, 0],
            edges=[(0, 1), (1, 2)],
            needed=[1, 2],
            recompute_cost=[0, 9, 4],
            save_bytes=[0, 8, 8],
            names=["x", "y", "z"],
            cannot_recompute={0: "an input"},
            budget_bytes=budget,
        ),
        tied=np.array([-1, 0, 0]),
    )


@drawn(60)
@each([solver for solver in TAKES if solver.name != "exhaustive"])
@given(problems(max_values=8) | problems(max_values=8, budget=True) | problems(max_values=6, offload=True), st.data())
def test_tied_problems_cost_what_the_comparison_of_all_plans_says(
    solver: Solver, problem: Problem, data: st.DataObject
) -> None:
    groups = data.draw(st.lists(st.integers(-1, 2), min_size=len(problem), max_size=len(problem)))
    tied = replace(problem, tied=np.array(groups, np.int64))
    best, found = (solve(tied, each_solver, throw=False) for each_solver in ("exhaustive", solver))
    assert found.objective == best.objective
    assert found.termination.reason is best.termination.reason
    if found.plan is not None:
        assert check_plan(tied, found.plan) == found.objective


@each(TAKES)
def test_half_a_group_is_never_saved(solver: Solver) -> None:
    assert solve(replace(chain(8), tied=None), solver).objective == 4
    assert solve(chain(8), solver).objective == 13
    assert solve(chain(16), solver).objective == 0


@each(TAKES)
def test_what_only_the_ties_make_impossible_is_reported(solver: Solver) -> None:
    banned = replace(chain(8), cannot_recompute=chain().cannot_recompute.also(np.array([False, True, False]), "random"))
    assert solve(replace(banned, tied=None), solver).objective == 4
    assert solve(banned, solver, throw=False).plan is None
    with pytest.raises(Infeasible, match="tied group as a whole"):
        solve(banned, solver)


def test_a_plan_that_splits_a_group_is_not_legal() -> None:
    with pytest.raises(InvalidPlan, match="one tied group"):
        check_plan(chain(), Plan(("x", "y"), ("z",)))


def test_who_cannot_state_ties_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedProblem, match="does not support tied values"):
        solve(chain(), "ortools")
    for write in (chain().save, lambda path: write_mps(chain(), path)):
        with pytest.raises(UnsupportedProblem, match="tied values"):
            write(tmp_path / "chain")
    with pytest.raises(InvalidProblem, match=r"Problem\.tied"):
        replace(chain(), tied=np.array([0, 1]))
