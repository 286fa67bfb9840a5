"""Searches locally: makes the first move that lowers the score, until no move does.

An infeasible state, which breaks a limit, is worse than every feasible one, and of two infeasible states the one with
the smaller violation is better. So the search may start anywhere. There is a limit of saved bytes, and there may be
limits of the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from remat.improve.progress import OutOfTime, Progress, is_over
from remat.improve.refine.moves import Move, Neighbourhood
from remat.improve.refine.objectives import Score, Scorer
from remat.improve.refine.states import State

# This many saves that would help but do not fit are tried, each with this many drops that make room for it.
_EXCHANGES = 6
# Starts above this multiple of the lowest one are not searched from: on GPT-2 of 6 and 12 layers such a descent ended
# above the one from the best start, and took more than half of the time.
_FAR = 1.1
# A score begins with this many violations.
_LIMITS = 2


@dataclass(frozen=True)
class Step:
    """Describes a move that was made.

    Attributes:
        evaluated: how many choices had been scored by then.
        move: the move in words.
        score: the objective's score after the move.
    """

    evaluated: int
    move: str
    score: Score


class Evaluator:
    """Scores choices of one graph, each once.

    Attributes:
        limit_bytes: the most bytes that may be saved.
        evaluated: how many choices were scored.
    """

    def __init__(
        self,
        scorer: Scorer,
        limit_bytes: int,
        deadline_s: float | None = None,
        progress: Progress | None = None,
        violation: Callable[[Score], int] = lambda _: 0,
        violation_bound: Callable[[State], int] = lambda _: 0,
    ) -> None:
        self._scorer, self._deadline_s, self._progress = scorer, deadline_s, progress
        self._violation, self._violation_bound = violation, violation_bound
        self._scores: dict[bytes, Score] = {}
        self._best: Score | None = None
        self.limit_bytes, self.evaluated = limit_bytes, 0

    def score(self, state: State) -> Score:
        """Returns two violations, of the saved bytes and of the objective's limits, followed by the objective's score.

        Raises:
            OutOfTime: the score is not known yet, and the time is up.
        """
        key = state.choice.key
        if key not in self._scores:
            if is_over(self._deadline_s):
                raise OutOfTime
            objective = self._scorer(state)
            self._scores[key] = score = (self._excess_bytes(state), self._violation(objective), *objective)
            self.evaluated += 1
            if self._best is None or score < self._best:
                self._best = score
            if self._progress is not None:
                self._progress(self.evaluated, self._best[_LIMITS:])
        return self._scores[key]

    def is_surely_worse(self, state: State, other: State) -> bool:
        """Says if a state has a larger violation than another one, as far as that is known without scoring it."""
        over, violation = self.score(other)[:_LIMITS]
        if (excess := self._excess_bytes(state)) != over:
            return excess > over
        return self._violation_bound(state) > violation

    def _excess_bytes(self, state: State) -> int:
        return max(0, state.saved_bytes - self.limit_bytes)


class Acceptance:
    """Decides whether a move is made: it must lower the score of the prediction, and that of the oracle, if any.

    Attributes:
        model: the prediction, which scores every candidate.
        reference: the oracle, which scores only what the prediction likes; None without one.
    """

    def __init__(self, model: Evaluator, reference: Evaluator | None = None) -> None:
        self.model, self.reference = model, reference

    def score(self, state: State) -> Score:
        """Scores a state by the oracle; without one, by the prediction."""
        return (self.reference or self.model).score(state)

    def improves(self, state: State, on: State) -> bool:
        """Says if a state is better than another one by the prediction and by the oracle."""
        if self.model.is_surely_worse(state, on) or not self.model.score(state) < self.model.score(on):
            return False
        return self.reference is None or self.reference.score(state) < self.reference.score(on)


class Descent:
    """Runs the local search from one state.

    Attributes:
        acceptance: decides whether a move is made.
        start: the first state.
        state: the best state so far.
        steps: the moves made.
    """

    def __init__(self, acceptance: Acceptance, start: State, seed: int) -> None:
        self.acceptance, self.start, self.state = acceptance, start, start
        self.steps: list[Step] = []
        self._random = np.random.default_rng(seed)

    def run(self, neighbourhood: Neighbourhood) -> None:
        """Makes moves until none of this neighbourhood helps.

        Raises:
            OutOfTime: the time is up; `state` is the best so far.
        """
        while self._sweep(neighbourhood) or self._exchange(neighbourhood):
            pass

    def _sweep(self, neighbourhood: Neighbourhood) -> bool:
        before = self.state
        for c in neighbourhood.order(self._random):
            while any(self._try(neighbourhood, move) for move in neighbourhood.moves(self.state, c)):
                pass
        return self.state is not before

    def _exchange(self, neighbourhood: Neighbourhood) -> bool:
        start = self.state
        gains = sorted(self._gains(neighbourhood, start))[:_EXCHANGES]
        if not gains:
            return False
        losses = sorted(self._losses(neighbourhood, start))
        for _, violation, saved in gains:
            enough = [dropped for _, freed, dropped in losses if freed >= violation][:_EXCHANGES]
            if any(self._try(neighbourhood, Move(save=(saved,), drop=(dropped,))) for dropped in enough):
                return True
        return False

    def _gains(self, neighbourhood: Neighbourhood, start: State) -> Iterator[tuple[Score, int, int]]:
        """Yields (score, bytes over the limit, class) of saves that would help, but exceed the saved bytes allowed."""
        model = self.acceptance.model
        for c in neighbourhood.saves(start):
            state = neighbourhood.after(start, Move(save=(c,)))
            violation = state.saved_bytes - model.limit_bytes
            if violation > 0 and model.score(state)[_LIMITS:] < model.score(start)[_LIMITS:]:
                yield model.score(state)[_LIMITS:], violation, c

    def _losses(self, neighbourhood: Neighbourhood, start: State) -> Iterator[tuple[Score, int, int]]:
        for c in neighbourhood.drops(start):
            state = neighbourhood.after(start, Move(drop=(c,)))
            if state.saved_bytes < start.saved_bytes:
                yield self.acceptance.model.score(state)[_LIMITS:], start.saved_bytes - state.saved_bytes, c

    def _try(self, neighbourhood: Neighbourhood, move: Move) -> bool:
        state = neighbourhood.after(self.state, move)
        if state.choice == self.state.choice or not self.acceptance.improves(state, self.state):
            return False
        self.state = state
        self.steps.append(
            Step(self.acceptance.model.evaluated, neighbourhood.names(move), self.acceptance.score(state)[_LIMITS:])
        )
        return True


def most_promising(descents: list[Descent], acceptance: Acceptance) -> list[Descent]:
    """Returns the descents whose starts score not far above the best feasible start, by ascending score."""
    scored = sorted(
        ((acceptance.model.score(descent.start), descent) for descent in descents), key=lambda pair: pair[0]
    )
    feasible = [score[_LIMITS] for score, _ in scored if not score[_LIMITS - 1]]
    lowest = min(feasible or [score[_LIMITS] for score, _ in scored])
    return [descent for score, descent in scored if score[_LIMITS] <= _FAR * lowest]
