"""Writes the league table: what each method reached on the benchmark, and who holds the best known answers.

Nothing is run. The rows are those of `experiments.bench.rivals` and `experiments.compare_solvers`, and the best known
answers of the release.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from experiments.benchmark.answers import Answers
from experiments.benchmark.instances import different_budgets
from experiments.benchmark.manifest import Manifest
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.result_table import RESULTS, Results, Row

SMALL = 2_300
"""The most values of a small instance: up to here, CP-SAT proved most budgets of the peak (see docs/benchmark)."""

GAP_SHIFT, TIME_SHIFT_S = 0.01, 1.0
_KILLED = re.compile(r"killed after (\S+) s")


def markdown(folder: Path) -> str:
    """The page: the answers of a release, and the committed rows of two tables of results."""
    manifest, answers = Manifest.open(folder), Answers(folder / "answers")
    rivals, solvers = (Results.read(RESULTS / f"{name}.json") for name in ("rivals", "compare_solvers"))
    best = {(name, of): one["objective"] for name in manifest.instances for of, one in answers.of(name).items()}
    within = [row for row in solvers.rows if row["budget_bytes"] is not None]
    return page(
        "The league table of the benchmark",
        f"This page compares methods on the instances of [the benchmark](../../docs/benchmark.md) {folder.name}. "
        "`python -m experiments.pages` makes it from rows that other commands measured.",
        "*Small*: at most "
        f"{SMALL:,} values with a choice; *large*: more. A table has the rows for which all of its methods were run. "
        "*Taken*: how many of them ended with a plan within the budget. *Best*: how many of the plans cost as little "
        "as the best known one. *Gap*: 1 - best / objective, so from 0 to 100%; a row without a plan counts as 100%. "
        "*Time*: seconds, also of rows without a plan. Gap and time are shifted geometric means: the exponential "
        "of the mean of log(x + shift), minus the shift. The shift is 1% for gaps and 1 s for times. A method with "
        "less than half of the rows stands below a table, beside the others on its own rows.",
        section("Methods of other papers", *_rivals(rivals, manifest, best)),
        section("Solvers of the library", *_solvers(solvers, within, manifest)),
        section("Who holds the best known answers", *_holders(manifest, answers)),
        section(
            "Enter it",
            "A submission is a folder of solution files, one for each instance that you answer, and one command:",
            "```sh\npython -m experiments.benchmark submit mine\n```",
            "[Best known answers](../../docs/benchmark/answers.md) says what a file holds. Answers that cost less than "
            "the best known ones are taken. After `python -m experiments.benchmark release` and `python -m "
            "experiments.pages`, the last table counts them under what they say in `solver`. The first two tables need "
            "a run on every row: add a method to `experiments/bench/rivals.py`, or a solver by [one "
            "file](../../CONTRIBUTING.md#add-a-solver-in-one-file).",
        ),
    )


def shifted_mean(numbers: Iterable[float], shift: float) -> float:
    """Returns the shifted geometric mean of some numbers that are at least 0; there must be one."""
    logs = [math.log(number + shift) for number in numbers]
    return math.exp(math.fsum(logs) / len(logs)) - shift


def gap(objective: int | None, best: int) -> float:
    """Returns the gap of an answer to the best one, 0 to 1; 1 without an answer, 0 for an answer that is cheaper."""
    if objective is None:
        return 1.0
    return 0.0 if objective <= best else 1 - best / objective


def standings(rows: Sequence[Row], name: str, best: Callable[[Row], int], seconds: str) -> Iterable[str]:
    """Compares methods on the rows that all of them have, the smallest gap first; then those with few rows.

    Args:
        rows: of one class; `instance` and `budget` say which row it is.
        name: the column that names the method.
        best: the cost of the best answer to a row.
        seconds: the column with the time.
    """
    of_method: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        of_method.setdefault(row[name], {})[row["instance"], row["budget"]] = row
    most = max(map(len, of_method.values()), default=0)
    many = {method: own for method, own in of_method.items() if 2 * len(own) > most}
    shared = {place for place in next(iter(many.values()), {}) if all(place in own for own in many.values())}

    def mean_gap(own: Mapping[tuple[str, str], Row], places: Iterable[tuple[str, str]]) -> float:
        return shifted_mean((gap(own[place].get("objective"), best(own[place])) for place in places), GAP_SHIFT)

    lines: list[list[object]] = []
    for method, own in sorted(many.items(), key=lambda item: mean_gap(item[1], shared)):
        answers = [own[place] for place in shared]
        taken = [row for row in answers if row.get("objective") is not None]
        equal = sum(gap(row["objective"], best(row)) == 0 for row in taken)
        time = shifted_mean((row[seconds] for row in answers), TIME_SHIFT_S)
        lines.append([method, len(taken), equal, f"{mean_gap(own, shared):.2%}", f"{time:.2f}"])
    yield f"{len(shared)} rows:"
    yield table(("method", "taken", "best", "gap", "time, s"), lines)
    for method in (method for method in of_method if method not in many):
        places = shared & of_method[method].keys()
        beside = [f"{mean_gap(many[str(other)], places):.2%} of `{other}`" for other, *_ in lines[:3]]
        own_gap = f"{mean_gap(of_method[method], places):.2%}"
        yield f"`{method}` has {len(places)} of these rows, with a gap of {own_gap}, beside {', '.join(beside)}."


def _rivals(results: Results, manifest: Manifest, best: Mapping[tuple[str, str], int]) -> Iterable[str]:
    instances = {row["instance"] for row in results.rows}
    yield (
        f"[The rows](rivals.md) are of {len(instances)} of the {len(manifest.instances)} instances. Budgets of an "
        "instance that are equal in bytes have one row. Each method has 30 s "
        "of processor time: `chen`, `dtr` and `rotor` for all budgets of an instance together, and each of these rows "
        "has the whole time; the others for each budget. The gap is to the answer that is the best known today."
    )
    for of, words in (("saved", "saved bytes"), ("peak", "the peak")):
        for size in ("small", "large"):
            rows = [row for row in results.rows if row["budget"].startswith(of) and _size(manifest, row) == size]
            tables = standings(rows, "method", lambda row: best[row["instance"], row["budget"]], "seconds")
            yield section(f"Budgets of {words}, {size} instances", *tables, level=3)
    yield bullets(cited(run, "experiments.bench.rivals") for run in results.runs)


def _solvers(results: Results, rows: Sequence[Row], manifest: Manifest) -> Iterable[str]:
    yield (
        "[The rows](compare_solvers.md) ask another question about the same graphs: half of the saved bytes, with the "
        "prices of an H200. So the best answer is here the cheapest one of these solvers. A solver has 10 s of wall "
        "time, and if it keeps that limit itself, up to 20 s more to build its model and to stop. Then it is killed, "
        "and counts with the time until then. Rows that a solver refuses are left out."
    )
    cheapest: dict[str, int] = {}
    for row in rows:
        if row.get("objective") is not None:
            cheapest[row["case"]] = min(row["objective"], cheapest.get(row["case"], row["objective"]))
    asked = [
        row | {"budget": "half"} | ({"solve_s": float(killed[1])} if (killed := _KILLED.match(row["note"])) else {})
        for row in rows
        if row["status"] != "refused" and row["case"] in cheapest
    ]
    for size in ("small", "large"):
        own = [row for row in asked if _size(manifest, row) == size]
        tables = standings(own, "solver", lambda row: cheapest[row["case"]], "solve_s")
        yield section(f"Half of the saved bytes, {size} instances", *tables, level=3)
    yield bullets(cited(run, "experiments.compare_solvers") for run in results.runs)


def _holders(manifest: Manifest, answers: Answers) -> Iterable[str]:
    classes = [(of, size) for of in ("saved", "peak") for size in ("small", "large")]
    held: dict[str, Counter[tuple[str, str]]] = {}
    proven: Counter[str] = Counter()
    for name in manifest.instances:
        known = answers.of(name)
        for budget in different_budgets(b for b in manifest.budgets(name) if b.name in known):
            finder = re.sub(r", \d+ steps, seed \d+", "", known[budget.name]["solver"])
            held.setdefault(finder, Counter())[budget.of, _size(manifest, {"instance": name})] += 1
            proven[finder] += known[budget.name]["status"] == "optimal"
    yield (
        "Budgets of one instance that are equal in bytes count once. *Proven*: a bound shows that no answer costs "
        "less; often another solver found that bound."
    )
    lines = [
        [who, *(counts[one] for one in classes), counts.total(), proven[who]]
        for who, counts in sorted(held.items(), key=lambda item: -item[1].total())
    ]
    yield table(["found by", *(f"{of}, {size}" for of, size in classes), "all", "proven"], lines)


def _size(manifest: Manifest, row: Row) -> str:
    return "small" if manifest.instances[row["instance"]]["values"] <= SMALL else "large"
