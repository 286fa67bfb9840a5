"""Measures how near the default solver for budgets comes to the optimum: `python -m experiments.bench.budget_gap`.

The rows: every instance of the corpus, at 0.5, 0.3 and 0.1 of what PyTorch's default plan saves. Each row has the cost
of the plan, the bound of the same run, the seconds of the search, and the cost with `lagrangian` alone. Costs are
nanoseconds of the roofline of an H200. Seconds are of wall time; on a machine that others use, a search has a part of a
processor only, and `processor s` says how much it had.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import remat
from costmodels import MemoryBudget
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Corpus
from solvers import Portfolio

SHARES = (0.5, 0.3, 0.1)
ENOUGH = 0.001


def measure(case: tuple[str, float]) -> Iterator[dict[str, Any]]:
    """Solves one graph at one share of the default, by `lagrangian` and by the default solver."""
    name, share = case
    problem = MemoryBudget(share, estimator="roofline:device=h200").pose(Corpus.open().graph(name))
    remat.solve(remat.Problem.of([1, 1], needed=[0, 1], recompute_cost=[2, 3], budget_bytes=1))  # imports OR-Tools
    priced = remat.solve(problem, "lagrangian")
    begin = time.process_time()
    found = remat.solve(problem, solver := Portfolio())
    yield {
        "instance": name,
        "share": share,
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
        "processor_s": round(time.process_time() - begin, 3),
    }


def above(row: dict[str, Any], solver: str = "default") -> float:
    """Returns by which part of the bound a plan costs more."""
    return row[solver] / row["bound"] - 1 if row["bound"] else 0.0


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says of each share how near the plans are, and how long they took."""
    found: list[str] = []
    for share in SHARES:
        if own := [row for row in rows if row["share"] == share]:
            worst, far = max(own, key=above), max(own, key=lambda row: above(row, "lagrangian"))
            seconds, worked = ([row[kind] for row in own] for kind in ("seconds", "processor_s"))
            found.append(
                f"at {share}: within 0.1% of the bound on {sum(above(row) <= ENOUGH for row in own)} of {len(own)} "
                f"(`lagrangian` alone: {sum(above(row, 'lagrangian') <= ENOUGH for row in own)}); worst "
                f"{above(worst):.2%}, {worst['instance']} (alone: {above(far, 'lagrangian'):.0%}, {far['instance']}); "
                f"called optimal {sum(row['ended'] == 'optimal' for row in own)}; "
                f"median {statistics.median(seconds):.2f} s, of processor time {statistics.median(worked):.2f} s, "
                f"at most {max(seconds):.1f} s"
            )
    return [bullets(found)]


TABLE = ResultTable(
    "experiments.bench.budget_gap",
    "The default solver within a budget",
    cases=lambda: [(entry.name, share) for entry in Corpus.open().entries for share in SHARES],
    key=lambda case: f"{case[0]} at {case[1]}",
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
