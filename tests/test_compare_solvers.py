"""The comparison of solvers: whatever a solver does makes a row, and claims that contradict each other are found."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from costmodels import ByteTraffic, MemoryBudget
from experiments.compare_solvers import answer, disagreements, same_plans, times, with_gaps
from remat import Corpus, Problem, Solution
from remat.plugin import Solver
from solvers import Lagrangian, NetworkX, ORTools

GRAPH = Corpus.open().graph("small-dropout-mlp")
PROBLEM = ByteTraffic().pose(GRAPH)


@dataclass(frozen=True)
class Hangs(Solver):
    """Starts a process, ignores every signal that can be ignored, and sleeps; not on the trifle that warms it up."""

    name: ClassVar[str] = "hangs"
    note: str = ""

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        if len(problem) > 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "120"])
            Path(self.note).write_text(f"{os.getpid()} {child.pid}")
            time.sleep(120)
        return ORTools()._solve(problem, time_limit_s=None)


def test_a_row_says_what_a_solver_found() -> None:
    row = answer(GRAPH, PROBLEM, ORTools(), 20)
    assert (row["status"], row["certified"], row["note"]) == ("optimal", True, "")
    assert row["objective"] == row["bound"] > 0
    within = MemoryBudget(0.5).pose(GRAPH)
    assert answer(GRAPH, within, NetworkX(), 20)["status"] == "refused"
    assert answer(GRAPH, within, Lagrangian(), 20)["saved_bytes"] <= (within.budget_bytes or 0)


def test_a_solver_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    assert answer(GRAPH, PROBLEM, Hangs(str(note)), 1) == {"status": "timeout", "note": "killed after 1 s"}
    end = time.monotonic() + 60
    while any(map(alive, map(int, note.read_text().split()))):
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may wait for it here
    except FileNotFoundError:
        return False


def row(**changes: Any) -> dict[str, Any]:
    about = {"case": "a", "instance": "a", "solver": "exact", "status": "optimal", "note": "", "solve_s": 1.0}
    return about | changes


def test_a_plan_below_a_bound_is_a_disagreement() -> None:
    exact = row(objective=2**60 + 1, bound=2**60 + 1)
    below = row(solver="heuristic", objective=2**60, status="feasible")
    assert len(disagreements([exact, below])) == 1
    assert disagreements([exact, below | {"objective": 2**60 + 1}]) == []
    assert disagreements([exact, below | {"case": "b"}]) == []
    assert len(disagreements([exact, row(solver="pessimist", status="infeasible")])) == 1
    assert disagreements([row(status="infeasible")]) == []
    assert disagreements([exact, row(solver="refuses", status="refused", note="too large")]) == []


def test_certified_plans_are_counted_as_the_same_only_if_they_are() -> None:
    rows = [row(solver=solver, certified=True, plan=plan) for solver, plan in (("a", "x"), ("b", "x"), ("c", "y"))]
    assert [same_plans(rows[:count]) for count in (1, 2, 3)] == [(0, 0), (1, 1), (0, 1)]


def test_times_count_where_a_plan_is_near_the_best_bound_of_any_solver() -> None:
    rows = [
        row(solver="exact", objective=1000, bound=1000, solve_s=4.0),
        row(solver="near", objective=1001, bound=900, solve_s=2.0),
        row(solver="far", objective=1002, bound=900, solve_s=1.0),
        row(solver="late", status="timeout", objective=None, bound=None, solve_s=None),
    ]
    frame = with_gaps(rows)
    assert frame["gap"].tolist()[:3] == [0, pytest.approx(0.001), pytest.approx(0.002)]
    assert times(frame).loc["a"].to_dict() == {"exact": 2.0, "near": 1.0, "far": np.inf, "late": np.inf}
