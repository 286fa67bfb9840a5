"""Gives runs of solvers the same columns, whoever wrote them, and tells which of them solved their instance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from remat.views.report import plots
from remat.views.report.section import Provenance, Row

_RENAMED = {
    "graph": "instance",
    "termination": "status",
    "proven": "certified",
    "certified": "evidence",
    "solve_time_s": "solve_s",
    "pose_time_s": "pose_s",
    "error": "note",
}
"""Columns of `remat.compare`, as the solver comparison of the experiments calls them."""

_NEEDED = {"instance", "values", "cost_model", "solver", "status", "solve_s"}
_NAMES = ("instance", "cost_model", "solver", "status")

WITHIN = 0.001
"""An instance is solved by a plan that costs at most so much more, as a share, than the best bound of any solver.

Under a budget heuristics prove little by themselves, though their plans may be as good as those of exact solvers.
"""

Runs = Sequence[Row]


def is_comparison(rows: Runs) -> bool:
    """Says whether these are runs of solvers."""
    return bool(rows) and all(set(renamed(row)) >= _NEEDED for row in rows)


def renamed(row: Row) -> dict[str, Any]:
    """Gives a row the names that the experiments have for its columns."""
    theirs = "termination" in row
    row = {key: value for key, value in row.items() if not theirs or key != "instance"}  # their name of it is "graph"
    named = {_RENAMED.get(key, key) if theirs else key: value for key, value in row.items()}
    return named | {key: str(named[key]) for key in _NAMES if key in named}


def normalized(rows: Runs) -> list[dict[str, Any]]:
    """Adds to each row `solved`, and `taken_s`: its time, or the limit that stopped it."""
    runs = [renamed(row) for row in rows]
    bounds: defaultdict[tuple[tuple[str, str], str], list[float]] = defaultdict(list)
    for run in runs:
        if plots.is_number(run.get("bound")):
            bounds[graph_of(run), run["cost_model"]].append(run["bound"])
    for run in runs:
        run["solved"] = _is_solved(run.get("objective"), bounds[graph_of(run), run["cost_model"]])
        stopped = bool(run.get("stopped")) and not run["solved"]
        run["taken_s"] = run.get("time_limit_s") if stopped else run["solve_s"]
    return runs


def graph_of(run: Row) -> tuple[str, str]:
    """Says which graph was solved: an instance that was made anew, as the hash of its file tells, is another one."""
    return run["instance"], str(run.get("graph") or "")


def _is_solved(cost: Any, bounds: Sequence[float]) -> bool:
    return bool(bounds) and plots.is_number(cost) and cost - max(bounds) <= WITHIN * abs(max(bounds))


def names(runs: Runs, column: str) -> list[str]:
    """Lists what a column says, in the order in which it comes first."""
    return list(dict.fromkeys(run[column] for run in runs))


def summary(rows: Runs) -> list[dict[str, Any]]:
    """Makes a row for each cost model and solver: what it solved, and how fast."""
    runs = normalized(rows)
    found: list[dict[str, Any]] = []
    for model in names(runs, "cost_model"):
        for solver in sorted(names(runs, "solver")):
            own = [run for run in runs if run["cost_model"] == model and run["solver"] == solver]
            if own:
                found.append({"cost_model": model, "solver": solver} | _totals(own))
    return found


def _totals(runs: Runs) -> dict[str, Any]:
    solved = [run for run in runs if run["solved"] and plots.is_positive(run["solve_s"], run["values"])]
    gaps = [run["gap"] for run in runs if plots.is_number(run.get("gap"))]
    return {
        "instances": _instances(runs),
        "solved": _instances(run for run in runs if run["solved"]),
        "certified": _instances(run for run in runs if run.get("certified") is True),
        "with a plan": _instances(run for run in runs if plots.is_number(run.get("objective"))),
        "worst_gap": max(gaps, default=None),
        "median_solve_s": median(run["solve_s"] for run in solved) if solved else None,
        "slowest_solve_s": max((run["solve_s"] for run in solved), default=None),
        "most values solved": max((run["values"] for run in solved), default=None),
    }


def _instances(runs: Iterable[Row]) -> int:
    return len({graph_of(run) for run in runs})


def provenance(rows: Runs) -> tuple[Provenance, ...]:
    """Lists commit, machine and versions of the runs, and of each the dates from its first run to its last."""
    dates: defaultdict[tuple[tuple[str, str], ...], set[str]] = defaultdict(set)
    for row in rows:
        facts = tuple((key, str(row[key])) for key in ("commit", "machine", "versions") if row.get(key))
        dates[facts] |= {str(row["date"])} if row.get("date") else set()
    return tuple(dict(facts) | _span(found) for facts, found in dates.items() if facts or found)


def _span(dates: set[str]) -> dict[str, str]:
    ends = sorted({min(dates), max(dates)}) if dates else []
    return {"date": " to ".join(ends)} if ends else {}
