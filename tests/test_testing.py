"""The conformance checks pass what is right and name what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import count, product
from typing import ClassVar

import numpy as np
import pytest
from depth import deeper, examples
from helpers import CONFIGURED, each, every_plan
from hypothesis import HealthCheck, Phase, find, given, settings

from remat import Choice, CostModel, Graph, Plan, Problem, Solution, TerminationReason, solve
from remat.answer.registry import costmodel_class, costmodel_names
from remat.answer.solution import ClaimedBound
from remat.plugin import SINK, SOURCE, Bans, BudgetRow, Feature, FlowSolver, Network, Sides, Solver, Termination, Terms
from remat.problem.feasibility import check_feasible, forced_values
from remat.testing import check_cost_model, check_solver, dags, graphs, problems
from solvers import Exhaustive


@deeper
@each(CONFIGURED)
def test_every_solver_conforms(solver: Solver) -> None:
    check_solver(solver, max_examples=examples(100))


@deeper
@pytest.mark.parametrize("name", costmodel_names())
def test_every_cost_model_conforms(name: str) -> None:
    check_cost_model(costmodel_class(name), max_examples=examples(100))


@dataclass(frozen=True)
class Broken(Exhaustive):
    """Right in all but what a subclass bends."""

    name: ClassVar[str] = "broken"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        right = super()._solve(problem, time_limit_s=time_limit_s)
        return right if right.plan is None else self.bent(problem, right)

    def bent(self, problem: Problem, right: Solution) -> Solution:
        return right


def answer(problem: Problem, saved: list[int] | np.ndarray, recomputed: list[int] | np.ndarray) -> Solution:
    """A plan, its true cost, and the claim that it is optimal."""
    masks = [np.zeros(len(problem), np.bool_) for _ in range(2)]
    masks[0][saved] = masks[1][recomputed] = True
    choice = Choice(*masks)
    cost = choice.cost(problem)
    return Solution(
        choice.plan(problem), cost, Termination(TerminationReason.OPTIMAL, cost), ClaimedBound("broken"), "broken"
    )


@dataclass(frozen=True)
class TakesNothingBack(FlowSolver):
    """Fills paths that have room left, in some order, but knows no way to send flow back."""

    name: ClassVar[str] = "takes-nothing-back"
    latest_first: bool = False
    backwards: bool = False

    def _max_flow(self, network: Network) -> tuple[np.ndarray, Sides | None]:
        flow = np.zeros(len(network.tails), np.int64)
        while path := self._path(network, flow):
            flow[path] += (network.capacities - flow)[path].min()
        return flow, None

    def _path(self, network: Network, flow: np.ndarray) -> list[int]:
        came_by, stack = {SOURCE: -1}, [SOURCE]
        while stack:
            vertex = stack.pop(-1 if self.latest_first else 0)
            arcs = np.flatnonzero((network.tails == vertex) & (flow < network.capacities)).tolist()
            for arc in arcs[::-1] if self.backwards else arcs:
                if (head := int(network.heads[arc])) not in came_by:
                    came_by[head] = arc
                    stack.append(head)
        path, arc = [], came_by.get(SINK, -1)
        while arc >= 0:
            path.append(arc)
            arc = came_by[int(network.tails[arc])]
        return path


class SavesAllItCan(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        if problem.budget_bytes is not None or (problem.needed & problem.cannot_save.mask).any():
            return right
        return answer(problem, np.flatnonzero(problem.needed), [])


class IgnoresBans(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return Exhaustive._solve(self, replace(problem, cannot_save=Bans.none(len(problem))), time_limit_s=None)


class IgnoresTheBudget(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return Exhaustive._solve(self, replace(problem, budget_bytes=None), time_limit_s=None)


class GivesUp(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return replace(right, plan=None, objective=None, termination=Termination(TerminationReason.INFEASIBLE))


class Hesitates(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return replace(right, termination=Termination(TerminationReason.FEASIBLE, right.bound, limit="time"))


class BoundsTooHigh(Broken):
    exact: ClassVar[bool] = False

    def bent(self, problem: Problem, right: Solution) -> Solution:
        costly = answer(problem, *map(sorted, max(every_plan(problem))[2:]))
        return replace(costly, termination=Termination(TerminationReason.FEASIBLE, costly.objective, limit="time"))


class Tosses(Broken):
    calls: ClassVar[count[int]] = count()

    def bent(self, problem: Problem, right: Solution) -> Solution:
        if problem.budget_bytes is not None:
            return right
        tied = [plan for plan in every_plan(problem) if plan.cost == right.objective]
        plan = tied[next(self.calls) % len(tied)]
        return answer(problem, sorted(plan.saved), sorted(plan.recomputed))


class Flips(Broken):
    """Wrong once, and then never again: there is nothing to repeat."""

    calls: ClassVar[count[int]] = count()

    def bent(self, problem: Problem, right: Solution) -> Solution:
        return replace(right, solver="gurobi") if next(self.calls) == 4 else right


class ListsBackwards(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return replace(right, plan=Plan(right.plan.saved[::-1], right.plan.recomputed[::-1]))


class Crashes(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        raise ZeroDivisionError("oops")


class SignsAsAnother(Broken):
    def bent(self, problem: Problem, right: Solution) -> Solution:
        return replace(right, solver="gurobi")


class TakesAnything(Broken):
    features: ClassVar[frozenset[Feature]] = frozenset()

    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        """Declares no features, yet refuses nothing."""


class IgnoresTimeLimits(Broken):
    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        super().accept(problem)


class TakesTooMany(Broken):
    max_values: ClassVar[int | None] = 8

    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        if time_limit_s is not None:
            super().accept(problem, time_limit_s=time_limit_s)


class RefusesForNoReason(Broken):
    max_values: ClassVar[int | None] = None

    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        Exhaustive().accept(Problem.of([0] * (17 if len(problem) > 3 else 1)), time_limit_s=time_limit_s)


class HasNoOptions(Solver):
    name: ClassVar[str] = "plain"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        return Exhaustive()._solve(problem, time_limit_s=time_limit_s)


@dataclass
class IsMutable(HasNoOptions):
    name: ClassVar[str] = "mutable"


@dataclass(frozen=True)
class Unhashable(Broken):
    options: list[int] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class HidesItsOptions(Broken):
    __repr__ = object.__repr__


# Which examples Hypothesis tries depends on the modules that are loaded. Some have rows.
CODE = r"for (replace\()?Problem\.of\("


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (SavesAllItCan, r"claims OPTIMAL at cost \d+ with the bound \d+, but a plan costs \d+\n" + CODE),
        (IgnoresBans, r"cannot be saved \(.*\), but is: 'v"),
        (IgnoresTheBudget, r"saves \d+ bytes, but the budget is \d+"),
        (GivesUp, "claims INFEASIBLE, but no rule stands in the way of a plan"),
        (Hesitates, "claims FEASIBLE .* but it declares itself exact"),
        (BoundsTooHigh, r"claims FEASIBLE at cost \d+ with the bound \d+, but a plan costs \d+"),
        (Tosses, "is not deterministic: it returns <Solution .*, then <Solution"),
        (Flips, "is not deterministic: what failed once does not fail again"),
        (ListsBackwards, "must list names in the problem's order; use Choice.plan"),
        (Crashes, r"ZeroDivisionError: oops\n" + CODE),
        (SignsAsAnother, "signs its solution as 'gurobi'"),
        (TakesAnything, "must refuse budgets of some values with UnsupportedProblem"),
        (RefusesForNoReason, "refuses what it declares to take"),
        (IsMutable, r"IsMutable must be a @dataclass\(frozen=True\)"),
        (HasNoOptions, r"HasNoOptions must be a @dataclass\(frozen=True\)"),
        (Unhashable, "must be hashable, by its options"),
        (HidesItsOptions, "HidesItsOptions must have a repr that shows its options, got <"),
    ],
)
@pytest.mark.usefixtures("no_shrinking")
def test_a_broken_solver_is_named_and_shamed(solver: type[Solver], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_solver(solver, max_examples=60)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (IgnoresTimeLimits, r"must refuse \(with UnsupportedProblem\) a time limit"),
        (TakesTooMany, "must refuse more than 8 values"),
        *((TakesNothingBack(*order), "not legal") for order in product((False, True), repeat=2)),
    ],
)
def test_what_random_problems_do_not_show_is_found_without_them(solver: Solver | type[Solver], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_solver(solver, max_examples=2)


def test_a_failure_comes_with_code_that_rebuilds_the_problem() -> None:
    with pytest.raises(AssertionError) as caught:
        check_solver(SavesAllItCan, max_examples=60)
    code = re.search(r"for ((?:replace\()?Problem\.of\(.*\))", str(caught.value))
    problem: Problem = eval(code[1], {"Problem": Problem, "replace": replace, "BudgetRow": BudgetRow})
    assert len(problem) == 2, "shrunk"
    assert solve(problem, SavesAllItCan()).objective != solve(problem, "exhaustive").objective


@dataclass(frozen=True)
class Bytes(CostModel):
    """Right in all but what a subclass bends."""

    name: ClassVar[str] = "bytes"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        return replace(Terms.nothing(graph), save_cost=graph.bytes)


class PricesByMood(Bytes):
    calls: ClassVar[count[int]] = count()

    def terms(self, graph: Graph) -> Terms:
        return replace(super().terms(graph), save_cost=graph.bytes + next(self.calls))


class PricesNames(Bytes):
    def terms(self, graph: Graph) -> Terms:
        return replace(super().terms(graph), save_cost=np.array([len(name) for name in graph.names]))


class ForbidsEverything(Bytes):
    def terms(self, graph: Graph) -> Terms:
        everything = Bans.none(len(graph)).also(np.ones(len(graph), np.bool_), "no")
        return replace(super().terms(graph), cannot_save=everything, cannot_recompute=everything)


class AllowsEverything(Bytes):
    def pose(self, graph: Graph) -> Problem:
        problem = super().pose(graph)
        return replace(problem, cannot_recompute=Bans.none(len(problem)))


class NeedsNothing(Bytes):
    def pose(self, graph: Graph) -> Problem:
        problem = super().pose(graph)
        return replace(problem, needed=problem.needed & False)


class Renames(Bytes):
    def pose(self, graph: Graph) -> Problem:
        problem = super().pose(graph)
        return replace(problem, names=tuple(f"v{i}" for i in range(len(problem))))


class AddsWrongly(Bytes):
    def __add__(self, other: CostModel) -> CostModel:
        return self


class HasNoUnit(Bytes):
    unit: ClassVar[None] = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (PricesByMood, "prices the same graph differently the second time"),
        (PricesNames, "looks at names or storage ids, which are only labels"),
        (ForbidsEverything, "no plan can make '.*' available in the backward pass"),
        (AllowsEverything, "allows recomputing x0.*, which the graph or its user forbids"),
        (NeedsNothing, "changes what is needed"),
        (Renames, "must pose the values outside the tangents, in graph order"),
        (AddsWrongly, "itself must cost twice as much"),
        (HasNoUnit, "must have a unit: that of its prices"),
    ],
)
@pytest.mark.usefixtures("no_shrinking")
def test_a_broken_cost_model_is_named_and_shamed(model: type[CostModel], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_cost_model(model, max_examples=60)


def test_what_the_broken_ones_are_built_on_is_right() -> None:
    check_solver(Broken, max_examples=10)
    check_cost_model(Bytes, max_examples=10)


@given(problems() | problems(budget=True))
def test_feasible_problems_are_feasible(problem: Problem) -> None:
    check_feasible(problem)
    assert solve(problem, "exhaustive").is_optimal


@given(graphs(facts=False))
def test_graphs_without_facts_have_a_plan(graph: Graph) -> None:
    assert solve(Bytes().pose(graph)).is_proven


@given(dags(12))
def test_dags_are_acyclic_and_list_each_use_once(edges: list[tuple[int, int]]) -> None:
    assert all(0 <= u < v < 12 for u, v in edges)
    assert len(set(edges)) == len(edges)


SEARCH = settings(max_examples=2000, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(lambda p: (p.save_cost == 0).any() and (p.save_cost > 0).any(), id="zeros"),
        pytest.param(lambda p: len(p) > 4 and len(set(p.save_cost.tolist())) == 1, id="ties"),
        pytest.param(
            lambda p: {(0, 1), (0, 2), (1, 3), (2, 3)} <= set(zip(p.producers, p.consumers, strict=True)), id="diamonds"
        ),
        pytest.param(lambda p: len(p) > 4 and len(p.producers) < 2, id="disconnected parts"),
        pytest.param(lambda p: p.save_cost.max() > 2**33, id="large prices"),
        pytest.param(lambda p: p.save_bytes.max() > 2**33, id="large sizes"),
        pytest.param(lambda p: (p.needed & forced_values(p).unavailable).any(), id="infeasible"),
        pytest.param(
            lambda p: (forced_values(p).not_recomputable & ~p.cannot_recompute.mask).any(), id="losses that spread"
        ),
        pytest.param(lambda p: (p.save_bytes != p.save_cost).any(), id="sizes other than prices"),
    ],
)
def test_problems_contain(wanted) -> None:
    find(problems(feasible=None), wanted, settings=SEARCH)


@pytest.mark.parametrize("flag", ["input", "output", "gradient", "random", "view", "compute_bound", "must_save"])
def test_graphs_contain(flag: str) -> None:
    assert int(getattr(find(graphs(), lambda graph: getattr(graph, flag).any(), settings=SEARCH), flag).sum()) > 0


def test_problems_shrink_to_two_values() -> None:
    shrinking = settings(SEARCH, phases=[Phase.generate, Phase.shrink])
    assert len(find(problems(), lambda problem: len(problem) > 1, settings=shrinking)) == 2
