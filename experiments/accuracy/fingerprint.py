"""Checks that a change of the code has changed no answer: `python -m experiments.accuracy.fingerprint`.

It takes digests of what the public names return, and compares them with those of a reference: the plan, objective,
bound and proof of every instance of the corpus under five cost models and three solvers; the kernels, the peak and the
saved bytes that are predicted for such plans; and what the `remat` command prints as JSON about a few instances. What
differs is listed by name, and the exit code is 1.

The reference is `fingerprint.json`, beside this file. So before a rebuild, and as often as one likes while it goes on:

    python -m experiments.accuracy.fingerprint --only small-dropout-mlp small-bert vgg16
    python -m experiments.accuracy.fingerprint
    python -m experiments.accuracy.fingerprint --update

The first takes half a minute; the second asks about the whole corpus; the third is for a change that was meant.

A reference of one's own is a FILE that does not exist yet: it is written. The wording of docstrings and of refusals is
no part of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import remat
from costmodels import ByteTraffic, MemoryBudget, MultiRead, RecomputeTime
from remat.predict.memory import simulate
from remat.words import near

ROOT = Path(__file__).parents[2]
INSTANCES = ROOT / "experiments" / "instances"
REFERENCE = Path(__file__).with_suffix(".json")

COST_MODELS: dict[str, remat.CostModel] = {
    "byte-traffic": ByteTraffic(),
    "byte-traffic:mode=aggressive": ByteTraffic(mode="aggressive"),
    "multi-read": MultiRead(),
    "recompute-time": RecomputeTime(),
    "memory-budget:budget=0.5": MemoryBudget(0.5),
}
CUT_SOLVERS = ("ortools", "networkx", "scipy")
BUDGET_SOLVERS = ("lagrangian", "knapsack-greedy", "knapsack-dp")
PREDICTED = ("ortools", "lagrangian")
"""The solvers for whose plans kernels and memory are predicted: plans of equal price have equal digests here."""

PRINTED = ("small-dropout-mlp", "small-layernorm-gelu-mlp", "small-bert", "small-lstm-cells", "vgg16")
"""The instances about which the command line is asked."""

COMMANDS = {
    "solve": ["solve", "{graph}"],
    "solve a budget": ["solve", "{graph}", "-m", "memory-budget:budget=0.3"],
    "solve a peak": ["solve", "{graph}", "-m", "memory-budget:budget=0.8,of=peak"],
    "compare": ["compare", "{graph}", "-s", "ortools", "-s", "networkx"],
    "explain": ["explain", "{graph}", "{value}"],
    "frontier": ["frontier", "{graph}", "--refine", "4"],
    "timeline": ["inspect", "timeline", "{graph}"],
    "traffic": ["inspect", "traffic", "{graph}"],
    "traffic, unfused": ["inspect", "traffic", "{graph}", "--no-fused"],
    "solvers": ["plugins", "solvers"],
    "costmodels": ["plugins", "costmodels"],
    "estimators": ["plugins", "estimators"],
    "corpus list": ["corpus", "list"],
}
_LEFT_OUT = ("doc", "graph", "path", "folder")
"""Keys of printed JSON whose text may change: docstrings, and the places of a run."""

_START = "from remat.cli import main; main()"

Digests = dict[str, str]
"""Digests by their names: "instance | cost model | solver | what", or "instance | remat command"."""


def of_plans(name: str) -> Digests:
    """Takes the digests of the plans of one instance, and of what is predicted for them."""
    graph, found = remat.Graph.load(INSTANCES / f"{name}.json.gz"), Digests()
    for text, cost_model in COST_MODELS.items():
        problem = cost_model.pose(graph)
        for solver in CUT_SOLVERS if problem.budget_bytes is None else BUDGET_SOLVERS:
            where = f"{name} | {text} | {solver}"
            try:
                solution = remat.solve(problem, solver)
            except remat.UnsupportedProblem:
                found[f"{where} | refused"] = "refused"
                continue
            assert solution.plan is not None  # solve() raises where there is none
            answer = [solution.plan.digest, solution.objective, solution.bound, solution.is_proven]
            found[f"{where} | plan"] = digest(answer)
            if solver in PREDICTED:
                kernels = remat.predict_traffic(graph, solution.plan).kernels
                timeline = simulate(graph, solution.plan)
                found[f"{where} | kernels"] = digest([astuple(kernel) for kernel in kernels])
                found[f"{where} | peak"] = f"{timeline.peak_bytes}"
                found[f"{where} | saved"] = f"{timeline.saved_bytes}"
    return found


def of_commands(name: str) -> Digests:
    """Takes the digests of what the command line prints about one instance."""
    graph, found = INSTANCES / f"{name}.json.gz", Digests()
    plan = remat.choose(remat.Graph.load(graph)).plan
    assert plan is not None
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for label, words in COMMANDS.items():
        argv = [word.format(graph=graph, value=plan.saved[-1]) for word in words]
        command = [sys.executable, "-c", _START, *argv, "--json"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        shown = _untimed(json.loads(run.stdout)) if run.returncode == 0 else run.stderr
        found[f"{name} | remat {label}"] = f"{run.returncode} {digest(shown)}"
    return found


def _untimed(shown: Any) -> Any:
    """Removes times, and what else may change from run to run, from what was printed."""
    if isinstance(shown, dict):
        document = cast(dict[str, Any], shown)
        kept = (key for key in document if not key.endswith("_s") and key not in _LEFT_OUT)
        return {key: _untimed(document[key]) for key in kept}
    return [_untimed(one) for one in cast(list[Any], shown)] if isinstance(shown, list) else shown


def digest(value: object) -> str:
    """Makes a short hash of anything that JSON, or its `str`, tells apart."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:20]


def taken(names: Iterable[str], jobs: int) -> Digests:
    """Takes the digests of instances in `jobs` processes at a time, a fresh one for each instance."""
    found, start = Digests(), time.perf_counter()
    largest_first = sorted(names, key=lambda name: -(INSTANCES / f"{name}.json.gz").stat().st_size)
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = [pool.submit(of_plans, name) for name in largest_first]
        tasks += [pool.submit(of_commands, name) for name in largest_first if name in PRINTED]
        for done, task in enumerate(as_completed(tasks), 1):
            found |= task.result()
            print(f"{done} of {len(tasks)} parts, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return dict(sorted(found.items()))


def differences(before: Mapping[str, str], now: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Lists what differs between two fingerprints, one line each; only these instances of the reference count."""
    chosen = set(names)
    known = {key: value for key, value in before.items() if key.split(" | ")[0] in chosen}
    lines: list[str] = []
    for key in sorted(known.keys() | now.keys()):
        if key not in now:
            lines.append(f"gone: {key}")
        elif key not in known:
            lines.append(f"new: {key}")
        elif known[key] != now[key]:
            lines.append(f"changed: {key}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Compares what the command line asks for, and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=REFERENCE, help="the reference; fingerprint.json")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; 2")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="instances; all of the corpus")
    parser.add_argument("--update", action="store_true", help="write what is found into the reference")
    options = parser.parse_args(argv)
    known = sorted(path.name.removesuffix(".json.gz") for path in INSTANCES.glob("*.json.gz"))
    for name in options.only or ():
        if name not in known:
            parser.error(f"--only must name instances of the corpus, got {name!r}{near(name, known)}")
    names: list[str] = options.only or known
    now = taken(names, options.jobs)
    before: Digests = json.loads(options.file.read_text()) if options.file.exists() else {}
    changed = differences(before, now, names) if before else []
    if options.update or not before:
        others = {key: value for key, value in before.items() if key.split(" | ")[0] not in names}
        options.file.write_text(json.dumps(dict(sorted((others | now).items())), indent=0) + "\n")
    print("\n".join(changed) or f"nothing of {len(now)} changed")
    return int(bool(changed) and not options.update)


if __name__ == "__main__":
    sys.exit(main())
