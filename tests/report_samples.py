"""Files of results that several tests of the report read."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples import chain

from remat.views.report.section import Figure

RESULTS = Path(__file__).parents[1] / "experiments" / "results"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>bold</b>&\u2028"
LONG = "memory-budget:budget=0.5,estimator=roofline:device=h200"
"""A cost model whose name is wider than a telephone."""

ORIGIN = {
    "commit": "0123456789ab-dirty",
    "date": "2026-01-02T03:04+00:00",
    "command": "python -m experiments.something",
    "machine": "x86_64, 2 cores, no GPU",
    "torch": "2.13.0+cpu",
}


def solver_run(instance: str, values: int, solver: str, solve_s: float | None, **more: Any) -> dict[str, Any]:
    """A row as the solver comparison of the experiments exports it."""
    answer = {"status": "optimal", "objective": 2**60, "bound": 2**60, "gap": 0.0, "certified": True}
    times = {
        "pose_s": 0.01,
        "solve_s": solve_s,
        "certify_s": 0.02,
        "total_s": None if solve_s is None else solve_s + 0.03,
    }
    about = {
        "instance": instance,
        "family": "small",
        "values": values,
        "uses": 2 * values,
        "cost_model": "byte-traffic",
    }
    kept = {"saved_bytes": 4096, "plan": "12e45", "repeats": 3, "note": ""}
    origin = {"commit": "0123456", "date": "2026-01-02", "machine": "x86_64, 2 cores", "unit": "bytes"}
    return about | {"solver": solver} | answer | times | kept | origin | more


def solver_runs() -> list[dict[str, Any]]:
    """Four instances, two cost models, three solvers; one of them is stopped, one refuses."""
    rows: list[dict[str, Any]] = []
    for model in ("byte-traffic", LONG):
        for values in (100, 1000, 5000, 20000):
            for factor, solver in ((1, "ortools"), (3, "scipy"), (50, "pulp")):
                rows.append(solver_run(f"graph-{values}", values, solver, 1e-6 * values * factor, cost_model=model))
    lost = {"status": "timeout", "objective": None, "bound": None, "gap": None, "certified": False}
    rows[-1] |= lost | {"solve_s": None, "total_s": None, "stopped": True, "time_limit_s": 10.0, "note": "killed"}
    rows[-2] |= lost | {"status": "refused", "solve_s": None, "total_s": None}
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    names = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_json(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def drawn(figure: Figure) -> int:
    """How many traces are there to see at first."""
    return sum(trace.get("visible", True) is True for trace in figure.data)


def evil_files(folder: Path) -> list[Path]:
    """Files of every kind whose names, all of them, want to break out."""
    evil = replace(chain(4), meta={"model": EVIL})
    evil.save(folder / "graph.json")
    row = {"model": EVIL, "estimator": EVIL, EVIL: EVIL, "budget": 0.5, "pytorch": 3, "ours": 2, "illegal": EVIL}
    runs = [solver_run(EVIL + str(i), 10**i, EVIL, 1.0, cost_model=EVIL, note=EVIL) for i in (1, 2)]
    traffic = [{"model": EVIL, "strategy": name, "bytes": 10, "saved_bytes": 1} for name in ("PyTorch", EVIL)]
    document = {
        "provenance": ORIGIN | {"command": EVIL, EVIL: EVIL},
        EVIL: [row],
        "rows": traffic,
        "what": {EVIL: EVIL},
    }
    return [
        folder / "graph.json",
        write_json(folder / "runs.json", runs),
        write_json(folder / "a<script>alert(3)<b>.json", document),
    ]


def strict(text: str) -> Any:
    """JSON as the standard has it: without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)
