"""Whether any plan exists is decided before a solver is called, and explained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from depth import drawn
from helpers import BUDGET, each, every_plan
from hypothesis import given

from remat import Infeasible, Problem, Solution, TerminationReason, solve
from remat.plugin import Feature, Solver
from remat.problem.feasibility import check_feasible
from remat.testing import problems

# rng -> mask -> scaled <- bystander. What cannot be had from rng cannot be had from scaled.
LOST = Problem.of(
    [1, 1, 1, 1],
    edges=[(1, 2), (0, 3), (2, 3)],
    needed=[0, 3],
    names=["bystander", "rng", "mask", "scaled"],
    cannot_save={1: "a seed", 2: "a tuple", 3: "marked MUST_RECOMPUTE"},
    cannot_recompute={1: "random"},
)


@dataclass(frozen=True)
class NeverCalled(Solver):
    name: ClassVar[str] = "never-called"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        raise AssertionError("an infeasible problem must not reach a solver")


def test_the_path_is_told_node_by_node_before_any_solver_is_called() -> None:
    with pytest.raises(Infeasible) as caught:
        solve(LOST, NeverCalled())
    assert caught.value.path == (
        ("rng", ("cannot be saved (a seed)", "cannot be recomputed (random)")),
        ("mask", ("cannot be saved (a tuple)", "cannot be recomputed (uses 'rng')")),
        (
            "scaled",
            (
                "cannot be saved (marked MUST_RECOMPUTE)",
                "cannot be recomputed (uses 'mask')",
                "needed by the backward pass",
            ),
        ),
    )
    assert str(caught.value) == (
        "no plan can make 'scaled' available in the backward pass. These rules contradict each other:\n"
        "  rng: cannot be saved (a seed); cannot be recomputed (random)\n"
        "  mask: cannot be saved (a tuple); cannot be recomputed (uses 'rng')\n"
        "  scaled: cannot be saved (marked MUST_RECOMPUTE); cannot be recomputed (uses 'mask'); "
        "needed by the backward pass\n"
        "Relax one of them."
    )


@pytest.mark.parametrize("relaxed", [1, 2, 3])
def test_lifting_any_ban_on_the_path_helps(relaxed: int) -> None:
    check_feasible(replace(LOST, cannot_save=LOST.cannot_save.without(np.arange(len(LOST)) == relaxed)))


@drawn(75)
@given(problems(max_values=6, feasible=None))
def test_agrees_with_looking_at_every_plan(problem: Problem) -> None:
    if any(True for _ in every_plan(problem)):
        check_feasible(problem)
    else:
        with pytest.raises(Infeasible) as caught:
            check_feasible(problem)
        first, *_, last = (name for name, _ in (caught.value.path[0], *caught.value.path))
        assert problem.cannot_recompute.reason(problem.index[first]) is not None
        assert problem.needed[problem.index[last]]


@each(BUDGET)
def test_a_budget_that_nothing_fits(solver: Solver) -> None:
    needs_four = Problem.of([4, 7], needed=[0], cannot_recompute={0: "an input"}, budget_bytes=3)
    with pytest.raises(Infeasible, match="no plan fits the budget of 3 bytes") as caught:
        solve(needs_four, solver)
    assert caught.value.path == ()
    solution = solve(needs_four, solver, throw=False)
    assert (solution.plan, solution.objective, solution.termination.reason) == (
        None,
        None,
        TerminationReason.INFEASIBLE,
    )
