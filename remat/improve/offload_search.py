"""Searches for the plan that adds least to a step where values may wait on the host, with a proven lower bound.

The time that copies add is no sum over values: copies are hidden behind kernels until there are too many
(`remat.predict.offloading`). But it is the largest of many sums. Take any moment of the forward pass: what is written
from then on is copied later, so the pass takes at least the time up to this moment plus all these copies. For the
backward pass there are such sums, too. An average of sums is again a sum over values, so a minimum cut finds the plan
for which it is least; and no plan takes less time than that. This makes a game of two players: one chooses a plan, the
other chooses the weights of the moments in the average.

1. Minimum cuts find the plans that are best for the present average: those next to the budget. A flow proves a bound.
2. These plans are simulated. The moment with the largest sum for each plan joins the moments.
3. The average is chosen anew: the one under which the best mixture of all plans so far takes longest.

The game ends when the bound comes close to the value of this mixture (the double oracle algorithm; McMahan, Gordon and
Blum 2003). Then a solver fills the budget under the same prices, and under rules that offload only as much as can hide.
The result is the best plan simulated, with the highest bound.
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
from remat.predict.offloading.offload_timeline import Simulated
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.problem.offload import cannot_offload
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.solve import solve

NAME = "offload-search"

_ROUNDS = 24
# The game ends when bound and value differ by at most this part of the step.
_CLOSE = 1e-5
# The weights of an average are whole numbers that add up to this.
_SHARES = 1024
# This many moments of each pass, evenly spaced, are in the game from the start.
_TIMES = 24
# This many prices of copies are tried, from 0 to what a copy costs if nothing hides it.
_PRICES = 8
# How long all copies out may take in the last plans that are tried, as parts of the forward pass.
_RATIONS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.6)
# This many moves solve the game between the plans and moments so far: each takes some 20 us.
_PLAYS = 2000


_Mixture: TypeAlias = tuple[tuple[float, Choice], ...]
"""Plans, each with a weight; the weights sum to 1, and the weighted average of the saved bytes keeps the budget."""


@dataclass(frozen=True, eq=False)
class _Reach:
    """Holds for each value the positions in the graph between which the backward pass needs it, under every plan.

    Attributes:
        earliest: (n,) the backward pass recomputes the value here or later.
        latest: (n,) the backward pass reads the value, if it is saved, for the first time here or earlier.
    """

    earliest: IntArray
    latest: IntArray

    @classmethod
    def of(cls, clock: StepClock) -> _Reach:
        facts, graph = clock.facts, clock.graph
        n = len(graph)
        earliest: list[int] = facts.first_use.tolist()
        is_read: list[bool] = (facts.first_use <= n).tolist()
        latest = [when if read else -1 for when, read in zip(earliest, is_read, strict=True)]
        in_reverse: list[int] = np.flatnonzero(~facts.tangents)[::-1].tolist()
        for v in in_reverse:
            if v >= facts.first_tangent_reader and earliest[v] <= n:  # it runs at its own place
                earliest[v] = v
            last = v if v >= facts.first_tangent_reader else latest[v]
            for u in graph.operands[v]:
                earliest[u] = min(earliest[u], earliest[v])
                if not is_read[u]:
                    latest[u] = max(latest[u], last)
        late = np.array(latest, np.int64)
        return cls(np.array(earliest, np.int64), np.where(late < 0, n, late))


@dataclass(frozen=True, eq=False)
class Delays:
    """Holds moments of a step; each gives a lower bound on the length of its pass, and the game averages these bounds.

    Attributes:
        reach: where the backward pass needs each value.
        out: (r,) moments of the forward pass in nanoseconds; the bound of one adds the copies to the host of what is
            written from then on. A moment past the end of the pass gives the length of the pass without copies.
        back: (s,) positions of the backward pass; the bound of one adds the copies from the host of what is needed up
            to there, and the kernels from there on. -1 gives the length of the pass without copies.
    """

    clock: StepClock
    reach: _Reach
    out: IntArray
    back: IntArray

    @classmethod
    def of(cls, clock: StepClock) -> Delays:
        """Returns moments that are evenly spaced over both passes."""
        live: list[int] = np.flatnonzero(clock.facts.live).tolist()
        back = sorted({live[i] for i in evenly_spaced(0, len(live) - 1, _TIMES)}) if live else []
        out = evenly_spaced(0, clock.forward_end_ns + 1, _TIMES)
        return cls(clock, _Reach.of(clock), np.array(out, np.int64), np.array([-1, *back], np.int64))

    def with_delays_of(self, simulation: Simulated) -> Delays:
        """Returns these moments, and the one of each pass that delayed a simulated plan most."""
        out = self.out if simulation.late_out_ns is None else np.union1d(self.out, [simulation.late_out_ns])
        back = self.back if simulation.late_in_at is None else np.union1d(self.back, [simulation.late_in_at])
        return replace(self, out=out, back=back)

    @property
    def counted_values(self) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Returns three masks with a row for each moment: the values whose delays the bound of that moment adds up.

        They are (r, n) for copies to the host, (s, n) for copies from the host, and (s, n) for recomputed values.
        """
        out = self.clock.written_ns >= self.out[:, None]
        return out, self.reach.latest <= self.back[:, None], self.reach.earliest > self.back[:, None]

    @property
    def always_ns(self) -> tuple[IntArray, IntArray]:
        """Returns the nanoseconds, (r,) and (s,), that each moment counts in every plan."""
        later_ns = np.append(self.clock.backward_ns[::-1].cumsum()[::-1], 0)
        return np.minimum(self.out, self.clock.forward_end_ns), later_ns[np.maximum(self.back, 0)]

    def of_plan(self, recomputed: BoolArray, offloaded: BoolArray) -> tuple[IntArray, IntArray]:
        """Returns lower bounds in nanoseconds on a plan's forward (r,) and backward pass (s,)."""
        out, back, recomputes = self.counted_values
        copy_ns, recompute_ns = self.clock.copy_ns[offloaded], self.clock.again_ns[recomputed]
        forward_ns, backward_ns = self.always_ns
        return (
            forward_ns + (out[:, offloaded] * copy_ns).sum(1),
            backward_ns + (back[:, offloaded] * copy_ns).sum(1) + (recomputes[:, recomputed] * recompute_ns).sum(1),
        )

    def priced(self, problem: Problem, shares: tuple[IntArray, IntArray]) -> tuple[Problem, int]:
        """Returns the problem at averaged prices, and the time that every plan takes, both times `_SHARES`.

        Args:
            problem: with `Problem.offload`.
            shares: (r,) and (s,), integer weights of the moments; each array sums to `_SHARES`.
        """
        offload, plannable = problem.offload, self.clock.graph.plannable
        assert offload is not None
        out, back, recomputes = self.counted_values
        copies = (shares[0] @ out + shares[1] @ back) * self.clock.copy_ns
        prices = replace(
            problem,
            recompute_cost=frozen((self.clock.again_ns * (shares[1] @ recomputes))[plannable]),
            # Torch drops what leads to no gradient, so that it takes no time.
            needed=frozen(problem.needed & (self.clock.facts.first_use <= len(self.clock.graph))[plannable]),
            offload=replace(offload, cost=frozen(copies[plannable])),
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
        problem: the costs and bans of the clock's graph, with its budget, and with what can be offloaded. What
            `cannot_offload` bans stays on the device. `offload.cost` is the time of copies that do not overlap kernels.
        clock: the times of the step.
        solver: a solver of problems with a byte budget and with offloading.
        time_limit_s: seconds for each problem that `solver` solves, if it takes a limit.
        throw: whether to raise if there is no plan; if False, a solution without a plan is returned.

    Returns:
        a solution whose cost is `remat.predict.offloading.OffloadTimeline.added_ns`, by simulation. A flow proves that
        no plan within the budget adds less than its bound. It is optimal if the two are equal.

    Raises:
        Infeasible, LimitReached: see `remat.solve`.
        UnsupportedProblem: see `remat.solve`; or a `save_cost` of the problem is not 0, or its `offload` is None.
    """
    if problem.offload is None or any_set(problem.save_cost > 0):
        raise UnsupportedProblem("this search needs a problem with Problem.offload and with save_cost 0")
    check_features(features_of(problem), "the search for copies that kernels hide", ONE_BUDGET)
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
        plan = solve(prices, chosen, time_limit_s=time_limit_s, throw=False).plan
        if plan is None:
            return np.zeros(len(problem), np.bool_)
        search.consider(choice := Choice.from_plan(problem, plan))
        return choice.offloaded

    try_under(replace(problem, offload=None))
    worth = np.zeros(len(problem), np.int64)  # the highest price of copies, + 1, at which each value is offloaded
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
    """Holds the state of the game (see module): all plans and moments so far, the best plan, and the highest bound."""

    def __init__(self, problem: Problem, clock: StepClock) -> None:
        self.problem, self.clock, self.delays = problem, clock, Delays.of(clock)
        self.best: tuple[int, int, Choice] | None = None
        self.bound, self.certificate, self.prices = 0, None, problem
        self.mixtures: list[_Mixture] = []
        self.mixture_shares = np.zeros(0)

    def consider(self, choice: Choice) -> None:
        timeline = self._simulated(choice).timeline
        candidate = timeline.added_ns, timeline.saved_bytes, choice
        if self.best is None or candidate[:2] < self.best[:2]:
            self.best = candidate
        self.mixtures.append(((1.0, choice),))

    def round(self) -> bool:
        """Plays one round, and returns whether the bound is close to the value of the game."""
        shares, value_ns = self._worst_average()
        prices, always_ns = self.delays.priced(self.problem, shares)
        weight, certificate, mixture = _at_budgets(prices)
        bound_ns = -(-(always_ns + weight) // _SHARES) - self.clock.compute_ns
        if bound_ns >= self.bound or self.certificate is None:
            self.bound, self.certificate, self.prices = max(bound_ns, self.bound), certificate, prices
        for _, choice in mixture:
            if choice.keeps_budget(self.problem):
                self.consider(choice)
            else:
                self._simulated(choice)
        if len(mixture) > 1 and min(part for part, _ in mixture) > 0:
            self.mixtures.append(mixture)
        return value_ns - self.clock.compute_ns - bound_ns <= _CLOSE * self.clock.compute_ns

    def _simulated(self, choice: Choice) -> Simulated:
        graph = self.clock.graph
        saved, offloaded = graph.for_all_values(choice.saved), graph.for_all_values(choice.offloaded)
        simulation = Simulated.of(self.clock, saved, offloaded)
        self.delays = self.delays.with_delays_of(simulation)
        return simulation

    def _worst_average(self) -> tuple[tuple[IntArray, IntArray], float]:
        """Finds the shares under which the best mixture of plans takes longest, and that time in nanoseconds.

        This is fictitious play (Brown 1951): in each turn, both players answer best to all moves of the other so far.
        """
        table = np.array([self._pass_times_ns(mixture) for mixture in self.mixtures], np.float64)
        split, (rows, columns) = len(self.delays.out), table.shape
        row_counts, row_sum = np.zeros(rows), np.zeros(columns)
        column_counts, column_sum = [np.zeros(split), np.zeros(columns - split)], np.zeros(rows)
        value_ns = np.inf
        for turn in range(1, _PLAYS + 1):
            row = int(column_sum.argmin())
            row_counts[row] += 1
            row_sum += table[row]
            value_ns = min(value_ns, (row_sum[:split].max() + row_sum[split:].max()) / turn)
            for counts, column, offset in (
                (column_counts[0], int(row_sum[:split].argmax()), 0),
                (column_counts[1], int(row_sum[split:].argmax()), split),
            ):
                counts[column] += 1
                column_sum += table[:, offset + column]
        self.mixture_shares = row_counts / _PLAYS
        return (_whole_shares(column_counts[0]), _whole_shares(column_counts[1])), float(value_ns)

    def _pass_times_ns(self, mixture: _Mixture) -> NDArray[np.float64]:
        all_values, times_ns = self.clock.graph.for_all_values, np.zeros(len(self.delays.out) + len(self.delays.back))
        for part, choice in mixture:
            passes = self.delays.of_plan(all_values(choice.recomputed), all_values(choice.offloaded))
            times_ns += part * np.concatenate(passes)
        return times_ns

    def at_rations(self, worth: IntArray) -> Iterator[Problem]:
        """Yields problems in which copies are free, but only as many values can be offloaded as kernels may hide.

        A price makes all equal layers offload a value, or none. So values are ranked by how often the best mixture of
        plans offloads them, and in further problems by the highest price of copies at which they are offloaded.
        """
        problem, clock, offload = self.problem, self.clock, self.problem.offload
        assert offload is not None
        plannable = clock.graph.plannable
        copy_ns, written_ns = clock.copy_ns[plannable], clock.written_ns[plannable]
        hidden = replace(offload, cost=np.zeros_like(offload.cost))
        mixtures = zip(self.mixture_shares, self.mixtures, strict=False)  # the last round may have added some
        often = sum(share * part * choice.offloaded for share, mixture in mixtures for part, choice in mixture)
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
        assert self.best is not None
        cost, _, choice = self.best
        proven = cost == self.bound
        claim = Termination(TerminationReason.OPTIMAL if proven else TerminationReason.FEASIBLE, self.bound)
        plan = choice.plan(self.problem)
        return Solution(plan, cost, claim, self.certificate, NAME, seconds, is_proven=proven)


def _whole_shares(shares: NDArray[np.float64]) -> IntArray:
    """Rounds shares to whole numbers that add up to `_SHARES`."""
    ends: NDArray[np.float64] = np.rint(_SHARES * shares.cumsum() / shares.sum())
    return np.array(np.diff(ends, prepend=0.0), np.int64)


def _at_budgets(problem: Problem) -> tuple[int, FlowCertificate, _Mixture]:
    """Computes a lower bound on the cost within the budget, its proof, and a mixture of plans that costs as much."""
    solver = flow_solver()
    hull, budget = Hull(replace(problem, budget_bytes=None), solver), problem.budget_bytes
    edge = None if budget is None else hull.edge_at(budget)
    if edge is None or budget is None:
        flow = solver.minimum_cut(hull.problem)
        return flow.weight, flow.certificate, ((1.0, hull.cheapest.choice),)
    left, right = edge.left, edge.right
    part = (budget - left.saved_bytes) / (right.saved_bytes - left.saved_bytes)
    return edge.bound(budget), edge.certificate, ((1 - part, left.choice), (part, right.choice))
