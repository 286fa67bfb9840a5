"""Collects plans with their simulated peaks, of which none is beaten by another one in both peak and cost.

What is looked at depends on no budget. So whatever the budgets, a larger one never gets a plan that costs more,
nor one with a smaller peak; and many budgets of one problem are answered by one search. Only a search that is ended
early (`remat.improve.progress`) keeps less: what was found until then.

The search takes the vertices of the frontier of saved bytes and cost, and plans for budgets of saved bytes
between them, closer where peaks and costs lie far apart. Of the plan with the smallest peak it changes single values
that are alive there. Then it takes minimum cuts at prices of memory by the time at which it is taken
(`time_prices`): such plans save much that is not alive at the peak. And where two neighbours lie far apart,
it joins one up to some value with the other from there on, and saves what is costly to recompute, up to the next peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from remat.answer.choice import Choice
from remat.answer.solver import Solver
from remat.facts.columns import BoolArray, any_set
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan, evenly_spaced
from remat.improve.progress import OutOfTime, Progress, go_on, limit_for
from remat.improve.time_prices import TimeIndexedPrices
from remat.predict.memory import Simulator
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.solve import solve

_SAMPLES = 8
"""Budgets of saved bytes to look at, evenly spaced, besides the vertices."""

_BETWEEN = 10
"""Further ones, each between the two neighbours that span the largest rectangle of peak and cost."""

_MOVES = 200
"""Values to try to save or drop at once, near the smallest peak: 2 to 5 ms each with 2,500 values."""

_PRICES, _WIDER = 32, 4
"""Prices of a byte to cut at: from the least of the slopes between plans to the largest, and further by this factor."""

_FOCUS = (24, 12, 6, 3)
"""How sharply a price falls where less is alive than at the peak (`Clock.priced`): each finds other plans."""

_ROUNDS, _GAPS = 2, 30
"""How often to look between neighbours, and between how many of them, the largest rectangles first."""

_PIECES, _SAVES = 6, 8
"""Into how many pieces two neighbours are cut to be joined, and how many times to try to save more in the lower one."""


@dataclass(frozen=True, eq=False)
class PeakPlan:
    """A legal choice, simulated.

    Attributes:
        choice: over the values of the problem.
        cost: in the problem's unit.
        peak_bytes: of `remat.predict.memory.simulator`; in `remat.improve.step_plans`, of the compiled step.
    """

    choice: Choice
    cost: int
    peak_bytes: int


class PeakPlans:
    """Holds the plans that are found for one problem of one graph; it searches when it is first asked.

    Args:
        graph: the joint graph.
        problem: its costs and bans, without a budget.
        solver: takes byte budgets.
        time_limit_s: for each budget that `solver` solves.
        progress: called with the number of plans looked at so far; and of the last one the peak, in bytes, and the
            cost.
    """

    def __init__(
        self,
        graph: Graph,
        problem: Problem,
        solver: Solver,
        time_limit_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.graph, self.problem, self.solver, self.time_limit_s = graph, problem, solver, time_limit_s
        self._progress, self._looked_at = progress, 0
        self._found: list[PeakPlan] = []  # by simulation
        self._simulator = Simulator(graph)
        self._hull = Hull(problem, flow_solver())
        self._clock = TimeIndexedPrices(self._simulator, problem)

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the cheapest plan found with a peak of at most `limit_bytes`, if any."""
        if self.cheapest.peak_bytes <= limit_bytes:
            return self.cheapest
        return max(
            (p for p in self.front if p.peak_bytes <= limit_bytes), key=lambda plan: plan.peak_bytes, default=None
        )

    @cached_property
    def cheapest(self) -> PeakPlan:
        """The plan that costs least: of the minimum cut and saving whatever may be saved, the one with less peak.

        Recomputing what costs nothing can take memory, so that the cut, which saves the fewest bytes, may hold more.
        """
        found = [self._simulated(self._hull.cheapest.choice)]
        everything = self.graph.in_forward[self.graph.plannable] & ~self.problem.cannot_save.mask
        if (plan := self._legal(everything | self.problem.cannot_recompute.mask)) is not None:
            found.append(plan)
        return min(found, key=lambda plan: (plan.cost, plan.peak_bytes))

    @property
    def least_saved_bytes(self) -> int:
        """What every plan saves."""
        return self._hull.smallest.saved_bytes

    @cached_property
    def default(self) -> PeakPlan | None:
        """PyTorch's default plan, if it is legal here; where it saves a view, what owns the memory is saved."""
        if (plan := default_plan(self.graph)) is None:
            return None
        saved = np.zeros(len(self.graph), np.bool_)
        saved[self.graph.base[[self.graph.index[name] for name in plan.saved]]] = True
        return self._legal(saved[self.graph.plannable])

    @property
    def smallest(self) -> PeakPlan:
        """The plan with the smallest peak found. It is not proven that there is no smaller one."""
        return self.front[0]

    @cached_property
    def from_saved_budgets(self) -> tuple[PeakPlan, ...]:
        """Those of `front` that a few budgets of saved bytes give."""
        with suppress(OutOfTime):
            return tuple(_unbeaten([self._simulated(self.cheapest.choice), *self._vertices(), *self._samples()]))
        return self._so_far()

    @cached_property
    def lowest(self) -> PeakPlan:
        """A plan with mostly the smallest peak of `front`, in a third of its time."""
        with suppress(OutOfTime):
            low = min(
                self._with_less_peak(self.from_saved_budgets[0]), key=_by_peak, default=self.from_saved_budgets[0]
            )
            return min(self._saving_more(low, low.peak_bytes, _MOVES), key=_by_peak, default=low)
        return self._so_far()[0]

    @cached_property
    def front(self) -> tuple[PeakPlan, ...]:
        """The plans found, from the smallest simulated peak to the lowest cost."""
        with suppress(OutOfTime):
            return self._whole_front()
        return self._so_far()

    def _whole_front(self) -> tuple[PeakPlan, ...]:
        plans = _unbeaten([*self.from_saved_budgets, *self._between_budgets([*self.from_saved_budgets])])
        plans = _unbeaten([*plans, *self._with_less_peak(plans[0])])
        plans = _unbeaten([*plans, *self._saving_more(plans[0], plans[0].peak_bytes, _MOVES)])
        plans = _unbeaten([*plans, *self._at_prices(self.from_saved_budgets)])
        for _ in range(_ROUNDS):
            for between in (self._joined, self._filled):
                gaps = sorted(pairwise(plans), key=_rectangle, reverse=True)[:_GAPS]
                plans = _unbeaten([*plans, *chain.from_iterable(between(low, high) for low, high in gaps)])
        return tuple(plans)

    def _so_far(self) -> tuple[PeakPlan, ...]:
        return tuple(_unbeaten([self.cheapest, *self._found]))

    def _vertices(self) -> list[PeakPlan]:
        edges = self._hull.edges()
        vertices = [edges[0].left, *(edge.right for edge in edges)] if edges else [self._hull.cheapest]
        return [self._simulated(vertex.choice) for vertex in vertices]

    def _samples(self) -> Iterable[PeakPlan]:
        least, most = self._hull.smallest.saved_bytes, self._hull.cheapest.saved_bytes
        found = map(self.within_saved_budget, evenly_spaced(least, most, _SAMPLES))
        return (plan for plan in found if plan is not None)

    def _between_budgets(self, plans: list[PeakPlan]) -> list[PeakPlan]:
        tried, found = set[int](), list[PeakPlan]()
        for _ in range(_BETWEEN):
            budgets = {
                _rectangle((low, high)): budget
                for low, high in pairwise(plans)
                if (budget := sum(plan.choice.saved_bytes(self.problem) for plan in (low, high)) // 2) not in tried
            }
            if not budgets:
                break
            tried.add(budget := budgets[max(budgets)])
            if (plan := self.within_saved_budget(budget)) is not None:
                found.append(plan)
                plans = _unbeaten([*plans, plan])
        return found

    def _with_less_peak(self, plan: PeakPlan) -> list[PeakPlan]:
        """Saves or drops storages that make the peak, one after the other, as long as that helps."""
        found: list[PeakPlan] = []
        while True:
            timeline = self._simulator.timeline(self.graph.for_all_values(plan.choice.saved))
            moves = [self.problem.index[t.name] for t in timeline.peak_tensors if t.name in self.problem.index]
            tried = [other for v in moves[:_MOVES] if (other := self._changed(plan, v)) is not None]
            found += tried
            better = min(tried, key=_by_peak, default=plan)
            if better.peak_bytes >= plan.peak_bytes:
                return found
            plan = better

    def _at_prices(self, plans: Sequence[PeakPlan]) -> Iterator[PeakPlan]:
        """Cuts at prices of memory, from low to high: each is highest at the moments when the last plan takes most."""
        slopes = [(low.cost - high.cost) / (high.peak_bytes - low.peak_bytes) for low, high in pairwise(plans)]
        if not slopes:
            return
        plan = plans[-1]
        for byte in np.geomspace(min(slopes) / _WIDER, max(slopes) * _WIDER, _PRICES).tolist():
            for focus in _FOCUS:
                go_on()
                moments = self._clock.moments(self.graph.for_all_values(plan.choice.saved))
                cut = self._hull.solver.minimum_cut(self._clock.priced(moments, byte, focus))
                yield (plan := self._simulated(cut.choice))

    def _joined(self, low: PeakPlan, high: PeakPlan) -> list[PeakPlan]:
        go_on()
        saved = low.choice.saved, high.choice.saved
        differ, position = np.flatnonzero(saved[0] != saved[1]), np.arange(len(self.problem))
        places = np.unique(differ[evenly_spaced(0, len(differ) - 1, _PIECES + 1)[1:-1]]).tolist()
        found = [self._legal(np.where(position < at, *both)) for at in places for both in (saved, saved[::-1])]
        return [plan for plan in found if plan is not None]

    def _filled(self, low: PeakPlan, high: PeakPlan) -> list[PeakPlan]:
        return self._saving_more(low, high.peak_bytes - 1, _SAVES)

    def _saving_more(self, plan: PeakPlan, limit_bytes: int, moves: int) -> list[PeakPlan]:
        """Saves what is recomputed, the costliest first, where the peak stays within the limit: ever more at once."""
        found: list[PeakPlan] = []
        recomputed = plan.choice.recomputed
        costliest = np.argsort(-np.where(recomputed, self.problem.recompute_cost, -1), kind="stable")
        at, count, most = 0, 1, int(recomputed.sum())
        for _ in range(moves):
            go_on()
            values = costliest[at : min(at + count, most)]
            if not len(values):
                break
            wanted = plan.choice.saved.copy()
            wanted[values] |= plan.choice.recomputed[values]
            other = self._legal(wanted)
            if other is not None and other.peak_bytes <= limit_bytes and other.cost < plan.cost:
                found.append(plan := other)
                at, count = at + count, 2 * count
            elif count > 1:
                count //= 2
            else:
                at += 1
        return found

    def _changed(self, plan: PeakPlan, v: int) -> PeakPlan | None:
        go_on()
        wanted = plan.choice.saved.copy()
        wanted[v] = not wanted[v]
        return self._legal(wanted)

    def _legal(self, saved: BoolArray) -> PeakPlan | None:
        choice, problem = Choice.from_saved(self.problem, saved), self.problem
        if any_set(choice.saved & problem.cannot_save.mask | choice.recomputed & problem.cannot_recompute.mask):
            return None
        return self._simulated(choice)

    def within_saved_budget(self, budget_bytes: int) -> PeakPlan | None:
        """Returns the solver's plan for a budget of saved bytes; None if it finds none within its time.

        Raises:
            OutOfTime: the search is over (`remat.improve.progress`).
        """
        go_on()
        problem = replace(self.problem, budget_bytes=budget_bytes)
        plan = solve(problem, self.solver, time_limit_s=limit_for(self.solver, self.time_limit_s), throw=False).plan
        return None if plan is None else self._simulated(Choice.from_plan(self.problem, plan))

    def _simulated(self, choice: Choice) -> PeakPlan:
        self._found.append(plan := self.record(choice, self._simulator.peak(self.graph.for_all_values(choice.saved))))
        return plan

    def record(self, choice: Choice, peak_bytes: int) -> PeakPlan:
        """Counts a plan whose peak was found."""
        plan = PeakPlan(choice, choice.cost(self.problem), peak_bytes)
        self._looked_at += 1
        if self._progress is not None:
            self._progress(self._looked_at, (plan.peak_bytes, plan.cost))
        return plan


def _by_peak(plan: PeakPlan) -> tuple[int, int]:
    return plan.peak_bytes, plan.cost


def _rectangle(neighbours: tuple[PeakPlan, PeakPlan]) -> int:
    low, high = neighbours
    return (low.cost - high.cost) * (high.peak_bytes - low.peak_bytes)


def _unbeaten(plans: Iterable[PeakPlan]) -> list[PeakPlan]:
    """Sorts plans from the smallest peak to the lowest cost, and drops those with a cheaper one of no more peak."""
    kept: list[PeakPlan] = []
    for plan in sorted(plans, key=_by_peak):
        if not kept or plan.cost < kept[-1].cost:
            kept.append(plan)
    return kept
