"""Tests the best known answers of the benchmark by simple searches: `python -m experiments.bench.simple_searches`.

A row is a search and an open budget of the peak; budgets of one instance that are equal in bytes have one row. Each
search (`experiments.rivals.simple_searches`) has a minute of processor time, and begins at the best known answer.
`again` is a second minute with another seed, after the better answers of the first were handed in.
`objective` is the cost of the cheapest plan that it found, by `check.py`, and `known` that of the best known answer. A
plan that costs less is kept in the row, and `python -m experiments.bench.hand_in_rivals` writes it as a solution file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.bench.rivals import checked, ratio
from experiments.benchmark.answers import Answers, difficulty
from experiments.benchmark.instances import different_budgets
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable
from experiments.rivals.best_plans import Best, OutOfTime
from experiments.rivals.simple_searches import perturbed_multipliers, random_restarts, tabu_over_layers
from experiments.rivals.tensor_instance import TensorInstance
from remat import Corpus

SEARCHES = {
    "random restarts": random_restarts,
    "perturbed multipliers": perturbed_multipliers,
    "tabu over layers": tabu_over_layers,
    "tabu over layers, again": tabu_over_layers,
}
LIMIT_S = 60.0


def cases() -> list[tuple[str, str, str]]:
    """Lists the open budgets of the peak, those of the benchmark's twelve instances first."""
    manifest, answers = Manifest.open(FOLDER), Answers(FOLDER / "answers")
    rows: list[tuple[str, str]] = []
    for entry in sorted(manifest.instances.values(), key=lambda e: (not e["benchmark"], e["values"])):
        known = answers.of(entry["name"])
        different = [b.name for b in reversed(different_budgets(manifest.budgets(entry["name"]))) if b.of == "peak"]
        rows += [(entry["name"], b) for b in different if difficulty(known.get(b)) == "open"]
    return [(search, *row) for row in rows for search in SEARCHES]


def measure(case: tuple[str, str, str]) -> Iterator[dict[str, Any]]:
    """Runs one search for one budget."""
    search, name, of = case
    posed = Manifest.open(FOLDER).posed(Corpus.open(), name)
    instance, known = TensorInstance.of(posed.graph, posed.problem), Answers(FOLDER / "answers").of(name)[of]
    budget = next(budget for budget in posed.budgets if budget.name == of)
    start = np.isin(instance.value, known["saved"])
    best = Best(instance, [budget], LIMIT_S)
    with contextlib.suppress(OutOfTime):
        random = np.random.default_rng(int(search.endswith("again")))
        SEARCHES[search](instance, budget, best.offer, start, random)
    row = {"method": search, "instance": name, "budget": of, "values": len(posed.problem), "plans": best.plans}
    found = best.found.get(of)
    answer = {} if found is None else checked(posed, budget, found[1], known["objective"])
    yield row | {"known": known["objective"], "bound": known["bound"], "seconds": LIMIT_S} | answer


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says for each search how many answers it beats, by how much."""
    cells: list[list[Any]] = []
    for search in SEARCHES:
        ratios = [ratio(row) or np.inf for row in rows if row["method"] == search]
        better = [1 - share for share in ratios if share < 1]
        over = sum(share > 0.01 for share in better)
        cells.append([search, len(ratios), len(better), over, f"{max(better, default=0):.2%}"])
    return [table(["search", "open budgets", "beaten", "by more than 1%", "at most by"], cells)]


TABLE = ResultTable(
    "experiments.bench.simple_searches",
    "Best known answers, tested by simple searches",
    cases=cases,
    key=" ".join,
    measure=measure,
    summary=summary,
    columns=("method", "instance", "budget", "values", "plans", "known", "objective"),
)

if __name__ == "__main__":
    TABLE.command()
