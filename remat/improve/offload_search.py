"""Searches for the plan that adds least to a step where values may wait on the host, with a proven bound.

What copies add is no sum: they hide behind kernels until there are too many (`remat.predict.offloading`). But it is the
largest of many sums. The forward pass ends with its last kernel, or with its last copy, which no copy of what is
written from some time on can leave behind; so whatever that time is, the pass takes at least the time, and all those
copies. The backward pass is alike. An average of such sums is a sum over values again, so a minimum cut finds the plan
for which it is least; and no plan takes less time than that. So it is a game between a plan, and the times that are
averaged:

1. The plans that are best for the present average are cut: the two next to the budget, and a flow is a bound.
2. They are simulated. What delays them most joins the times.
3. The average is chosen anew: that under which the best mixture of all plans so far takes most.

It ends when the bound has come up to what the average can reach (the double oracle algorithm; McMahan, Gordon and Blum
2003). Then a solver fills the budget under the same prices, and where only so much may be offloaded as can hide. The
best plan simulated, and the highest bound, are returned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat.answer.choice import Choice
from remat.answer.registry import QUICK_BUDGET_SOLVER, find_solver
from remat.answer.solution import FlowCertificate, Solution, Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import UnsupportedProblem
from remat.facts.columns import BoolArray, IntArray, any_set, frozen
from remat.improve.byte_budgets import evenly_spaced
from remat.predict.offloading.clock import StepClock
from remat.predict.offloading.timeline import Simulated
from remat.problem.offload import cannot_offload
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.solve import solve

NAME = "offload-search"

_ROUNDS = 24
_CLOSE = 1e-5
"""Of the step: bounds that are so near to what they can reach are as good as that."""

_SHARES = 1024
"""The times are averaged in whole shares of so many."""

_TIMES = 24
"""From how many times on, evenly spaced over each pass, copies are counted from the start."""

_PRICES = 8
"""Of copies that are tried, from 0 to what they cost if nothing hides them."""

_RATIONS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.6)
"""How long all copies out may take, beside the kernels of the forward pass, in the plans that are tried in the end."""

_PLAYS = 2000
"""Of the game between the plans and times that are known: each takes some 20 us."""


_Mixture: TypeAlias = tuple[tuple[float, Choice], ...]
"""Plans, each with its part: together they keep the budget on average."""


@dataclass(frozen=True, eq=False)
class _Reach:
    """Where the backward pass asks for each value, by any plan. Positions of the graph.

    Attributes:
        earliest: (n,) it recomputes the value here or later.
        latest: (n,) it reads the value, if that is kept, here or earlier for the first time.
    """

    earliest: IntArray
    latest: IntArray

    @classmethod
    def of(cls, clock: StepClock) -> _Reach:
        """Follows all uses, as if nothing were kept."""
        facts, graph = clock.facts, clock.graph
        n = len(graph)
        earliest: list[int] = facts.wanted_at.tolist()
        is_read: list[bool] = (facts.wanted_at <= n).tolist()
        latest = [when if read else -1 for when, read in zip(earliest, is_read, strict=True)]
        ours: list[int] = np.flatnonzero(~facts.tangents)[::-1].tolist()
        for v in ours:
            if v >= facts.turn and earliest[v] <= n:  # it runs at its own place
                earliest[v] = v
            last = v if v >= facts.turn else latest[v]
            for u in graph.operands[v]:
                earliest[u] = min(earliest[u], earliest[v])
                if not is_read[u]:
                    latest[u] = max(latest[u], last)
        late = np.array(latest, np.int64)
        return cls(np.array(earliest, np.int64), np.where(late < 0, n, late))


@dataclass(frozen=True, eq=False)
class Delays:
    """The times from which on copies are counted.

    Attributes:
        clock: of the step.
        reach: where the backward pass asks for values.
        out: (r,) copies of what is written from this time on; past the end of the pass, no copies.
        back: (s,) copies of what is needed up to this position, and the compute from there on; -1: no copies.
    """

    clock: StepClock
    reach: _Reach
    out: IntArray
    back: IntArray

    @classmethod
    def of(cls, clock: StepClock) -> Delays:
        """Begins with times that are evenly spaced."""
        live: list[int] = np.flatnonzero(clock.facts.live).tolist()
        back = sorted({live[i] for i in evenly_spaced(0, len(live) - 1, _TIMES)}) if live else []
        out = evenly_spaced(0, clock.forward_end_ns + 1, _TIMES)
        return cls(clock, _Reach.of(clock), np.array(out, np.int64), np.array([-1, *back], np.int64))

    def with_delays_of(self, simulation: Simulated) -> Delays:
        """These, and what delayed a plan."""
        out = self.out if simulation.late_out_ns is None else np.union1d(self.out, [simulation.late_out_ns])
        back = self.back if simulation.late_in_at is None else np.union1d(self.back, [simulation.late_in_at])
        return replace(self, out=out, back=back)

    @property
    def counted(self) -> tuple[BoolArray, BoolArray, BoolArray]:
        """(r, n) whose copies out, (s, n) whose copies in and (s, n) whose recompute count."""
        out = self.clock.written_ns >= self.out[:, None]
        return out, self.reach.latest <= self.back[:, None], self.reach.earliest > self.back[:, None]

    @property
    def always_ns(self) -> tuple[IntArray, IntArray]:
        """(r,) and (s,) what each counts whatever the plan."""
        after = np.append(self.clock.backward_ns[::-1].cumsum()[::-1], 0)
        return np.minimum(self.out, self.clock.forward_end_ns), after[np.maximum(self.back, 0)]

    def of_plan(self, recomputed: BoolArray, offloaded: BoolArray) -> tuple[IntArray, IntArray]:
        """(r,) and (s,) how long the two passes of a plan take at least."""
        out, back, again = self.counted
        copied, redone = self.clock.copy_ns[offloaded], self.clock.again_ns[recomputed]
        first, second = self.always_ns
        return (
            first + (out[:, offloaded] * copied).sum(1),
            second + (back[:, offloaded] * copied).sum(1) + (again[:, recomputed] * redone).sum(1),
        )

    def priced(self, problem: Problem, shares: tuple[IntArray, IntArray]) -> tuple[Problem, int]:
        """The problem whose prices are averages, times `_SHARES`; and what it costs beside, whatever the plan."""
        offload, ours = problem.offload, self.clock.graph.plannable
        assert offload is not None
        out, back, again = self.counted
        copies = (shares[0] @ out + shares[1] @ back) * self.clock.copy_ns
        prices = replace(
            problem,
            recompute_cost=frozen((self.clock.again_ns * (shares[1] @ again))[ours]),
            # What only leads to no gradient torch drops: it takes no time.
            needed=frozen(problem.needed & (self.clock.facts.wanted_at <= len(self.clock.graph))[ours]),
            offload=replace(offload, cost=frozen(copies[ours])),
        )
        return prices, sum(int(share @ always) for share, always in zip(shares, self.always_ns, strict=True))


def fit_offload(
    problem: Problem,
    clock: StepClock,
    solver: str | Solver = QUICK_BUDGET_SOLVER,
    *,
    time_limit_s: float | None = None,
    throw: bool = True,
) -> Solution:
    """Finds the plan within a budget that adds least to the step on a device with a host.

    Args:
        problem: of the clock's graph: its costs and bans, its budget, and what can be offloaded; of that, what
            `cannot_offload` bans stays on the device. `offload.cost` is of copies that nothing hides.
        clock: the times of the step.
        solver: takes byte budgets and offloading.
        time_limit_s: for each problem that `solver` solves, if it takes a limit.
        throw: raise if there is no plan; if False, return a solution without one.

    Returns:
        a solution whose cost is `remat.predict.offloading.OffloadTimeline.added_ns`, by simulation; its bound is below
        what any plan within the budget adds, by a flow. It is optimal where they are equal.

    Raises:
        Infeasible, LimitReached: see `remat.solve`.
        UnsupportedProblem: that, too; or saving costs something beside memory, or nothing can be offloaded.
    """
    if problem.offload is None or any_set(problem.save_cost > 0):
        raise UnsupportedProblem(
            "a search for what to offload takes problems with Problem.offload, in which saving on the device is free"
        )
    start, chosen = time.perf_counter(), find_solver(solver)
    banned = problem.offload.banned | cannot_offload(clock.graph).take(clock.graph.plannable)
    offload = replace(problem.offload, banned=banned)
    problem = replace(problem, offload=offload)
    first = solve(problem, chosen, time_limit_s=time_limit_s, throw=throw)
    if first.plan is None:
        return first
    search = _Search(problem, clock.priced(problem.recompute_cost))
    search.consider(Choice.from_plan(problem, first.plan))

    def try_under(prices: Problem) -> BoolArray:
        """Looks at the best plan; (n,) what it offloads."""
        plan = solve(prices, chosen, time_limit_s=time_limit_s, throw=False).plan
        if plan is None:
            return np.zeros(len(problem), np.bool_)
        search.consider(choice := Choice.from_plan(problem, plan))
        return choice.offloaded

    try_under(replace(problem, offload=None))
    worth = np.zeros(len(problem), np.int64)  # how dear the copies may be for which each value is still offloaded
    for price in range(_PRICES):
        cost = offload.cost * price // _PRICES
        away = try_under(replace(problem, offload=replace(offload, cost=cost)))
        worth[away] = price + 1
    for _ in range(_ROUNDS):
        if search.round():
            break
    for prices in (search.prices, *search.at_rations(worth)):
        try_under(prices)
    return search.solution(time.perf_counter() - start)


class _Search:
    """The game: the plans and the times that are known, the best plan, and the highest bound."""

    def __init__(self, problem: Problem, clock: StepClock) -> None:
        self.problem, self.clock, self.delays = problem, clock, Delays.of(clock)
        self.best: tuple[int, int, Choice] | None = None
        self.bound, self.certificate, self.prices = 0, None, problem
        self.mixtures: list[_Mixture] = []
        self.mixed: list[tuple[float, _Mixture]] = []

    def consider(self, choice: Choice) -> None:
        """Simulates a choice within the budget: it may be the best, and has its say in the game."""
        seen = self._simulated(choice)
        found = seen.timeline.added_ns, seen.timeline.saved_bytes, choice
        if self.best is None or found[:2] < self.best[:2]:
            self.best = found
        self.mixtures.append(((1.0, choice),))

    def round(self) -> bool:
        """Cuts under the prices that are worst for what is known; returns whether the bound has come up to these."""
        shares, value_ns = self._worst_average()
        prices, always = self.delays.priced(self.problem, shares)
        weight, certificate, mixture = _at_budgets(prices)
        least = -(-(always + weight) // _SHARES) - self.clock.compute_ns
        if least >= self.bound or self.certificate is None:
            self.bound, self.certificate, self.prices = max(least, self.bound), certificate, prices
        for _, choice in mixture:
            if choice.keeps_budget(self.problem):
                self.consider(choice)
            else:
                self._simulated(choice)
        if len(mixture) > 1 and min(part for part, _ in mixture) > 0:
            self.mixtures.append(mixture)
        return value_ns - self.clock.compute_ns - least <= _CLOSE * self.clock.compute_ns

    def _simulated(self, choice: Choice) -> Simulated:
        graph = self.clock.graph
        seen = Simulated.of(self.clock, graph.for_all_values(choice.saved), graph.for_all_values(choice.offloaded))
        self.delays = self.delays.with_delays_of(seen)
        return seen

    def _worst_average(self) -> tuple[tuple[IntArray, IntArray], float]:
        """Shares of the delays under which the best mixture of all known plans takes longest, and how long."""
        graph = self.clock.graph
        rows = [
            sum(
                part
                * np.concatenate(
                    self.delays.of_plan(graph.for_all_values(c.recomputed), graph.for_all_values(c.offloaded))
                )
                for part, c in mixture
            )
            for mixture in self.mixtures
        ]
        split = len(self.delays.out)
        table = np.array(rows, np.float64)
        plans, played = np.zeros(table.shape[1]), [np.zeros(split), np.zeros(table.shape[1] - split)]
        against, chosen = np.zeros(len(table)), np.zeros(len(table))
        best = np.inf
        for turn in range(1, _PLAYS + 1):
            plan = int(against.argmin())
            chosen[plan] += 1
            plans += table[plan]
            best = min(best, (plans[:split].max() + plans[split:].max()) / turn)
            for shares, column, offset in (
                (played[0], int(plans[:split].argmax()), 0),
                (played[1], int(plans[split:].argmax()), split),
            ):
                shares[column] += 1
                against += table[:, offset + column]
        self.mixed = list(zip(chosen / _PLAYS, self.mixtures, strict=True))
        return (_whole(played[0]), _whole(played[1])), float(best)

    def at_rations(self, worth: IntArray) -> Iterator[Problem]:
        """Problems in which only so much can be offloaded as may hide, for free; of what is worth as much, the first.

        Where layers are alike, a price has all of them offload a value, or none. What is worth more is what the best
        mixture of plans offloads more often; or, in other problems, what is offloaded for a higher price.
        """
        problem, clock, offload = self.problem, self.clock, self.problem.offload
        assert offload is not None
        ours = clock.graph.plannable
        copy_ns, written_ns = clock.copy_ns[ours], clock.written_ns[ours]
        hidden = replace(offload, cost=np.zeros_like(offload.cost))
        often = sum(share * part * choice.offloaded for share, mixture in self.mixed for part, choice in mixture)
        for rank in (np.round(often, 2), worth):
            order = np.lexsort((written_ns, -rank))
            order = order[rank[order] > 0]
            filled = copy_ns[order].cumsum() / max(clock.forward_end_ns, 1)
            for ration in _RATIONS:
                barred = np.ones(len(problem), np.bool_)
                barred[order[filled <= ration]] = False
                free = replace(hidden, banned=offload.banned.also(barred, "its copies would not hide"))
                yield replace(problem, offload=free)

    def solution(self, seconds: float) -> Solution:
        """The best plan, with the highest bound."""
        assert self.best is not None
        cost, _, choice = self.best
        proven = cost == self.bound
        claim = Termination(TerminationReason.OPTIMAL if proven else TerminationReason.FEASIBLE, self.bound)
        plan = choice.plan(self.problem)
        return Solution(plan, cost, claim, self.certificate, NAME, seconds, is_proven=proven)


def _whole(shares: NDArray[np.float64]) -> IntArray:
    """Shares as whole numbers that add up to `_SHARES`."""
    ends: NDArray[np.float64] = np.rint(_SHARES * shares.cumsum() / shares.sum())
    return np.array(np.diff(ends, prepend=0.0), np.int64)


def _at_budgets(problem: Problem) -> tuple[int, FlowCertificate, _Mixture]:
    """What all plans within the budget cost at least, with the proof, and a mixture of plans that costs so much."""
    solver = flow_solver()
    hull, budget = Hull(replace(problem, budget_bytes=None), solver), problem.budget_bytes
    edge = None if budget is None else hull.edge_at(budget)
    if edge is None or budget is None:
        flow = solver.minimum_cut(hull.problem)
        return flow.weight, flow.certificate, ((1.0, hull.cheapest.choice),)
    left, right = edge.left, edge.right
    part = (budget - left.saved_bytes) / (right.saved_bytes - left.saved_bytes)
    return edge.bound(budget), edge.certificate, ((1 - part, left.choice), (part, right.choice))
