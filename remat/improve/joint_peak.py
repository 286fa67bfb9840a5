"""Finds plans for the graphs of a run whose memory keeps one limit at each moment.

Mostly calls end in the reverse order of their beginning. While a call runs, the earlier ones hold what they saved. The
later ones have not begun yet, or they are over, and have left their gradients. So graphs that need much at different
times share a limit better than the sum of their needs says: the loss of a language model, as a graph of its own, holds
the logits, but these are gone before the layers run backward.

Of each graph, plans are predicted by the search for one graph (`remat.improve.step_search`). Which of them to take
together is decided by branch and bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from remat.answer.choice import Choice
from remat.answer.registry import QUICK_BUDGET_SOLVER, find_solver
from remat.answer.solver import Solver
from remat.errors import LimitReached
from remat.facts.columns import BoolArray
from remat.improve.byte_budgets import evenly_spaced
from remat.improve.peak_plans import PeakPlans
from remat.improve.peak_search import checked_plan, measuring, tightest_limit
from remat.improve.step_predictor import StepPredictor, predictor_for
from remat.improve.step_search import StepPlans
from remat.improve.subproblem import Subproblem
from remat.predict.buffers import StepMemory, memory_of, records_calls
from remat.predict.memory import Simulator
from remat.problem.costmodel import CostModel

# Of each graph, plans within so many limits are sought: from its smallest peak to that of its cheapest plan.
_LIMITS = 6
# Branch and bound looks at so many partial combinations; then it takes the best one so far.
_NODES = 20_000

SharedStorage: TypeAlias = tuple[int, Sequence[tuple[int, str]]]
"""The bytes of a storage, and who returns or takes it: the position of a call, and the name that it has there."""


@dataclass(frozen=True)
class CallSequence:
    """Describes calls of compiled graphs whose saved values are alive at the same time.

    Attributes:
        order: for each call, in the order of beginning, the position of its graph among the subproblems.
        in_reverse: each call ends before those that began earlier; if False, they may end in any order.
        shared: storages that calls take, from each other or from code between the graphs.
    """

    order: tuple[int, ...]
    in_reverse: bool = False
    shared: Sequence[SharedStorage] = ()

    @property
    def by_graph(self) -> list[SharedStorage]:
        """Returns the shared storages with the positions of graphs in place of those of calls."""
        return [(size, [(self.order[call], name) for call, name in uses]) for size, uses in self.shared]


@dataclass(frozen=True)
class GraphMemory:
    """Holds what one plan of a graph takes, in bytes.

    Attributes:
        forward, backward: the most that are alive in each pass.
        between: what waits for the backward pass: what is saved, and outputs that somebody holds.
        gradients: what the backward pass leaves, without the gradients that it hands to earlier graphs.
        held: the names of the storages that wait.
    """

    forward: int
    backward: int
    between: int
    gradients: int
    held: frozenset[str]


class JointPeak:
    """Computes the peak memory of graphs whose saved values are alive at the same time.

    Peaks are those of the compiled step, if a graph records its calls (`remat.predict.buffers.memory_of`).

    Args:
        parts: the graphs.
        calls: their calls; None if nothing is known of their order.
        cost_model: names the device whose kernels are predicted; None takes that of each graph.
    """

    def __init__(
        self, parts: Sequence[Subproblem], calls: CallSequence | None = None, cost_model: CostModel | None = None
    ) -> None:
        order = tuple(i for i, part in enumerate(parts) for _ in range(part.times))
        self.parts, self.calls = parts, CallSequence(order) if calls is None else calls
        self.predictors = [cost_model and predictor_for(part.graph, cost_model, part.dropped) for part in parts]
        self._memories: list[dict[bytes, GraphMemory]] = [{} for _ in parts]

    def of(self, choices: Sequence[Choice]) -> int:
        """Returns the peak in bytes of a choice for each graph."""
        return self.at(tuple(self.memory(i, choice) for i, choice in enumerate(choices)))

    def memory(self, part: int, choice: Choice) -> GraphMemory:
        """Predicts what a choice for one of the graphs takes."""
        known = self._memories[part]
        if choice.key not in known:
            known[choice.key] = self._predicted(self.parts[part], self.predictors[part], choice)
        return known[choice.key]

    def _predicted(self, part: Subproblem, predictor: StepPredictor | None, choice: Choice) -> GraphMemory:
        graph = part.graph
        saved, offloaded = graph.for_all_values(choice.saved), graph.for_all_values(choice.offloaded)
        if not records_calls(graph):
            line = Simulator(graph).timeline(saved, offloaded)
        elif predictor is None or offloaded.any():
            line = StepMemory(graph, dropped=part.dropped).timeline(saved, offloaded)
        else:
            line = predictor.timeline(saved)
        waiting: list[int] = graph.base[saved & ~offloaded].tolist()
        returned: list[int] = graph.base[graph.output & ~graph.input[graph.base]].tolist()
        results = {graph.names[owner] for owner in returned}
        gradients = int(line.by_why["gradient"][-1]) if len(line) else 0
        return GraphMemory(
            line.forward_peak_bytes,
            line.backward_peak_bytes,
            line.at_forward_end,
            max(gradients - part.earlier_bytes, 0),
            frozenset(graph.names[owner] for owner in waiting) | (results - part.dropped),
        )

    def at(self, memories: Sequence[GraphMemory], *, is_bound: bool = False) -> int:
        """Returns the peak in bytes, given what a plan of each graph takes.

        Args:
            memories: one for each graph.
            is_bound: leaves out what calls take from each other, which a lower bound cannot know.
        """
        calls = [memories[graph] for graph in self.calls.order]
        between = np.array([one.between for one in calls], np.int64)
        waits = between.cumsum() - between if self.calls.in_reverse else between.sum() - between
        forward = waits + [one.forward for one in calls]
        backward = waits + [one.backward for one in calls]
        if self.calls.in_reverse:
            left = np.array([0, *(one.gradients for one in reversed(calls))]).cumsum()[-2::-1]
            handed = [*(self.parts[graph].earlier_bytes for graph in self.calls.order[1:]), 0]
            backward += left + handed
        for size, uses in () if is_bound else self.calls.shared:
            made = [call for call, name in uses if not self._takes(call, name)]
            takers = [call for call, name in uses if self._takes(call, name)]
            if not takers or any(name in calls[call].held for call, name in uses if call in made):
                continue  # nobody takes it, or the call that returned it counts it
            first, last = max([*made, min(takers) - 1]) + 1, max(takers)
            waiting = [call for call, name in uses if call in takers and name in calls[call].held]
            if self.calls.in_reverse:
                forward[first : last + 1] += size
                if waiting:
                    forward[last + 1 :] += size
                    backward[min(waiting) :] += size
            else:
                forward += size
                backward += size if waiting else 0
        return int(max(forward.max(initial=0), backward.max(initial=0)))

    def measured(self, choices: Sequence[Choice], limit_bytes: int) -> int | None:
        """Measures the peak in bytes by `peak_search.measuring_with`; returns None if it cannot be measured."""
        if (measure := measuring.get()) is None:
            return None
        memories: list[GraphMemory] = []
        for i, (part, choice) in enumerate(zip(self.parts, choices, strict=True)):
            measured = measure(part.graph, choice.plan(part.problem), limit_bytes)
            if measured is None:
                return None
            predicted = memory_of(part.graph).peak(part.graph.for_all_values(choice.saved))
            memories.append(_raised(self.memory(i, choice), measured - predicted))
        return self.at(memories)

    def _takes(self, call: int, name: str) -> bool:
        graph = self.parts[self.calls.order[call]].graph
        return bool(graph.input[graph.index[name]])


def _raised(memory: GraphMemory, by: int) -> GraphMemory:
    return replace(memory, forward=memory.forward + by, backward=memory.backward + by)


@dataclass(frozen=True, eq=False)
class _Candidate:
    choice: Choice
    memory: GraphMemory
    rank: float  # less is better


@dataclass(frozen=True, eq=False)
class JointPlan:
    """Holds a choice for each graph, and their joint peak."""

    choices: list[Choice]
    peak_bytes: int


class JointPlans:
    """Holds candidates for each graph of a run, and finds the best ones to take together.

    They are ranked by the time of the step; by their cost, where no device is known to time kernels on.

    Args:
        peak: predicts the joint peak.
        solver: finds plans for budgets of saved bytes.

    Attributes:
        pools: the candidates for each graph, from the lowest rank on.
    """

    def __init__(self, peak: JointPeak, solver: Solver) -> None:
        self._peak, self.pools = peak, list[list[_Candidate]]()
        for i, part in enumerate(peak.parts):
            pairs = _ranked(peak, i, solver)
            self.pools.append([_Candidate(one, peak.memory(i, one), rank * part.times) for one, rank in pairs])
        self.cheapest = self._joint([pool[0] for pool in self.pools])
        crossing = {name for _, uses in peak.calls.shared for _, name in uses}
        self.pools = [sorted(_undominated(pool, crossing), key=lambda one: one.rank) for pool in self.pools]
        self._least = [_least([one.memory for one in pool]) for pool in self.pools]

    @cached_property
    def smallest(self) -> JointPlan:
        """Returns the joint plan with the smallest peak found."""
        return self._search(None) or self.cheapest

    def within(self, limit_bytes: int) -> JointPlan | None:
        """Returns the best joint plan found with a peak of at most `limit_bytes`; None if there is none."""
        return self._search(limit_bytes)

    def _joint(self, candidates: Sequence[_Candidate]) -> JointPlan:
        peak_bytes = self._peak.at([one.memory for one in candidates])
        return JointPlan([one.choice for one in candidates], peak_bytes)

    def _search(self, limit_bytes: int | None) -> JointPlan | None:
        """Finds the best plan within a limit by branch and bound; without a limit, that with the smallest peak."""
        best, best_rank, nodes = None, math.inf, 0
        most = math.inf if limit_bytes is None else limit_bytes

        def extend(chosen: list[_Candidate], rank: float) -> None:
            nonlocal best, best_rank, nodes, most
            rest = self.pools[len(chosen) :]
            if not rest:
                plan = self._joint(chosen)
                if plan.peak_bytes <= most:
                    best = plan
                    best_rank, most = (rank, most) if limit_bytes is not None else (math.inf, plan.peak_bytes - 1)
                return
            least_later = sum(pool[0].rank for pool in rest[1:])
            for one in rest[0]:
                if rank + one.rank + least_later >= best_rank or nodes >= _NODES:
                    return
                nodes += 1
                memories = [*(other.memory for other in chosen), one.memory, *self._least[len(chosen) + 1 :]]
                if self._peak.at(memories, is_bound=True) <= most:
                    extend([*chosen, one], rank + one.rank)

        extend([], 0.0)
        return best


def _ranked(peak: JointPeak, i: int, solver: Solver) -> list[tuple[Choice, float]]:
    """Lists plans of one graph, each with its rank, while the others save the least; the first costs least."""
    part, memories = peak.parts[i], [peak.memory(j, other.least) for j, other in enumerate(peak.parts)]
    simulated = PeakPlans(part.graph, replace(part.problem, budget_bytes=None), solver)
    if not records_calls(part.graph):
        return [(plan.choice, plan.cost) for plan in (simulated.cheapest, *simulated.front)]

    def peak_of(saved: BoolArray) -> int:
        memory = peak.memory(i, Choice.from_saved(simulated.problem, saved[part.graph.plannable]))
        return peak.at([*memories[:i], memory, *memories[i + 1 :]])

    plans = StepPlans(simulated, peak.predictors[i], peak_of)
    for limit in evenly_spaced(plans.smallest.peak_bytes, plans.cheapest.peak_bytes, _LIMITS)[1:-1]:
        plans.within(limit)
    return plans.ranked


def _undominated(pool: Sequence[_Candidate], crossing: Set[str]) -> Iterator[_Candidate]:
    """Yields the candidates that no other one beats; those that hold other shared storages are not compared."""
    kinds: dict[frozenset[str], list[_Candidate]] = {}
    for one in pool:
        kinds.setdefault(one.memory.held & crossing, []).append(one)
    for alike in kinds.values():
        figures = np.array([[*_bytes(one.memory), one.rank] for one in alike])
        for one, own in zip(alike, figures, strict=True):
            if not ((figures <= own).all(1) & (figures < own).any(1)).any():
                yield one


def _bytes(memory: GraphMemory) -> tuple[int, int, int, int]:
    return memory.forward, memory.backward, memory.between, memory.gradients


def _least(memories: Sequence[GraphMemory]) -> GraphMemory:
    forward, backward, between, gradients = (min(column) for column in zip(*map(_bytes, memories), strict=True))
    return GraphMemory(forward, backward, between, gradients, frozenset())


def fit_joint_peak(
    parts: Sequence[Subproblem], cost_model: CostModel, calls: CallSequence | None, solver: str | Solver | None = None
) -> list[Choice]:
    """Finds the best choices for graphs whose joint peak keeps the limits of a cost model, also by measurement.

    Args:
        parts: the graphs.
        cost_model: limits the peak; a fraction is one of the joint peak of the cheapest choices, or the smallest peak
            that was found, if that is more.
        calls: their calls; None if nothing is known of their order.
        solver: finds plans for budgets of saved bytes; None takes that of `remat.choose`.

    Raises:
        LimitReached: no choices were found that keep a limit in bytes.
    """
    peak, limits = JointPeak(parts, calls, cost_model), cost_model.peak_limits
    plans = JointPlans(peak, find_solver(QUICK_BUDGET_SOLVER if solver is None else solver))
    limit = tightest_limit(limits, plans, 0)

    def measured(plan: JointPlan) -> int | None:
        return peak.measured(plan.choices, limit)

    taken, plan = checked_plan(plans, measured, limit, limits)
    if plan is not None:
        return plan.choices
    smallest = plans.smallest.peak_bytes if taken is None else taken
    raise LimitReached(
        f"no plans were found with a peak of at most {limit} bytes for {len(parts)} graphs that are alive at the same "
        f"time; the smallest found is {smallest}{'' if taken is None else ' by the check'}; raise the budget"
    )
