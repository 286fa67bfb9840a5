"""Answers the benchmark by methods of other papers: `python -m experiments.bench.rivals`.

A row is a method, an instance (so far all but the largest, `deepnet-500`), and a budget. Budgets that are
equal in bytes have one row. The methods are in `experiments.rivals`; the text at the top of each file says what was
changed, so that a method answers the question of the benchmark: each value is computed at most twice, the second time
where the backward pass reads it first.

- `chen, articulation points`, `chen, any place`, `chen, in a line`, `chen, products kept`: segments between cuts
  (2016), with four kinds of cuts;
- `dtr`: online eviction (2021);
- `rotor`: the dynamic program for chains (2019);
- `checkmate, rounded`: the linear relaxation with two phases of rounding (2020);
- `hiremate`: a hierarchy of small integer programs (2024);
- `moccasin`: retention intervals in CP-SAT (2023), for budgets of the peak only.

`objective` is the cost of the cheapest plan that a method found within the budget, by `check.py`; without it, the
method found none. `known` is the best known answer at that time, and `bound` the highest known bound. A method has 30 s
of processor time, which is checked after each plan: for each budget, or for all budgets of an instance together where
its plans do not depend on the budget (`chen`, `dtr`, `rotor`). `seconds` is the processor time that it took. CP-SAT is
limited by its deterministic time, and by 12 s of wall time a round. A plan that costs less than the best known one is
kept in the row, and `python -m experiments.bench.hand_in_rivals` writes it as a solution file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.benchmark import check
from experiments.benchmark.answers import Answers
from experiments.benchmark.instances import Posed, different_budgets
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.report.markdown import bullets, table
from experiments.report.result_table import ResultTable
from experiments.rivals import checkmate_rounding, chen, dtr, hiremate, moccasin, rotor
from experiments.rivals.best_plans import Best, OutOfTime
from experiments.rivals.tensor_instance import ScorePlan, TensorInstance
from remat import Choice, Corpus
from remat.facts.columns import BoolArray
from remat.problem.problem_file import Budget

FOR_ALL_BUDGETS: dict[str, Callable[[TensorInstance], Iterator[BoolArray]]] = {
    "chen, articulation points": chen.at_articulation_points,
    "chen, any place": chen.at_any_place,
    "chen, in a line": chen.in_a_line,
    "chen, products kept": chen.beside_products,
    "dtr": dtr.plans,
    "rotor": rotor.plans,
}
FOR_ONE_BUDGET: dict[str, Callable[[TensorInstance, Budget, ScorePlan], None]] = {
    "checkmate, rounded": checkmate_rounding.within,
    "hiremate": hiremate.within,
    "moccasin": moccasin.within_peak,
}
METHODS = (*FOR_ALL_BUDGETS, *FOR_ONE_BUDGET)


def measure(case: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Answers the budgets of one instance by one method."""
    method, name = case
    posed = Manifest.open(FOLDER).posed(Corpus.open(), name)
    yield from answered(posed, method, Answers(FOLDER / "answers").of(name))


def answered(posed: Posed, method: str, incumbents: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each budget that has a best known answer, an incumbent."""
    instance = TensorInstance.of(posed.graph, posed.problem)
    different = different_budgets(b for b in posed.budgets if b.name in incumbents)
    budgets = [b for b in different if method != "moccasin" or b.of == "peak"]
    for group in [budgets] if method in FOR_ALL_BUDGETS else [[budget] for budget in budgets]:
        start, best = time.process_time(), Best(instance, group)
        is_whole = run_method(method, instance, group[0], best)
        seconds = round(time.process_time() - start, 2)
        for budget in group:
            row = {"method": method, "instance": posed.name, "budget": budget.name, "values": len(posed.problem)}
            objectives = {"known": incumbents[budget.name]["objective"], "bound": incumbents[budget.name]["bound"]}
            found = best.found.get(budget.name)
            answer = {} if found is None else checked(posed, budget, found[1], objectives["known"])
            why = "" if found else "no plan" if not best.plans else "no plan within the budget"
            yield row | objectives | answer | {"plans": best.plans, "seconds": seconds, "ended": is_whole, "why": why}


def run_method(method: str, instance: TensorInstance, budget: Budget, best: Best) -> bool:
    """Runs a method; returns whether it ended before its time was over."""
    try:
        if method in FOR_ONE_BUDGET:
            FOR_ONE_BUDGET[method](instance, budget, best.offer)
        else:
            for saved in FOR_ALL_BUDGETS[method](instance):
                best.offer(saved)
    except OutOfTime:
        return False
    return True


def checked(posed: Posed, budget: Budget, choice: Choice, incumbent: int) -> dict[str, Any]:
    """Returns the cost of a plan by `check.py`, and what it saves if it costs less than the incumbent."""
    saved: list[int] = np.flatnonzero(choice.saved).tolist()
    verdict = check.check(posed.checked, {"budget": budget.name, "saved": saved})
    if verdict.complaints:
        raise ValueError(f"{budget.name}: {'; '.join(verdict.complaints)}")
    return {"objective": verdict.objective} | ({"saved": saved} if verdict.objective < incumbent else {})


def ratio(row: dict[str, Any], to: str = "known") -> float | None:
    """Returns how many times the best known answer, or its bound, an answer costs; None without an answer."""
    return max(row["objective"], 1) / max(row[to], 1) if "objective" in row else None


def of_method(rows: Sequence[dict[str, Any]], method: str, kind: str) -> dict[str, Any]:
    """Sums up the rows of a method for budgets of one kind, "saved" or "peak"."""
    own = [row for row in rows if row["method"] == method and row["budget"].startswith(kind)]
    kept = [row for row in own if "objective" in row]
    ratios = [ratio(row) or 0 for row in kept]
    return {
        "instances": len({row["instance"] for row in own if row["plans"]}),
        "budgets": len(own),
        "kept": len(kept),
        "median": statistics.median(ratios) if ratios else None,
        "worst": max(ratios, default=None),
        "equal": sum(one == 1 for one in ratios),
        "better": sum(one < 1 for one in ratios),
        "seconds": statistics.median(row["seconds"] for row in own) if own else None,
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says of each method how many budgets it keeps, and how many times the best known answers its answers cost."""
    cells: list[list[Any]] = []
    for method in METHODS:
        saved, peak = (of_method(rows, method, kind) for kind in ("saved", "peak"))
        cells.append([method, peak["instances"], *_cells(saved), *_cells(peak), f"{peak['seconds'] or 0:.1f}"])
    headings = ["method", "instances", "saved: kept", "median, worst", "peak: kept", "median, worst", "s"]
    return [
        table(headings, cells),
        bullets(f"{row['method']} on {row['instance']}, {row['budget']}: -{1 - share:.2%}" for row, share in won(rows)),
    ]


def _cells(sums: dict[str, Any]) -> list[str]:
    kept = f"{sums['kept']}/{sums['budgets']}" if sums["budgets"] else ""
    if not sums["kept"]:
        return [kept, ""]
    worst = sums["worst"]
    return [kept, f"{sums['median']:.2f}, {worst:,.0f}" if worst >= 100 else f"{sums['median']:.2f}, {worst:.2f}"]


def won(rows: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Lists the rows that cost less than the best known answer, with the ratio, the smallest first."""
    found = [(row, share) for row in rows if (share := ratio(row)) is not None and share < 1]
    return sorted(found, key=lambda one: one[1])


def cases() -> list[tuple[str, str]]:
    """Lists the twelve instances of the benchmark first, then the others, the smallest first."""
    entries = Manifest.open(FOLDER).instances.values()
    names = [e["name"] for e in sorted(entries, key=lambda e: (not e["benchmark"], e["values"]))]
    return [(method, name) for method in METHODS for name in names]


TABLE = ResultTable(
    "experiments.bench.rivals",
    "The methods of other papers on the benchmark",
    cases=cases,
    key=lambda case: f"{case[0]}: {case[1]}",
    measure=measure,
    summary=summary,
    columns=None,
)

if __name__ == "__main__":
    TABLE.command()
