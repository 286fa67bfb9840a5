"""Finds plans for several graphs of a run, so that their memory together keeps one limit at each moment.

Usually the call that began last ends first. While a call runs, the earlier ones hold what they saved. The later ones
have not begun yet, or they are over, and have left their gradients. So graphs that need their most memory at different
times fit into less than the sum of what each needs: the loss of a language model, as a graph of its own, holds the
logits, but these are gone before the layers run backward.

The search for one graph (`remat.improve.step_search`) proposes plans for each graph. Branch and bound decides which of
them to combine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from remat.answer.choice import Choice
from remat.answer.registry import QUICK_BUDGET_SOLVER, find_solver
from remat.answer.solver import Solver
from remat.errors import LimitReached
from remat.facts.columns import BoolArray
from remat.improve.byte_budgets import default_choice, default_plan, evenly_spaced
from remat.improve.call_sequence import CallSequence, CallsInOrder, GraphMemory
from remat.improve.peak_plans import PeakPlans
from remat.improve.peak_search import checked_plan, measuring, tightest_limit
from remat.improve.step_predictor import predictor_for
from remat.improve.step_search import StepPlans
from remat.improve.subproblem import Subproblem
from remat.predict.buffers import StepMemory, memory_of, records_calls
from remat.predict.in_flight import accumulated_bytes
from remat.predict.memory import Simulator
from remat.problem.costmodel import CostModel
from remat.words import human_bytes

# Of each graph, plans within this many limits are sought: from its smallest peak to that of its cheapest plan.
_LIMITS = 6
# Branch and bound looks at this many partial combinations; then it takes the best one so far.
_NODES = 20_000


class JointPeak:
    """Computes the peak memory of graphs whose saved values are alive at the same time.

    Peaks are those of the compiled step, if a graph records its calls (`remat.predict.buffers.memory_of`).

    Args:
        parts: the graphs.
        sequences: the orders in which the graphs are called. Calls of two different sequences are never alive at the
            same time. None: each graph is called `Subproblem.times` times, in any order.
        cost_model: names the device whose kernels are predicted; None takes that of each graph.
    """

    def __init__(
        self,
        parts: Sequence[Subproblem],
        sequences: Sequence[CallSequence] | None = None,
        cost_model: CostModel | None = None,
    ) -> None:
        if sequences is None:
            sequences = [CallSequence(tuple(i for i, part in enumerate(parts) for _ in range(part.times)))]
        self.parts, self.sequences = parts, sequences
        self.predictors = [cost_model and predictor_for(part.graph, cost_model, part.exchanged) for part in parts]
        self._in_order = [CallsInOrder(parts, calls) for calls in sequences]
        in_flight = 1 if cost_model is None else cost_model.calls_in_flight
        self._accumulated_bytes = sum(accumulated_bytes(part.graph) for part in parts) if in_flight > 1 else 0
        self._memories: list[dict[bytes, GraphMemory]] = [{} for _ in parts]
        self._steps: dict[int, StepMemory | Simulator] = {}

    def of(self, choices: Sequence[Choice]) -> int:
        """Returns the peak in bytes, if each graph runs with its choice."""
        return self.at(tuple(self.memory(i, choice) for i, choice in enumerate(choices)))

    def at(self, memories: Sequence[GraphMemory], *, is_bound: bool = False) -> int:
        """Returns the peak in bytes, from the memory that each graph takes under its plan.

        Args:
            memories: one for each graph.
            is_bound: whether to leave out storages that several calls use, so that the result is a lower bound.
        """
        return self._accumulated_bytes + max(calls.peak(memories, is_bound=is_bound) for calls in self._in_order)

    def memory(self, part: int, choice: Choice) -> GraphMemory:
        """Predicts the memory that one of the graphs takes under a choice."""
        known = self._memories[part]
        if choice.key not in known:
            known[choice.key] = self._predicted(part, choice)
        return known[choice.key]

    def _predicted(self, i: int, choice: Choice) -> GraphMemory:
        part, predictor = self.parts[i], self.predictors[i]
        graph = part.graph
        saved, offloaded = graph.for_all_values(choice.saved), graph.for_all_values(choice.offloaded)
        if predictor is None or offloaded.any():
            if i not in self._steps:
                is_step = records_calls(graph)
                self._steps[i] = StepMemory(graph, exchanged=part.exchanged) if is_step else Simulator(graph)
            line = self._steps[i].timeline(saved, offloaded)
        else:
            line = predictor.timeline(saved)
        waiting: list[int] = graph.base[saved & ~offloaded].tolist()
        returned: list[int] = graph.base[graph.output & ~graph.input[graph.base]].tolist()
        results = {graph.names[owner] for owner in returned}
        gradients = int(line.by_why["gradient"][-1]) if len(line) else 0
        # Gradients of activations count, too, unless they are in the memory of the incoming gradients.
        of_parameters = min(gradients, int(graph.bytes[graph.parameter].sum()))
        return GraphMemory(
            line.forward_peak_bytes,
            line.backward_peak_bytes,
            line.at_forward_end,
            max(gradients - part.earlier_bytes, of_parameters),
            frozenset(graph.names[owner] for owner in waiting) | (results - part.dropped),
        )

    def checked_peak(self, choices: Sequence[Choice], limit_bytes: int) -> int | None:
        """Computes the joint peak in bytes from a measured peak of each graph; None if one cannot be measured."""
        if (measure := measuring.get()) is None:
            return None
        memories: list[GraphMemory] = []
        for i, (part, choice) in enumerate(zip(self.parts, choices, strict=True)):
            measured = measure(part.graph, choice.plan(part.problem), limit_bytes)
            if measured is None:
                return None
            # In which pass the measured peak occurs is unknown.
            more = max(measured - memory_of(part.graph).peak(part.graph.for_all_values(choice.saved)), 0)
            memory = self.memory(i, choice)
            memories.append(replace(memory, forward=memory.forward + more, backward=memory.backward + more))
        return self.at(memories)


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
    """Holds candidates for each graph of a run, and finds the best combination of them: see `peak_search.Plans`.

    Candidates are ranked by the time of the step, or by their cost if no device is known.

    Args:
        peak: predicts the joint peak.
        solver: finds plans for budgets of saved bytes.

    Attributes:
        pools: the candidates for each graph, by ascending rank.
    """

    def __init__(self, peak: JointPeak, solver: Solver) -> None:
        self._peak, self.pools = peak, list[list[_Candidate]]()
        self._within: dict[int, JointPlan | None] = {}
        for i, part in enumerate(peak.parts):
            pairs = _ranked(peak, i, solver)
            self.pools.append([_Candidate(one, peak.memory(i, one), rank * part.times) for one, rank in pairs])
        crossing = {name for calls in peak.sequences for _, uses in calls.shared for _, name in uses}
        self.pools = [sorted(_undominated(pool, crossing), key=lambda one: one.rank) for pool in self.pools]
        self._least = [_least([one.memory for one in pool]) for pool in self.pools]

    @cached_property
    def default_peak_bytes(self) -> int:
        """Returns the joint peak of PyTorch's default plans; a graph without such a plan saves the fewest bytes."""
        plans = [default_plan(part.graph) for part in self._peak.parts]
        return self._peak.of(
            [
                part.smallest_choice if plan is None else Choice.from_plan(part.problem, plan)
                for part, plan in zip(self._peak.parts, plans, strict=True)
            ]
        )

    @cached_property
    def default(self) -> JointPlan:
        """Returns legal plans that save what PyTorch's default saves; a graph without one saves the fewest bytes."""
        choices = [default_choice(part.graph, part.problem) or part.smallest_choice for part in self._peak.parts]
        return JointPlan(choices, self._peak.of(choices))

    @cached_property
    def smallest(self) -> JointPlan:
        starts = [[min(pool, key=key) for pool in self.pools] for key in (_waiting_bytes, _own_peak)]
        smallest = min((self._joint(self._descended(start)) for start in starts), key=lambda plan: plan.peak_bytes)
        return self._search(smallest.peak_bytes - 1, least_peak=True) or smallest

    def within(self, limit_bytes: int) -> JointPlan | None:
        if limit_bytes not in self._within:
            plan = self._search(limit_bytes)
            if plan is None and self.smallest.peak_bytes <= limit_bytes:
                plan = self.smallest
            self._within[limit_bytes] = plan
        return self._within[limit_bytes]

    def next_within(self, limit_bytes: int, tighter_bytes: int, tried: Sequence[JointPlan]) -> JointPlan | None:
        del limit_bytes, tried
        return self.within(tighter_bytes)

    def _joint(self, candidates: Sequence[_Candidate]) -> JointPlan:
        return JointPlan([one.choice for one in candidates], self._peak_of(candidates))

    def _peak_of(self, candidates: Sequence[_Candidate]) -> int:
        return self._peak.at([one.memory for one in candidates])

    # Replaces the candidate of one graph after the other, as long as the peak falls.
    def _descended(self, candidates: list[_Candidate]) -> list[_Candidate]:
        peak_bytes = self._peak_of(candidates)
        while True:
            for i, pool in enumerate(self.pools):
                others = [[*candidates[:i], one, *candidates[i + 1 :]] for one in pool]
                candidates = min(others, key=self._peak_of)
            if self._peak_of(candidates) >= peak_bytes:
                return candidates
            peak_bytes = self._peak_of(candidates)

    def _search(self, limit_bytes: int, *, least_peak: bool = False) -> JointPlan | None:
        """Finds the best joint plan within a limit, or the one with the smallest peak, by branch and bound."""
        best, best_rank, nodes = None, math.inf, 0

        def extend(chosen: list[_Candidate], rank: float) -> None:
            nonlocal best, best_rank, nodes, limit_bytes
            rest = self.pools[len(chosen) :]
            if not rest:
                if (plan := self._joint(chosen)).peak_bytes <= limit_bytes:
                    best = plan
                    if least_peak:
                        limit_bytes = plan.peak_bytes - 1
                    else:
                        best_rank = rank
                return
            least_later = sum(pool[0].rank for pool in rest[1:])
            for one in rest[0]:
                if rank + one.rank + least_later >= best_rank or nodes >= _NODES:
                    return
                nodes += 1
                memories = [*(other.memory for other in chosen), one.memory, *self._least[len(chosen) + 1 :]]
                if self._peak.at(memories, is_bound=True) <= limit_bytes:
                    extend([*chosen, one], rank + one.rank)

        extend([], 0.0)
        return best


def _waiting_bytes(candidate: _Candidate) -> int:
    return candidate.memory.between_passes


def _own_peak(candidate: _Candidate) -> int:
    return max(candidate.memory.forward, candidate.memory.backward)


def _ranked(peak: JointPeak, i: int, solver: Solver) -> list[tuple[Choice, float]]:
    """Lists plans of one graph with their ranks, from a search in which the other graphs save the fewest bytes."""
    part, memories = peak.parts[i], [peak.memory(j, other.smallest_choice) for j, other in enumerate(peak.parts)]
    simulated = PeakPlans(part.graph, replace(part.problem, budget_bytes=None), solver)
    if not records_calls(part.graph):
        return [(plan.choice, plan.cost) for plan in (simulated.cheapest, *simulated.front)]

    def peak_of(saved: BoolArray) -> int:
        memory = peak.memory(i, Choice.from_saved(simulated.problem, saved[part.graph.plannable]))
        return peak.at([*memories[:i], memory, *memories[i + 1 :]])

    plans = StepPlans(simulated, peak.predictors[i], peak_of, part.exchanged)
    for limit in evenly_spaced(plans.smallest.peak_bytes, plans.cheapest.peak_bytes, _LIMITS)[1:-1]:
        plans.within(limit)
    return [(plan.choice, plans.rank(plan)) for plan in plans.predicted]


def _undominated(pool: Sequence[_Candidate], crossing: Set[str]) -> Iterator[_Candidate]:
    """Yields the candidates that no other candidate beats, among those that hold the same shared storages."""
    kinds: dict[frozenset[str], list[_Candidate]] = {}
    for one in pool:
        kinds.setdefault(one.memory.held_storages & crossing, []).append(one)
    for alike in kinds.values():
        different = {(*_bytes(one.memory), one.rank): one for one in reversed(alike)}  # of equals, the first one
        figures = np.array([*different])
        for one, own in zip(different.values(), figures, strict=True):
            if not ((figures <= own).all(1) & (figures < own).any(1)).any():
                yield one


def _bytes(memory: GraphMemory) -> tuple[int, int, int, int]:
    return memory.forward, memory.backward, memory.between_passes, memory.gradients


def _least(memories: Sequence[GraphMemory]) -> GraphMemory:
    forward, backward, between, gradients = (min(column) for column in zip(*map(_bytes, memories), strict=True))
    return GraphMemory(forward, backward, between, gradients, frozenset())


def fit_joint_peak(
    parts: Sequence[Subproblem],
    cost_model: CostModel,
    sequences: Sequence[CallSequence] | None = None,
    solver: str | Solver | None = None,
) -> tuple[list[Choice], str]:
    """Finds the best choices for several graphs, so that their joint peak keeps the limits of a cost model.

    Returns the choices and a text: the measured peak, or why a fraction of the peak is exceeded; "" if neither.

    Args:
        parts: the graphs.
        cost_model: limits the peak; a fraction is one of the joint peak of PyTorch's default plans, or the smallest
            peak that was found, if that is more.
        sequences: their calls (see `JointPeak`).
        solver: finds plans for budgets of saved bytes; None takes that of `remat.choose`.

    Raises:
        LimitReached: no choices were found that keep a limit in bytes.
    """
    peak, limits = JointPeak(parts, sequences, cost_model), cost_model.peak_limits
    plans = JointPlans(peak, find_solver(QUICK_BUDGET_SOLVER if solver is None else solver))
    limit = tightest_limit(limits, plans, 0)

    def measured(plan: JointPlan) -> int | None:
        return peak.checked_peak(plan.choices, limit)

    taken, plan = checked_plan(plans, measured, limit, limits)
    graphs = "1 graph" if len(parts) == 1 else f"{len(parts)} graphs that are alive at the same time"
    if plan is not None:
        told = "" if taken is None else f"the peak of {graphs} is {human_bytes(taken)} by the check"
        why = ""
        if taken is not None and taken > limit:
            why = f"; no plan was found that keeps it within {human_bytes(limit)}"
        elif shares := [share for share in limits if isinstance(share, Fraction)]:
            asked = math.floor(min(shares) * plans.default_peak_bytes)
            if plan.peak_bytes > asked:
                told = told or f"the peak of {graphs} is {human_bytes(plan.peak_bytes)}"
                why = f"; {human_bytes(asked)} was asked for, but no plans with a lower peak were found"
        if why:
            warnings.warn(f"remat: {told}{why}", stacklevel=2)
        told += why
        return plan.choices, told
    smallest = plans.smallest.peak_bytes if taken is None else taken
    raise LimitReached(
        f"no plans were found with a peak of at most {limit} bytes for {graphs}; the smallest found is "
        f"{smallest}{'' if taken is None else ' by the check'}; raise the budget"
    )
