"""The fastest plan whose peak memory fits a budget: a search, with a proven bound.

Peak memory is no sum over saved values: what is recomputed is alive for a while, too, so that saving
less may take more. No `Problem` can state that. But at any one step what is saved, and not read yet,
is alive beside what every plan needs there. That is a byte budget: a *relaxation*, whose bound holds
for every plan with a peak that fits. The search walks the frontier of saved bytes and cost, simulates each
plan (`remat.memory`), and then saves more, value by value, where the peak has room.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.arrays import BoolArray, IntArray
from remat.budget import flow_solver
from remat.certify import certify
from remat.errors import Infeasible, LimitReached, UnsupportedProblem
from remat.feasibility import check_feasible
from remat.graph import Graph
from remat.hull import Hull
from remat.memory import Simulator, WorkingSet, lower_bound
from remat.memory.bound import Floor
from remat.memory.facts import Storages
from remat.plan import Plan, completed
from remat.problem import Problem
from remat.registry import DEFAULT_BUDGET_SOLVER, find_solver
from remat.report import human_bytes
from remat.sizes import evenly_spaced
from remat.solution import Reason, Solution, Termination
from remat.solve import solve
from remat.solver import Solver

NAME = "peak-search"

_STEPS = 12
"""Halvings between two vertices of which one fits: to a four-thousandth of their distance."""

_SAMPLES = 32
"""Budgets to look at where no vertex fits."""

_MOVES = 200
"""Values to try to save, or to drop, when a plan is improved: 1 to 5 ms each with 2,500 values."""


def relaxation(graph: Graph, problem: Problem, limit_bytes: int) -> Problem:
    """A problem with a byte budget that every plan with a peak of at most `limit_bytes` solves.

    At any one step, what is alive is at least what every plan needs there, and what is saved and
    cannot have been read yet. Of all steps this takes the one where that is most under the cheapest
    plan. A plan may save a view alone, so only the value that owns a storage counts.
    """
    facts = Storages.of(graph)
    dead = facts.tangents & facts.computed & ~facts.live
    if dead.any():  # torch never computes it, so it drops saved values that only this would read
        return replace(problem, budget_bytes=None)
    floor, ours = Floor.of(facts), _ours(graph)
    owner = graph.base == np.arange(len(graph))
    size = np.where(owner & ~floor.held & ~facts.foreign, graph.bytes, 0)
    saved = np.zeros(len(graph), np.bool_)
    saved[ours[flow_solver().minimum_cut(replace(problem, budget_bytes=None)).saved]] = True
    step = _tightest(facts, floor, np.where(saved, size, 0))
    counted = np.where(floor.first_read > step, size, 0)
    budget = max(limit_bytes - int(floor.bytes[len(graph) + step]), 0)
    return replace(problem, save_bytes=counted[ours], budget_bytes=budget)


def _tightest(facts: Storages, floor: Floor, saved_bytes: IntArray) -> int:
    """The position of the operator of the backward pass with the most bytes alive; -1 for its start."""
    n = len(facts)
    unread = np.zeros(n + 2, np.int64)
    np.add.at(unread, floor.first_read, saved_bytes)
    after = unread[::-1].cumsum()[::-1]  # at i: what is first read at i or later
    alive = floor.bytes[n - 1 : 2 * n] + after[: n + 1]
    runs = np.concatenate([[True], facts.live])
    return int(np.where(runs, alive, -1).argmax()) - 1


def fit_peak(
    graph: Graph,
    problem: Problem,
    limit_bytes: int,
    solver: str | Solver = DEFAULT_BUDGET_SOLVER,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
) -> Solution:
    """The fastest plan found whose simulated peak is at most `limit_bytes`.

    Args:
        graph: the joint graph.
        problem: its costs and bans, without a budget.
        limit_bytes: of `remat.memory.simulate(graph, plan).peak_bytes`.
        solver: who looks for plans between the vertices of the frontier; takes byte budgets.
        time_limit_s: for each budget that `solver` solves, if it takes a limit.
        throw: raise if no plan is found; if False, return a solution without one.

    Returns:
        a solution of `relaxation(graph, problem, limit_bytes)`, certified as one. It is optimal if
        its cost is the relaxation's bound.

    Raises:
        Infeasible: the bans leave no plan; or the message names the operator that needs more, whatever the
            plan, and its tensors.
        LimitReached: the search found no plan that fits, though there may be one.
        UnsupportedProblem: the problem has a budget, too; or `solver` takes none, or no time limit.
    """
    if problem.budget_bytes is not None:
        raise UnsupportedProblem(
            f"a limit on peak memory cannot be combined with a budget of saved bytes ({problem.budget_bytes}); "
            f"keep one of them"
        )
    start, chosen = time.perf_counter(), find_solver(solver)
    chosen.accept(replace(problem, budget_bytes=0), time_limit_s=time_limit_s)
    try:
        least = _possible(graph, problem, limit_bytes)
        relaxed = relaxation(graph, problem, limit_bytes)
        bound = _bounded(relaxed, limit_bytes)
    except Infeasible as conflict:
        if throw:
            raise
        claim = Termination(Reason.INFEASIBLE, detail=str(conflict))
        return Solution(None, None, claim, None, NAME, is_proven=True)
    search = _Search(graph, problem, chosen, time_limit_s)
    best = search.fastest_within(limit_bytes)
    if best is None:
        detail = _not_found(limit_bytes, search.smallest.peak_bytes, least.bytes)
        if throw:
            raise LimitReached(f"{detail}; raise the budget")
        return Solution(None, None, Termination(Reason.GAVE_UP, detail=detail), None, NAME)
    plan = Plan.of(problem, best.saved, best.recomputed)
    reason = Reason.OPTIMAL if best.cost == bound.bound else Reason.FEASIBLE
    claim, took_s = Termination(reason, bound.bound), time.perf_counter() - start
    solution = Solution(plan, best.cost, claim, bound.certificate, NAME, took_s)
    return replace(solution, is_proven=certify(relaxed, solution))


def _possible(graph: Graph, problem: Problem, limit_bytes: int) -> WorkingSet:
    """What no plan can do without. Raises `Infeasible` if that is too much, or if the bans leave no plan."""
    check_feasible(problem)
    least = lower_bound(graph)
    if least.bytes > limit_bytes:
        raise Infeasible(f"no plan has a peak of at most {limit_bytes} bytes: {least}\nRaise the budget.")
    return least


def _bounded(relaxed: Problem, limit_bytes: int) -> Solution:
    try:
        return solve(relaxed, DEFAULT_BUDGET_SOLVER)
    except Infeasible as conflict:
        raise Infeasible(
            f"no plan has a peak of at most {limit_bytes} bytes. At the tightest step, beside what every plan holds, "
            f"{conflict}"
        ) from None


def _not_found(limit_bytes: int, smallest_bytes: int, least_bytes: int) -> str:
    return (
        f"no plan was found with a peak of at most {limit_bytes} bytes. The smallest found is {smallest_bytes} "
        f"({human_bytes(smallest_bytes)}), and none is below {least_bytes} ({human_bytes(least_bytes)})"
    )


def peak_range(graph: Graph, problem: Problem) -> tuple[int, int]:
    """The smallest peak that the search finds, and that of the plan that costs least, in bytes.

    It is not proven that there is no smaller one; see `remat.memory.lower_bound`.
    """
    search = _Search(graph, problem, find_solver(DEFAULT_BUDGET_SOLVER))
    return search.smallest.peak_bytes, search.cheapest.peak_bytes


@dataclass(frozen=True, eq=False)
class _Found:
    saved: BoolArray
    recomputed: BoolArray
    cost: int
    peak_bytes: int


class _Search:
    """Plans of one problem, each with its peak."""

    def __init__(
        self,
        graph: Graph,
        problem: Problem,
        solver: Solver,
        time_limit_s: float | None = None,
    ) -> None:
        self.graph, self.problem, self.solver, self.time_limit_s = graph, problem, solver, time_limit_s
        self._ours = _ours(graph)
        self._simulator = Simulator(graph)
        self._hull = Hull(problem, flow_solver())
        self.cheapest = self._simulated(self._hull.cheapest.saved, self._hull.cheapest.recomputed)

    def fastest_within(self, limit_bytes: int) -> _Found | None:
        """The cheapest plan found with a peak within the limit, if any."""
        if self.cheapest.peak_bytes <= limit_bytes:
            return self.cheapest
        best = _cheapest(self._walk(limit_bytes), limit_bytes) or _cheapest([self.smallest], limit_bytes)
        return best and self._saving_more(best, limit_bytes)

    @cached_property
    def smallest(self) -> _Found:
        """The plan with the smallest peak found."""
        smallest = min([*self._vertices, *self._samples], key=lambda found: (found.peak_bytes, found.cost))
        while (better := self._with_less_peak(smallest)) is not None:
            smallest = better
        return smallest

    @cached_property
    def _vertices(self) -> list[_Found]:
        """The hull, from the fewest bytes to the lowest cost."""
        edges = self._hull.edges()
        vertices = [edges[0].left, *(edge.right for edge in edges)] if edges else [self._hull.cheapest]
        return [self._simulated(vertex.saved, vertex.recomputed) for vertex in vertices]

    def _walk(self, limit_bytes: int) -> Iterator[_Found]:
        """The vertices, and what lies between the cheapest one that fits and its neighbour."""
        vertices = self._vertices
        yield from vertices
        fitting = [i for i, found in enumerate(vertices) if found.peak_bytes <= limit_bytes]
        if not fitting:
            yield from self._samples
            return
        low, high = (self._saved_bytes(vertices[i]) for i in (fitting[-1], fitting[-1] + 1))
        for _ in range(_STEPS):
            if high - low <= 1:
                return
            found = self._within((low + high) // 2)
            if found is None:
                return
            yield found
            if found.peak_bytes <= limit_bytes:
                low = (low + high) // 2
            else:
                high = (low + high) // 2

    @cached_property
    def _samples(self) -> list[_Found]:
        """Plans for budgets from the fewest bytes to those of the lowest cost."""
        least, most = self._hull.smallest.saved_bytes, self._hull.cheapest.saved_bytes
        found = map(self._within, evenly_spaced(least, most, _SAMPLES))
        return [plan for plan in found if plan is not None]

    def _saving_more(self, best: _Found, limit_bytes: int) -> _Found:
        """Saves what is recomputed, the costliest first, as long as the peak fits."""
        costliest = np.argsort(-np.where(best.recomputed, self.problem.recompute_cost, -1), kind="stable")
        for v in costliest[: min(_MOVES, int(best.recomputed.sum()))].tolist():
            found = self._changed(best, v) if best.recomputed[v] else None
            if found and found.peak_bytes <= limit_bytes and found.cost < best.cost:
                best = found
        return best

    def _with_less_peak(self, found: _Found) -> _Found | None:
        """Saves or drops one of the storages that make the peak; None if none of it helps."""
        timeline = self._simulator.timeline(self._over_graph(found.saved))
        moves = [self.problem.index[t.name] for t in timeline.peak_tensors if t.name in self.problem.index]
        changed = (self._changed(found, v) for v in moves[:_MOVES])
        better = [other for other in changed if other and other.peak_bytes < found.peak_bytes]
        return min(better, key=lambda other: (other.peak_bytes, other.cost), default=None)

    def _changed(self, found: _Found, v: int) -> _Found | None:
        """The plan that decides otherwise about a value; None if it is not legal."""
        wanted = found.saved.copy()
        wanted[v] = not wanted[v]
        saved, recomputed = completed(self.problem, wanted)
        if bool((saved & self.problem.cannot_save.mask | recomputed & self.problem.cannot_recompute.mask).any()):
            return None
        return self._simulated(saved, recomputed)

    def _within(self, budget_bytes: int) -> _Found | None:
        """The plan of the solver for a budget of saved bytes; None if it finds none within its time."""
        problem = replace(self.problem, budget_bytes=budget_bytes)
        plan = solve(problem, self.solver, time_limit_s=self.time_limit_s, throw=False).plan
        return None if plan is None else self._simulated(*plan.masks(self.problem))

    def _simulated(self, saved: BoolArray, recomputed: BoolArray) -> _Found:
        peak = self._simulator.peak(self._over_graph(saved))
        return _Found(saved, recomputed, self.problem.cost(saved, recomputed), peak)

    def _over_graph(self, saved: BoolArray) -> BoolArray:
        mask = np.zeros(len(self.graph), np.bool_)
        mask[self._ours[saved]] = True
        return mask

    def _saved_bytes(self, found: _Found) -> int:
        return int(self.problem.save_bytes[found.saved].sum())


def _ours(graph: Graph) -> IntArray:
    """The values of the graph that a problem is about: its v-th value is the graph's `_ours(graph)[v]`-th."""
    return np.flatnonzero(~graph.in_tangents)


def _cheapest(plans: Iterable[_Found], limit_bytes: int) -> _Found | None:
    fitting = (found for found in plans if found.peak_bytes <= limit_bytes)
    return min(fitting, key=lambda found: (found.cost, found.peak_bytes), default=None)
