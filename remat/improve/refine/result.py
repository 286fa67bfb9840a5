"""Holds what a refinement found, from where, and how."""

from __future__ import annotations

from dataclasses import dataclass

from remat.answer.plan import Plan
from remat.answer.solution import Termination
from remat.improve.refine.descent import Step
from remat.improve.refine.objectives import Score
from remat.words import human_price


@dataclass(frozen=True)
class Start:
    """A plan from which the search began.

    Attributes:
        name: whose plan it is.
        plan: as the search took it: saved values that nobody reads are left out.
        score: by the oracle, of the whole graph.
        saved_bytes: memory of the saved activations, each storage once.
        allowed: it saves no more than is allowed, so that it might have been the answer.
    """

    name: str
    plan: Plan
    score: Score
    saved_bytes: int
    allowed: bool


@dataclass(frozen=True)
class Refined:
    """The best plan found. By the oracle it is no worse than any start that is allowed.

    Attributes:
        plan: a legal plan for the whole graph.
        objective, oracle: what was lowered, and who says so.
        terms: what the entries of the scores are, with units; they count from left to right.
        before, after: scores of the given plan and of `plan`, by the oracle, of the whole graph.
        starts: where the search began, the given plan first, with scores.
        history: the moves of all searches, in order. Where layers repeat, their scores are of a graph with
            two of them.
        evaluated: choices scored by prediction.
        asked: choices scored by the oracle, if that is not the prediction.
        layers: how many equal layers were found, and decided about as one.
        time_s: wall time.
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
        """How much lower the objective is than for the given plan, as a fraction."""
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
