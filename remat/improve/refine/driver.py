"""Implements `remat.refine`, which finds a better plan by local search."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from remat.answer.plan import Plan
from remat.answer.solution import Termination, TerminationReason
from remat.answer.solver import check_time_limit
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_number
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph, checked_graph
from remat.improve.for_device import for_device
from remat.improve.progress import OutOfTime, Progress, check_progress, ended_early, is_over
from remat.improve.refine.descent import Acceptance, Descent, Evaluator, Step, most_promising
from remat.improve.refine.equivalence_classes import equivalence_classes
from remat.improve.refine.moves import Neighbourhood
from remat.improve.refine.named_objectives import find_objective
from remat.improve.refine.objectives import Objective
from remat.improve.refine.oracles import BatchScorer, Model, Oracle, find_oracle
from remat.improve.refine.repeated_layers import ShortGraph, shorten, whole_graph
from remat.improve.refine.result import Refined, Start
from remat.improve.refine.starts import never_recomputed, starting_states
from remat.improve.refine.states import Space, State
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan

# Values are decided about together if their surroundings are equal up to this distance.
_ROUNDS = 4


def refine(
    graph: Graph,
    plan: Plan,
    objective: str | Objective = "traffic",
    oracle: Literal["model", "inductor", "device"] | Oracle = "model",
    *,
    extra_bytes: int = 0,
    starts: Iterable[Plan] = (),
    time_limit_s: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    device: str | None = None,
) -> Refined:
    """Improves a plan by local moves: save one more value, save one value less, or swap two.

    See `remat.improve.refine` for the search and for what it promises.

    Args:
        plan: a legal plan for the graph.
        objective: what to lower: "traffic", the bytes that both passes move by prediction; "time" on a roofline;
            "saved" bytes, at no more traffic than that of `plan`; "peak" memory as in `timeline`; or "no-worse",
            traffic of plans that have no more kernels than `plan` and recompute no longer. Options follow a colon, as
            in "saved:extra_traffic=0.05"; or an instance, such as `remat.improve.refine.Time(device="h200")`.
        oracle: what has the last word: the "model", which is the prediction itself; "inductor", TorchInductor's own
            count of its kernels; "device", the time of the compiled step on this machine; or an instance.
        extra_bytes: how many bytes of activations the answer may save beyond what `plan` saves.
        starts: further plans to begin from, such as PyTorch's own choice
            (`remat.pytorch.measure.torch_budgets.torchs_plans(model, x, budgets=[1.0])`).
        time_limit_s: wall time in seconds. `plan` is always scored, and the other starts while there is time, the most
            promising first. A score that has begun is finished.
        seed: decides in which order equal candidates are tried; the same seed gives the same plan.
        progress: called with the number of plans scored so far and the best score.
        device: the device whose kernels are predicted: "cpu", or a GPU by name, such as "a100", which need not be
            present; None takes that of the graph.

    Raises:
        InvalidPlan: `plan`, or one of `starts`, is not legal, or was made for another graph.
        InvalidOption: `graph` is no graph, the objective or oracle is unknown, or a number is not as described; or no
            plan was found that keeps the limits of the objective.
        NotInstalled: the oracle needs torch.
        Infeasible: the graph has no legal plan at all.
        CannotRebuild: Inductor, or the device, cannot be asked, since an operator cannot be built again here.
    """
    begin_s = time.monotonic()
    graph = for_device(checked_graph(graph), device)
    goal, chosen_oracle = find_objective(objective), find_oracle(oracle, device)
    chosen_oracle.terms(goal)
    extra_bytes, seed = checked_number("extra_bytes", extra_bytes), checked_number("seed", seed)
    check_time_limit(time_limit_s)
    check_progress(progress)
    states = starting_states(graph, goal, plan, starts, extra_bytes)
    keep = never_recomputed(graph, goal, states.values())
    run = _Run(
        graph=graph,
        objective=goal,
        oracle=chosen_oracle,
        starts=states,
        space=Space(graph, keep),
        keep=keep,
        limit_bytes=states["given"].saved_bytes + extra_bytes,
        begin_s=begin_s,
        time_limit_s=time_limit_s,
        seed=seed,
        progress=progress,
    )
    return run.result()


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Holds the result of the search on the short graph.

    Attributes:
        states: the states to compare on the whole graph.
        asked: how many choices of the short graph the oracle scored; 0 if it is not asked in the search.
    """

    states: tuple[State, ...]
    history: tuple[Step, ...]
    evaluated: int
    asked: int
    termination: Termination


class _TimedScorer:
    """Scores plans of the whole graph by the oracle while there is time, but the first plan in any case."""

    def __init__(self, score_all: BatchScorer, deadline_s: float | None) -> None:
        self._score_all, self._deadline_s, self.longest_s = score_all, deadline_s, 0.0

    @property
    def has_time(self) -> bool:
        late_s = time.monotonic() + self.longest_s
        return self._deadline_s is None or not self.longest_s or late_s <= self._deadline_s

    def scored_in_time(self, states: Sequence[State]) -> Sequence[State]:
        """Returns the first states, as many as the oracle scores in time; the oracle remembers their scores."""
        if self._deadline_s is None:
            return states
        for i, state in enumerate(states):
            if not self.has_time:
                return states[:i]
            before_s = time.monotonic()
            self._score_all([state])
            self.longest_s = max(self.longest_s, time.monotonic() - before_s)
        return states


@dataclass(frozen=True, eq=False)
class _Run:
    """Holds the arguments of one call of `refine`, and runs the search.

    Attributes:
        starts: the first states, by name; "given" is the caller's plan.
        space: all choices of the whole graph.
        keep: (n,) values that are not recomputed.
        limit_bytes: the most bytes that may be saved.
        begin_s: when the call began, by `time.monotonic`.
    """

    graph: Graph
    objective: Objective
    oracle: Oracle
    starts: dict[str, State]
    space: Space
    keep: BoolArray
    limit_bytes: int
    begin_s: float
    time_limit_s: float | None
    seed: int
    progress: Progress | None

    def result(self) -> Refined:
        score_all = self.oracle.on(self.graph, self.objective)
        clock = _TimedScorer(score_all, self._deadline_s(0))
        starts = self._scored_starts(clock)
        goal = self.objective.with_limits_of(score_all([starts["given"]])[0])
        short = shorten(self.graph) if self.objective.adds_up else whole_graph(self.graph)
        # Every start may lead to another plan, whose score on the whole graph takes as long as that of the start.
        outcome = self._search(short, starts.values(), self._deadline_s(len(starts) * clock.longest_s))
        lifted = [self.space.state(short.lift(state.choice.saved)) for state in outcome.states]
        new = clock.scored_in_time(list({state.choice: state for state in lifted}.values()))
        states = list({state.choice: state for state in (*starts.values(), *new)}.values())  # the starts come first
        scores = {state.choice: score for state, score in zip(states, score_all(states), strict=True)}
        allowed = {
            state.choice
            for state in states
            if state.saved_bytes <= self.limit_bytes and not goal.violation(scores[state.choice])
        }
        if not allowed:
            score = dict(zip(self.oracle.terms(goal), scores[states[0].choice], strict=True))
            raise InvalidOption(f"no plan was found within the limits of {goal!r}; the plan to refine has {score}")
        best = min((state for state in states if state.choice in allowed), key=lambda state: scores[state.choice])
        plan = self._plan(best)
        check_plan(base_problem(self.graph), plan)
        return Refined(
            plan=plan,
            objective=self.objective.name,
            oracle=self.oracle.name,
            terms=self.oracle.terms(self.objective),
            before=scores[starts["given"].choice],
            after=scores[best.choice],
            starts=tuple(
                Start(name, self._plan(start), scores[start.choice], start.saved_bytes, start.choice in allowed)
                for name, start in starts.items()
            ),
            history=outcome.history,
            evaluated=outcome.evaluated,
            asked=0 if isinstance(self.oracle, Model) else outcome.asked + len(states),
            layers=short.layers,
            time_s=time.monotonic() - self.begin_s,
            termination=outcome.termination,
        )

    def _scored_starts(self, clock: _TimedScorer) -> dict[str, State]:
        plan, *others = self.starts.values()
        clock.scored_in_time([plan])
        if self.time_limit_s is not None and clock.has_time:
            predicted = self.objective.scorer(self.graph)
            goal = self.objective.with_limits_of(predicted(plan))
            others.sort(key=lambda state: (goal.violation(score := predicted(state)), score))
        in_time = {state.choice for state in (plan, *clock.scored_in_time(others))}
        return {name: state for name, state in self.starts.items() if state.choice in in_time}

    def _deadline_s(self, reserved_s: float) -> float | None:
        return None if self.time_limit_s is None else self.begin_s + self.time_limit_s - reserved_s

    def _plan(self, state: State) -> Plan:
        return state.choice.plan(self.graph)

    def _search(self, short: ShortGraph, starts: Iterable[State], deadline_s: float | None) -> _Outcome:
        """Descends from the good starts by classes of equal values, and from the best result value by value.

        An oracle that is asked in the search is asked only on the way from the best start, since each answer takes
        seconds.
        """
        if is_over(deadline_s):
            return _Outcome(states=(), history=(), evaluated=0, asked=0, termination=ended_early())
        space = Space(short.graph, short.project(self.keep), short.copies)
        by_class = Neighbourhood(space, equivalence_classes(short.graph, _ROUNDS))
        by_value = Neighbourhood(space, np.arange(len(short.graph)))
        states = [space.state(short.project(start.choice.saved)) for start in starts]
        acceptance = self._acceptance(short.graph, states[0], deadline_s)
        quick = Acceptance(acceptance.model)
        descents = [Descent(quick, state, self.seed) for state in {state.choice: state for state in states}.values()]
        results = descents
        termination = Termination(TerminationReason.FEASIBLE, detail="no move improves the plan")
        try:
            descents = results = most_promising(descents, quick)
            for descent in descents:
                descent.run(by_class)
            best = min(descents, key=lambda descent: quick.score(descent.state))
            if acceptance.reference is not None:  # the same way again, with every step checked
                best = Descent(acceptance, best.start, self.seed)
                descents = results = [*descents, best]
                best.run(by_class)
            best.run(by_value)
        except OutOfTime:
            termination = ended_early()
        return _Outcome(
            states=tuple(descent.state for descent in results),
            history=tuple(step for descent in descents for step in descent.steps),
            evaluated=acceptance.model.evaluated,
            asked=0 if acceptance.reference is None else acceptance.reference.evaluated,
            termination=termination,
        )

    def _acceptance(self, graph: Graph, start: State, deadline_s: float | None) -> Acceptance:
        # Limits that follow from the caller's plan are computed by whatever scores it: the prediction, or the oracle.
        scorer = self.objective.scorer(graph)
        goal = self.objective.with_limits_of(scorer(start))
        violation_bound = goal.violation_bound(graph)
        model = Evaluator(scorer, self.limit_bytes, deadline_s, self.progress, goal.violation, violation_bound)
        if not self.oracle.asked_in_search:
            return Acceptance(model)
        score_all = self.oracle.on(graph, self.objective)
        violation = self.objective.with_limits_of(score_all([start])[0]).violation
        reference = Evaluator(lambda state: score_all([state])[0], self.limit_bytes, deadline_s, violation=violation)
        return Acceptance(model, reference)
