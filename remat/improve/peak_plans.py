"""Collects the Pareto front of plans by simulated peak and cost.

The search does not depend on the budget. So a larger budget never gets a plan that costs more, a smaller one never gets
a plan with a larger peak, and one search answers many budgets of one problem. A search that ends early
(`remat.improve.progress`) keeps the plans that it found until then.

The candidates are, in this order:

1. The vertices of the convex hull of saved bytes and cost, and plans for budgets of saved bytes between them, more of
   them where peaks and costs lie far apart.
2. Changes of the plan with the smallest peak: of the values alive at the peak, one at a time is saved or dropped.
3. Minimum cuts at prices of memory that depend on the moment (`time_prices`). Such plans save much that is not alive at
   the peak.
4. Between neighbours that lie far apart: plans that follow one of them up to some value and the other one from there
   on, and plans that save what is costly to recompute, as long as the peak stays below that of the next neighbour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Protocol

import numpy as np

from remat.answer.choice import Choice
from remat.answer.solver import Solver
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_choice, default_saved, evenly_spaced
from remat.improve.legal_choices import LegalChoices
from remat.improve.pareto_front import pareto_front
from remat.improve.progress import OutOfTime, Progress, go_on, limit_for
from remat.improve.time_prices import AboveLimit, Liveness, TimeIndexedPrices
from remat.predict.in_flight import peak_in_flight
from remat.predict.memory import Simulator, Timeline
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.solve import solve

# Plans for this many evenly spaced budgets of saved bytes are sought, besides the vertices.
_SAMPLES = 8
# Further budgets, each between the two neighbours that span the largest rectangle of peak and cost.
_BETWEEN = 10
# At most this many values alive at the smallest peak are saved or dropped: 2 to 5 ms each with 2,500 values.
_MOVES = 200
# The number of prices of a byte to cut at, and a factor: they go from the smallest slope between two plans, divided by
# the factor, to the largest slope, times the factor.
_PRICES, _WIDER = 32, 4
# How fast a price falls where less is alive than at the peak (`TimeIndexedPrices.priced`): each finds other plans.
_FOCUS = (24, 12, 6, 3)
# The number of times to look between neighbours, and the number of pairs, those with the largest rectangles first.
_ROUNDS, _GAPS = 2, 30
# The number of pieces into which two neighbours are cut to be joined, and of attempts to save more in one of them.
_PIECES, _SAVES = 6, 8


@dataclass(frozen=True, eq=False)
class PeakPlan:
    """Holds a legal choice with its cost and its simulated peak.

    Attributes:
        choice: a choice over the values of the problem.
        cost: its cost in the problem's unit.
        peak_bytes: its peak by `remat.predict.memory.simulator`; in `remat.improve.step_search`, that of the compiled
            step.
    """

    choice: Choice
    cost: int
    peak_bytes: int


class Memory(Protocol):
    """Predicts the memory of one call, by values or by kernels."""

    def peak(self, saved: BoolArray, /) -> int: ...

    def timeline(self, saved: BoolArray, /) -> Timeline: ...


class PeakPlans:
    """Holds the plans that are found for one problem of one graph; the search begins when the first plan is asked for.

    The arguments are those of `remat.improve.peak_search.fit_peak`. All peaks are those of `in_flight` calls together.
    """

    def __init__(
        self,
        graph: Graph,
        problem: Problem,
        solver: Solver,
        time_limit_s: float | None = None,
        progress: Progress | None = None,
        in_flight: int = 1,
    ) -> None:
        self.graph, self.problem, self.solver, self.time_limit_s = graph, problem, solver, time_limit_s
        self.in_flight = in_flight
        self._progress, self._looked_at = progress, 0
        self._simulated_plans: list[PeakPlan] = []  # by simulation
        self._simulated_peaks: dict[bytes, int] = {}
        self._simulator = Simulator(graph)
        self._hull = Hull(problem, flow_solver())
        self._clock = TimeIndexedPrices(self._simulator, problem)
        self.legal = LegalChoices(problem)

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the cheapest plan found with a peak of at most `limit_bytes`; None if there is none."""
        if self.cheapest.peak_bytes <= limit_bytes:
            return self.cheapest
        return max(
            (p for p in self.front if p.peak_bytes <= limit_bytes), key=lambda plan: plan.peak_bytes, default=None
        )

    def next_within(self, limit_bytes: int, tighter_bytes: int, tried: Sequence[PeakPlan]) -> PeakPlan | None:
        """Returns the best plan within a tighter limit."""
        del limit_bytes, tried
        return self.within(tighter_bytes)

    @cached_property
    def cheapest(self) -> PeakPlan:
        """Returns the cheaper one of the minimum cut and the plan that saves all it may; the lower peak breaks ties.

        Of equally cheap plans the cut saves the fewest bytes, but recomputing what is free can take more memory.
        """
        everything = self.legal.saving(self.graph.in_forward[self.graph.plannable])
        candidates = map(self._simulated, (self._hull.cheapest.choice, everything))
        return min(candidates, key=lambda plan: (plan.cost, plan.peak_bytes))

    @cached_property
    def default_peak_bytes(self) -> int:
        """Returns the simulated peak of PyTorch's default plan, or that of the cheapest plan if there is none."""
        saved = default_saved(self.graph)
        return self.cheapest.peak_bytes if saved is None else self.peak_by(self._simulator, saved)

    @cached_property
    def default(self) -> PeakPlan:
        """Returns a legal plan that saves what PyTorch's default saves, or the cheapest plan if there is none."""
        choice = default_choice(self.graph, self.problem)
        return self.cheapest if choice is None else self._simulated(choice)

    def at_prices_of(self, problem: Problem) -> PeakPlans:
        """Returns the plans for the same graph at the prices of another problem."""
        return PeakPlans(self.graph, problem, self.solver, self.time_limit_s, None, self.in_flight)

    @property
    def least_saved_bytes(self) -> int:
        """Returns the fewest bytes that any plan saves."""
        return self._hull.smallest.saved_bytes

    @property
    def smallest(self) -> PeakPlan:
        """Returns the plan with the smallest peak found; it is not proven that no plan has a smaller one."""
        return self.front[0]

    @cached_property
    def from_saved_budgets(self) -> tuple[PeakPlan, ...]:
        """Returns the Pareto front of the hull vertices and of plans for a few budgets of saved bytes."""
        with suppress(OutOfTime):
            return tuple(_front([self._simulated(self.cheapest.choice)], self._vertices(), self._samples()))
        return self._front_so_far()

    @cached_property
    def lowest(self) -> PeakPlan:
        """Returns a plan whose peak is mostly the smallest of `front`; finding it takes a third of the time."""
        with suppress(OutOfTime):
            start = self.from_saved_budgets[0]
            lowest = min(self._with_less_peak(start), key=_by_peak, default=start)
            return min(self._saving_more(lowest, lowest.peak_bytes, _MOVES), key=_by_peak, default=lowest)
        return self._front_so_far()[0]

    @cached_property
    def front(self) -> tuple[PeakPlan, ...]:
        """Returns the Pareto front of all candidates, from the smallest simulated peak to the lowest cost."""
        with suppress(OutOfTime):
            return self._whole_front()
        return self._front_so_far()

    def _whole_front(self) -> tuple[PeakPlan, ...]:
        plans = _front(self.from_saved_budgets, self._between_budgets([*self.from_saved_budgets]))
        plans = _front(plans, self._with_less_peak(plans[0]))
        plans = _front(plans, self._saving_more(plans[0], plans[0].peak_bytes, _MOVES))
        plans = _front(plans, self._at_prices(self.from_saved_budgets))
        for _ in range(_ROUNDS):
            for between in (self._joined, self._filled):
                gaps = sorted(pairwise(plans), key=_rectangle, reverse=True)[:_GAPS]
                plans = _front(plans, *(between(left, right) for left, right in gaps))
        return tuple(plans)

    def _front_so_far(self) -> tuple[PeakPlan, ...]:
        return tuple(_front([self.cheapest], self._simulated_plans))

    def _vertices(self) -> list[PeakPlan]:
        edges = self._hull.edges()
        vertices = [edges[0].left, *(edge.right for edge in edges)] if edges else [self._hull.cheapest]
        return [self._simulated(vertex.choice) for vertex in vertices]

    def _samples(self) -> Iterable[PeakPlan]:
        least, most = self._hull.smallest.saved_bytes, self._hull.cheapest.saved_bytes
        plans = map(self._within_saved_bytes, evenly_spaced(least, most, _SAMPLES))
        return (plan for plan in plans if plan is not None)

    def _between_budgets(self, plans: list[PeakPlan]) -> list[PeakPlan]:
        tried, new_plans = set[int](), list[PeakPlan]()
        for _ in range(_BETWEEN):
            budgets = {
                _rectangle(neighbours): budget
                for neighbours in pairwise(plans)
                if (budget := sum(plan.choice.saved_bytes(self.problem) for plan in neighbours) // 2) not in tried
            }
            if not budgets:
                break
            tried.add(budget := budgets[max(budgets)])
            if (plan := self._within_saved_bytes(budget)) is not None:
                new_plans.append(plan)
                plans = _front(plans, [plan])
        return new_plans

    def _with_less_peak(self, plan: PeakPlan) -> list[PeakPlan]:
        """Saves or drops values alive at the peak, and goes on from the best plan as long as the peak falls."""
        new_plans, position = list[PeakPlan](), np.arange(len(self.problem))
        while True:
            timeline = self._simulator.timeline(self.graph.for_all_values(plan.choice.saved))
            moves = [self.problem.index[t.name] for t in timeline.peak_tensors if t.name in self.problem.index]
            changed = [self.legal.saving(plan.choice.saved ^ (position == v)) for v in moves[:_MOVES]]
            tried = [self._simulated(choice) for choice in changed if choice.key != plan.choice.key]
            new_plans += tried
            better = min(tried, key=_by_peak, default=plan)
            if better.peak_bytes >= plan.peak_bytes:
                return new_plans
            plan = better

    def _at_prices(self, plans: Sequence[PeakPlan]) -> Iterator[PeakPlan]:
        slopes = [(left.cost - right.cost) / (right.peak_bytes - left.peak_bytes) for left, right in pairwise(plans)]
        if not slopes:
            return
        # From cheap to dear memory; at each moment it is priced by what the last plan has alive there.
        plan = plans[-1]
        for byte in np.geomspace(min(slopes) / _WIDER, max(slopes) * _WIDER, _PRICES).tolist():
            for focus in _FOCUS:
                moments = self._clock.moments(self.graph.for_all_values(plan.choice.saved))
                yield (plan := self._simulated(self.cut_at_prices(moments, byte, focus)))

    def _joined(self, left: PeakPlan, right: PeakPlan) -> list[PeakPlan]:
        go_on()
        saved = left.choice.saved, right.choice.saved
        differences, position = np.flatnonzero(saved[0] != saved[1]), np.arange(len(self.problem))
        places = np.unique(differences[evenly_spaced(0, len(differences) - 1, _PIECES + 1)[1:-1]]).tolist()
        pairs = [(at, pair) for at in places for pair in (saved, saved[::-1])]
        return [self._simulated(self.legal.saving(np.where(position < at, *pair))) for at, pair in pairs]

    def _filled(self, left: PeakPlan, right: PeakPlan) -> list[PeakPlan]:
        return self._saving_more(left, right.peak_bytes - 1, _SAVES)

    def _saving_more(self, plan: PeakPlan, limit_bytes: int, moves: int) -> list[PeakPlan]:
        """Saves recomputed values, the costliest per byte first, as long as the peak stays within the limit."""
        new_plans: list[PeakPlan] = []
        recomputed, size = plan.choice.recomputed, np.maximum(self.problem.save_bytes, 1)
        costliest = np.argsort(-np.where(recomputed, self.problem.recompute_cost / size, -1), kind="stable")
        at, count, last = 0, 1, int(recomputed.sum())
        for _ in range(moves):
            go_on()
            values = costliest[at : min(at + count, last)]
            if not len(values):
                break
            other = self._simulated(self.legal.also_saving(plan.choice, values))
            if other.peak_bytes <= limit_bytes and other.cost < plan.cost:
                new_plans.append(plan := other)
                at, count = at + count, 2 * count
            elif count > 1:
                count //= 2
            else:
                at += 1
        return new_plans

    def saving_more(self, choice: Choice, factor: float) -> Choice | None:
        """Saves what is costly to recompute as long as the simulated peak rises by no more than a factor.

        Returns the cheapest such choice; None if nothing more can be saved.
        """
        plan = self._simulated(choice)
        more = self._saving_more(plan, int(plan.peak_bytes * factor), _MOVES)
        return more[-1].choice if more else None

    def moments(self, choice: Choice, step: Timeline) -> Liveness:
        """Computes the live ranges under a choice, and the bytes alive in its compiled step."""
        return self._clock.moments(self.graph.for_all_values(choice.saved), step)

    def above_limit(self, moments: Liveness, limit_bytes: int, most: int) -> AboveLimit:
        """Computes what is alive above a limit, and could be absent then (`TimeIndexedPrices.above_limit`)."""
        return self._clock.above_limit(moments, limit_bytes, most)

    def after(self, moments: Liveness, before: Choice, after: Choice) -> Liveness:
        """Estimates the bytes alive after a change of a choice (`TimeIndexedPrices.after`)."""
        return self._clock.after(moments, before, after)

    def cut_at_prices(self, moments: Liveness, byte: float, focus: float) -> Choice:
        """Returns the minimum cut at the prices of memory that `TimeIndexedPrices.priced` computes."""
        go_on()
        return self._hull.solver.minimum_cut(self._clock.priced(moments, byte, focus)).choice

    def within_saved_bytes(self, budget_bytes: int) -> Choice | None:
        """Returns the solver's choice for a budget of saved bytes; None if it finds none within its time limit.

        Raises:
            OutOfTime: the search is over (`remat.improve.progress`).
        """
        go_on()
        problem = replace(self.problem, budget_bytes=budget_bytes)
        plan = solve(problem, self.solver, time_limit_s=limit_for(self.solver, self.time_limit_s), throw=False).plan
        return None if plan is None else Choice.from_plan(self.problem, plan)

    def _within_saved_bytes(self, budget_bytes: int) -> PeakPlan | None:
        choice = self.within_saved_bytes(budget_bytes)
        return None if choice is None else self._simulated(choice)

    def _simulated(self, choice: Choice) -> PeakPlan:
        self._simulated_plans.append(plan := self.record(choice, self.simulated_peak(choice)))
        return plan

    def simulated_peak(self, choice: Choice) -> int:
        """Simulates the peak in bytes under a choice, by values."""
        if choice.key not in self._simulated_peaks:
            peak_bytes = self.peak_by(self._simulator, self.graph.for_all_values(choice.saved))
            self._simulated_peaks[choice.key] = peak_bytes
        return self._simulated_peaks[choice.key]

    def peak_by(self, memory: Memory, saved: BoolArray) -> int:
        """Predicts the peak in bytes of `in_flight` calls under the plan that saves these values, a mask (n,)."""
        if self.in_flight == 1:
            return memory.peak(saved)  # a simulation is twice as fast as its timeline
        return peak_in_flight(self.graph, memory.timeline(saved), self.in_flight)

    def record(self, choice: Choice, peak_bytes: int) -> PeakPlan:
        """Counts a plan whose peak is now known, reports the progress, and returns the plan."""
        plan = PeakPlan(choice, choice.cost(self.problem), peak_bytes)
        self._looked_at += 1
        if self._progress is not None:
            self._progress(self._looked_at, (plan.peak_bytes, plan.cost))
        return plan


def _by_peak(plan: PeakPlan) -> tuple[int, int]:
    return plan.peak_bytes, plan.cost


def _rectangle(neighbours: tuple[PeakPlan, PeakPlan]) -> int:
    left, right = neighbours
    return (left.cost - right.cost) * (right.peak_bytes - left.peak_bytes)


def _front(*plans: Iterable[PeakPlan]) -> list[PeakPlan]:
    return pareto_front(chain.from_iterable(plans), key=_by_peak)
