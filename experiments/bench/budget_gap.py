"""Measures how near the default solver for budgets comes to the optimum: `python -m experiments.bench.budget_gap`.

On every instance of the corpus, at 0.5, 0.3 and 0.1 of what PyTorch's default plan saves: what the plan costs, by how
much that is above the bound of the same run, and how long it took; beside it `lagrangian` alone. The estimator is the
roofline of an H200. A row that there is stays, so that the command goes on where it was stopped. On a machine that is
shared, a search gets a part of a processor only: `--seconds 30` measures again, with more wall time, the rows that time
ended; each row says how much processor time it took.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import remat
from costmodels import MemoryBudget
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Corpus, Graph
from solvers import Portfolio

SHARES = (0.5, 0.3, 0.1)
ESTIMATOR = "roofline:device=h200"
ENOUGH = 0.001
LIMIT_S = Portfolio().seconds

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="an instance; repeatable")] = None,
    seconds: Annotated[float | None, typer.Option(help="for rows that time ended before: of wall time, each")] = None,
    output: Annotated[Path, typer.Option(help="folder for budget_gap.json and .md")] = RESULTS,
) -> None:
    """Solves, and writes budget_gap.json and budget_gap.md after each row."""
    file = output / "budget_gap.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    corpus = Corpus.open()
    names = [entry.name for entry in corpus.entries if not only or entry.name in only]
    remat.solve(remat.Problem.of([1, 1], needed=[0, 1], recompute_cost=[2, 3], budget_bytes=1))  # imports OR-Tools
    for name in names:
        graph = corpus.graph(name)
        for share in SHARES:
            kept = [row for row in rows if (row["instance"], row["share"]) != (name, share)]
            known = [row for row in rows if row not in kept]
            if known and not (seconds and known[0]["stopped"] and known[0]["limit_s"] < seconds):
                continue
            row = {"instance": name, "share": share} | measured(graph, share, Portfolio(seconds=seconds or LIMIT_S))
            console.print(f"{name} at {share}: {above(row):.2%} above the bound, {row['seconds']} s", markup=False)
            rows = sorted([*kept, row], key=lambda row: (names_order(corpus, row), -row["share"]))
            document = {"provenance": provenance(gpu=False), "rows": rows}
            write_results(file, document, markdown(document))


def names_order(corpus: Corpus, row: dict[str, Any]) -> int:
    """Returns the position of a row's instance in the corpus."""
    return [entry.name for entry in corpus.entries].index(row["instance"])


def measured(graph: Graph, share: float, solver: Portfolio) -> dict[str, Any]:
    """Solves one graph at one share of the default, by `lagrangian` and by the default solver."""
    problem = MemoryBudget(share, estimator=ESTIMATOR).pose(graph)
    priced = remat.solve(problem, "lagrangian")
    begin = time.process_time()
    found = remat.solve(problem, solver)
    processor_s = time.process_time() - begin
    return {
        "values": len(problem),
        "budget_bytes": problem.budget_bytes,
        "lagrangian": priced.objective,
        "lagrangian_s": round(priced.solve_time_s, 3),
        "default": found.objective,
        "bound": found.bound,
        "ended": found.termination.reason.name.lower(),
        "stopped": found.termination.limit == "time",
        "limit_s": solver.seconds,
        "seconds": round(found.solve_time_s, 3),
        "processor_s": round(processor_s, 3),
    }


def above(row: dict[str, Any], solver: str = "default") -> float:
    """Returns by which part of the bound a plan costs more."""
    return row[solver] / row["bound"] - 1 if row["bound"] else 0.0


def summarized(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Says of each share how near the plans are, and how long they took."""
    found: dict[str, str] = {}
    for share in SHARES:
        own = [row for row in rows if row["share"] == share]
        if own:
            worst, far = max(own, key=above), max(own, key=lambda row: above(row, "lagrangian"))
            seconds, worked = ([row[kind] for row in own] for kind in ("seconds", "processor_s"))
            found[f"at {share}"] = (
                f"within 0.1% of the bound on {sum(above(row) <= ENOUGH for row in own)} of {len(own)} "
                f"(`lagrangian` alone: {sum(above(row, 'lagrangian') <= ENOUGH for row in own)}); worst "
                f"{above(worst):.2%}, {worst['instance']} (alone: {above(far, 'lagrangian'):.0%}, {far['instance']}); "
                f"called optimal {sum(row['ended'] == 'optimal' for row in own)}; "
                f"median {statistics.median(seconds):.2f} s, of processor time {statistics.median(worked):.2f} s, "
                f"at most {max(worked):.1f} s"
            )
    return found


def markdown(document: dict[str, Any]) -> str:
    """Makes the page for people who read the repository."""
    rows = document["rows"]
    columns = tuple(rows[0]) if rows else ()
    return page(
        "The default solver within a budget",
        f"{cited(document['provenance'], 'experiments.bench.budget_gap')}. Costs are nanoseconds of the roofline of an "
        "H200; shares are of what PyTorch's default plan saves. Times are wall times; `processor s` is what a search "
        f"had of two processors within them. Its limit is {LIMIT_S} s, where `limit s` says nothing else.",
        bullets(f"{share}: {words}" for share, words in summarized(rows).items()),
        section(
            "All rows",
            table(
                ["above the bound", *(column.replace("_", " ") for column in columns)],
                [[f"{above(row):.3%}", *(row[column] for column in columns)] for row in rows],
            ),
        ),
    )


if __name__ == "__main__":
    typer.run(main)
