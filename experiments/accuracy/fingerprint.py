"""Digests of what moved code must not change: `python -m experiments.accuracy.fingerprint FILE`.

Plans of every instance of the corpus under every cost model and three solvers, the kernels and peaks predicted
for them, and what the command line prints on five instances. `FILE` is written where it does not exist; else what
differs from it is listed, and the exit code is 1. What is digested is whatever the public names return, so the
same script runs before and after a change of the modules behind them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import remat
from costmodels import ByteTraffic, MemoryBudget, MultiRead, RecomputeTime

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
INSTANCES = ROOT / "experiments" / "instances"

COST_MODELS = {
    "byte-traffic": ByteTraffic(),
    "byte-traffic:mode=aggressive": ByteTraffic(mode="aggressive"),
    "multi-read": MultiRead(),
    "recompute-time": RecomputeTime(),
    "memory-budget:budget=0.5": MemoryBudget(0.5),
}
FLOW = ("ortools", "networkx", "scipy")
BUDGET = ("lagrangian", "knapsack-greedy", "knapsack-dp")

SMALL = ("small-dropout-mlp", "small-layernorm-gelu-mlp", "small-bert", "small-lstm-cells", "vgg16")
COMMANDS = {
    "solve": ["solve", "{graph}"],
    "solve a budget": ["solve", "{graph}", "-m", "memory-budget:budget=0.3"],
    "solve a peak": ["solve", "{graph}", "-m", "memory-budget:budget=0.8,of=peak"],
    "compare": ["compare", "{graph}", "-s", "ortools", "-s", "networkx"],
    "explain": ["explain", "{graph}", "{value}"],
    "frontier": ["frontier", "{graph}", "--refine", "4"],
    "timeline": ["timeline", "{graph}"],
    "traffic": ["traffic", "{graph}"],
    "traffic, unfused": ["traffic", "{graph}", "--no-fused"],
    "refine": ["refine", "{graph}"],
    "solvers": ["solvers"],
    "costmodels": ["costmodels"],
    "estimators": ["estimators"],
    "corpus list": ["corpus", "list"],
}
_RUN = "from remat.cli import main; main()"


def instance(name: str) -> dict[str, str]:
    """The digests of one instance of the corpus."""
    graph, found = remat.Graph.load(INSTANCES / f"{name}.json.gz"), dict[str, str]()
    for text, cost_model in COST_MODELS.items():
        problem = cost_model.pose(graph)
        for solver in FLOW if problem.budget_bytes is None else BUDGET:
            where = f"{name} | {text} | {solver}"
            try:
                solution = remat.solve(problem, solver)
            except remat.UnsupportedProblem as refusal:
                found[f"{where} | refused"] = digest(str(refusal))
                continue
            assert solution.plan is not None
            answer = [solution.plan.digest, solution.objective, solution.bound, solution.is_proven]
            found[f"{where} | plan"] = digest(answer)
            if solver in ("ortools", "lagrangian"):
                kernels = remat.predict_traffic(graph, solution.plan).kernels
                found[f"{where} | kernels"] = digest([astuple(kernel) for kernel in kernels])
                timeline = remat.timeline(graph, solution.plan)
                found[f"{where} | peak"] = f"{timeline.peak_bytes}"
                found[f"{where} | saved"] = f"{timeline.saved_bytes}" if hasattr(timeline, "saved_bytes") else ""
    return found


def commands(name: str) -> dict[str, str]:
    """The digests of what the command line prints about one instance."""
    graph, found = INSTANCES / f"{name}.json.gz", dict[str, str]()
    values = remat.Graph.load(graph)
    last_saved = remat.choose(values).plan
    assert last_saved is not None
    with TemporaryDirectory() as folder:
        for label, words in COMMANDS.items():
            argv = [word.format(graph=graph, value=last_saved.saved[-1]) for word in words]
            run = subprocess.run(
                [sys.executable, "-c", _RUN, *argv, "--json"],
                capture_output=True, text=True, check=False, env={**_environment(), "REMAT_CACHE": folder},
            )  # fmt: skip
            shown = _untimed(json.loads(run.stdout)) if run.returncode == 0 else run.stderr
            found[f"{name} | remat {label}"] = f"{run.returncode} {digest(shown)}"
    return found


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _untimed(shown: Any) -> Any:
    """What was printed, without times and places of this run."""
    if isinstance(shown, dict):
        return {k: _untimed(v) for k, v in shown.items() if not (k.endswith("_s") or k in ("graph", "path", "folder"))}
    return [_untimed(one) for one in shown] if isinstance(shown, list) else shown


def digest(value: object) -> str:
    """A short hash of anything that JSON, or its `repr`, tells apart."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:20]


def _all(jobs: int, names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    with ProcessPoolExecutor(
        jobs, max_tasks_per_child=1, mp_context=__import__("multiprocessing").get_context("spawn")
    ) as pool:
        by_size = sorted(names, key=lambda name: -(INSTANCES / f"{name}.json.gz").stat().st_size)
        for result in [
            *[pool.submit(instance, n) for n in by_size],
            *[pool.submit(commands, n) for n in by_size if n in SMALL],
        ]:
            found |= result.result()
            print(len(found), f"{time.perf_counter():.0f}", file=sys.stderr)
    return dict(sorted(found.items()))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of instances")
    options = parser.parse_args()
    names = options.only or [path.name.removesuffix(".json.gz") for path in INSTANCES.glob("*.json.gz")]
    now = _all(options.jobs, names)
    if not options.file.exists():
        options.file.write_text(json.dumps(now, indent=0) + "\n")
        return
    before = json.loads(options.file.read_text())
    before = {k: v for k, v in before.items() if k.split(" | ")[0] in names}
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    print("\n".join(changed) or f"nothing of {len(now)} changed")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
