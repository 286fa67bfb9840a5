"""Every flow solver returns the same plan, whatever the ties.

Of all cheapest plans it saves the fewest bytes, then the fewest values, then recomputes the least.
"""

from __future__ import annotations

from typing import ClassVar

from depth import drawn
from helpers import FLOW, each, every_plan, largest_price
from hypothesis import given
from hypothesis import strategies as st

from remat import Problem, solve
from remat.plugin import IntArray, Network, Reduction, Sides, Solver
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
