"""Describes the result of a refinement, its starts, and its moves."""

from __future__ import annotations

from dataclasses import dataclass

from remat.answer.plan import Plan
from remat.answer.solution import Termination
from remat.improve.refine.descent import Step
from remat.improve.refine.objectives import Score
from remat.words import human_price


@dataclass(frozen=True)
class Start:
    """Describes a plan from which the search began.

    Attributes:
        name: where the plan comes from.
        plan: the plan without saved values that nothing reads.
        score: its score by the oracle, of the whole graph.
        saved_bytes: memory of the saved activations, each storage once.
        allowed: whether it keeps all limits, so that it might have been the answer.
    """

    name: str
    plan: Plan
    score: Score
    saved_bytes: int
    allowed: bool


@dataclass(frozen=True)
class Refined:
    """Holds the best plan found. By the oracle, no start that keeps the limits is better.

    Attributes:
        plan: a legal plan for the whole graph.
        objective: the name of the goal that the search lowered.
        oracle: the name of what scored the plans.
        terms: the names of the entries of a score, with units; scores are compared from left to right.
        before, after: the scores of the caller's plan and of `plan`, by the oracle, of the whole graph.
        starts: the plans where the search began, the caller's plan first.
        history: the moves of all searches, in order. If layers repeat, their scores are those of a graph with two
            layers.
        evaluated: how many choices were scored by prediction.
        asked: how many choices the oracle scored; 0 if the prediction is the oracle.
        layers: how many equal layers were found, which get equal decisions; 1 if none were.
        time_s: wall time in seconds.
        termination: why the search ended.
    """

    plan: Plan
    objective: str
    oracle: str
    terms: tuple[str, ...]
    before: Score
    after: Score
    starts: tuple[Start, ...]
    history: tuple[Step, ...]
    evaluated: int
    asked: int
    layers: int
    time_s: float
    termination: Termination

    @property
    def saving(self) -> float:
        """Computes how much lower the objective is than for the caller's plan, as a fraction."""
        return 1 - self.after[0] / self.before[0] if self.before[0] else 0.0

    def __str__(self) -> str:
        asked = f", {self.asked} by {self.oracle}" if self.asked else ""
        lines = [
            f"{self.terms[0]}: {self._amount(self.before)} -> {self._amount(self.after)} ({0 - self.saving:+.1%}), "
            f"by oracle {self.oracle}",
            *(
                f"  {term}: {_human(term, old)} -> {_human(term, new)}"
                for term, old, new in zip(self.terms[1:], self.before[1:], self.after[1:], strict=True)
            ),
            *(
                f"  start: {start.name}: {self._amount(start.score)}, {human_price(start.saved_bytes, 'bytes')} saved"
                + ("" if start.allowed else " (more than allowed)")
                for start in self.starts
            ),
            f"  {len(self.history)} moves, {self.evaluated} plans evaluated{asked}, {self.time_s:.1f} s; "
            f"{self.layers} equal layers; {self.termination.detail}",
        ]
        return "\n".join(lines)

    def _amount(self, score: Score) -> str:
        return _human(self.terms[0], score[0])


def _human(term: str, amount: int) -> str:
    unit = term.rpartition("_")[2]
    return human_price(amount, unit) if unit in ("bytes", "ns") else f"{amount:,}"
