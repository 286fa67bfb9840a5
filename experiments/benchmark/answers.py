"""Keeps the best known answers of a release: a solution file for each instance, and the rule by which one is replaced.

An answer is taken only if `check.py` agrees with it, and if it costs less than what is known, or comes with a higher
bound. A bound cannot be checked there: it is taken from our own solvers alone, with how it is known. Two bounds or
answers that contradict each other stop everything: one of them is wrong.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from experiments.benchmark import check
from experiments.benchmark.instances import Posed
from remat.problem.problem_file import Budget

Answer: TypeAlias = dict[str, Any]
"""As in solution.schema.json."""

EASY_SECONDS = 60

DEFAULTS = ("portfolio", "peak-search")
"""What the library takes if nobody asks for another: for budgets of saved bytes, and of the peak."""

RESUMED = "cpsat from the best known answer"
"""Who goes on where a search has ended: no default."""


class Refused(Exception):
    """An answer breaks a rule, or claims what is not so."""


def difficulty(answer: Mapping[str, Any] | None) -> Literal["easy", "hard", "open", "not reached"]:
    """How hard a row is: easy if a default solver proved its optimum in a minute, hard if it took more, else open."""
    if answer is None:
        return "not reached"
    if answer.get("status") != "optimal":
        return "open"
    is_default = answer["solver"] in DEFAULTS and not answer.get("proof", "").startswith(RESUMED)
    return "easy" if is_default and answer["seconds"] <= EASY_SECONDS else "hard"


@dataclass(frozen=True)
class Answers:
    """The solution files of a folder."""

    folder: Path

    def path(self, name: str) -> Path:
        """Where the answers to an instance lie."""
        return self.folder / f"{name}.json.gz"

    def of(self, name: str) -> dict[str, Answer]:
        """The answers to an instance, by budget."""
        if not self.path(name).is_file():
            return {}
        document = json.loads(gzip.decompress(self.path(name).read_bytes()))
        return {answer["budget"]: answer for answer in document["answers"]}

    def offer(self, posed: Posed, answer: Answer) -> bool:
        """Takes an answer, and what follows from it for other budgets, if it is better than what is known.

        Where its plan also fits another budget and costs less than the answer there, of saved bytes or of the peak, it
        takes the place of that answer.

        Raises:
            Refused: `check.py` does not agree, or it contradicts what is known.
        """
        verdict = check.check(posed.checked, answer)
        self.require(posed, verdict)
        known = self.of(posed.name)
        old = known.get(answer["budget"])
        new = {**answer, "objective": verdict.objective}
        best = {**known, answer["budget"]: merged(old, new)}
        for budget in posed.budgets:
            fits = (verdict.peak if budget.of == "peak" else verdict.saved_bytes) <= budget.bytes
            if fits and budget.name in best and new["objective"] < best[budget.name]["objective"]:
                best[budget.name] = merged(best[budget.name], {**new, "budget": budget.name, "bound": 0})
        best = spread(posed.budgets, best)
        if best == known:
            return False
        self._write(posed, best)
        return True

    @staticmethod
    def require(posed: Posed, verdict: check.Verdict) -> None:
        """Requires that an answer holds, and that the release has a row for it.

        Raises:
            Refused: it does not, or has none.
        """
        if verdict.budget not in [budget.name for budget in posed.budgets]:
            raise Refused(f"{posed.name} {verdict.budget}: the release has no row for it")
        if verdict.complaints:
            raise Refused(f"{posed.name} {verdict.budget}: {'; '.join(verdict.complaints)}")

    def _write(self, posed: Posed, answers: Mapping[str, Answer]) -> None:
        listed = [answers[budget.name] for budget in posed.budgets if budget.name in answers]
        document = solution_document(posed.name, posed.sha256, listed)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.path(posed.name).with_suffix(".part")  # an interrupted run leaves no half of a file behind
        part.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))
        part.replace(self.path(posed.name))


def solution_document(instance: str, sha256: str, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the content of a solution file."""
    return {"format": "remat.solution", "version": 1, "instance": instance, "sha256": sha256, "answers": [*answers]}


def merged(old: Answer | None, new: Answer) -> Answer:
    """The cheaper of two answers to one row, with the higher of the two bounds; the old one if they are alike.

    Raises:
        Refused: one costs less than the bound of the other.
    """
    both = [answer for answer in (old, new) if answer is not None]
    plan = min(both, key=lambda answer: answer["objective"])
    proof = max(both, key=lambda answer: (answer.get("bound", -1), "proof" in answer))
    bound = proof.get("bound", 0)
    if bound > plan["objective"]:
        raise Refused(
            f"{new['budget']}: {plan.get('solver')} found {plan['objective']}, which is less than the bound {bound} "
            f"of {proof.get('solver')} ({proof.get('proof')}): one of them is wrong"
        )
    best = {key: value for key, value in plan.items() if key != "proof"}
    best |= {"bound": bound, "status": "optimal" if bound == plan["objective"] else "feasible"}
    is_whole = plan is proof and best["status"] == "optimal"  # else it took both
    best["seconds"] = plan.get("seconds", 0) if is_whole else max(answer.get("seconds", 0) for answer in both)
    return best | ({"proof": proof["proof"]} if "proof" in proof else {})


def spread(budgets: Iterable[Budget], answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Answers, and what follows: a plan fits every larger budget, and a bound holds for every smaller one."""
    best = dict(answers)
    known = [budget for budget in budgets if budget.name in answers]
    for budget in known:
        alike = [other for other in known if other.of == budget.of]
        smaller = [answers[other.name] for other in alike if other.bytes <= budget.bytes]
        larger = [answers[other.name] for other in alike if other.bytes >= budget.bytes]
        plan = min(smaller, key=lambda answer: answer["objective"])
        proof = max(larger, key=lambda answer: answer["bound"])
        if plan["objective"] < best[budget.name]["objective"]:
            best[budget.name] = merged(best[budget.name], {**plan, "budget": budget.name, "bound": 0})
        if proof["bound"] > best[budget.name]["bound"]:
            claims = {key: proof[key] for key in ("bound", "proof", "seconds")}
            best[budget.name] = merged(best[budget.name], {**best[budget.name], **claims})
    return best
