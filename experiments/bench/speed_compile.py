"""Measures what a proven plan costs inside `torch.compile`: `python -m experiments.bench.speed_compile`.

Three tables, each beside PyTorch in one run, in turns: choosing what to save, inside real compilations by
TorchInductor of every small model; the first choice of a process, imports included; and the first training step of a
transformer of 10,000 values, compilation and all, without any cache.
"""

from __future__ import annotations

import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import torch
import torch._functorch.config as aot_config
import typer
from rich.console import Console

from experiments.bench.speed import show
from experiments.bench.speed_compile_case import WHO, compiled
from experiments.bench.stack import at_depth, depths
from experiments.models import zoo
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from experiments.models.training import train
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.pytorch.read import split
from remat.pytorch.seam.torch_partitioner import Chooser, partition, torchs_choice

MODELS = {
    **CASES,
    "GPT-2, default size": ModelCase("GPT-2, default size", zoo.GPT2, lambda: (torch.randint(512, (4, 64)),)),
}
"""Every small model that the tests train, and the model that the demo compiles."""

COLD = ("pointwise chain", "GPT-2")
console = Console(width=max(Console().width, 130))


def main(
    repeats: Annotated[int, typer.Option(help="compilations of each small model")] = 7,
    layers: Annotated[int, typer.Option(help="of the transformer; 50 make 10,000 values")] = 50,
    steps: Annotated[int, typer.Option(help="first steps of the transformer, for each partitioner")] = 5,
    codegen_layers: Annotated[int, typer.Option(help="of the one whose code is generated, too")] = 50,
    codegen_steps: Annotated[int, typer.Option(help="its first steps, of minutes each")] = 1,
    output: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "compile_speed.json",
) -> None:
    """Measures and prints the tables, and writes them as JSON with their provenance."""
    warnings.simplefilter("ignore")  # torch's own deprecations
    rows = {
        "choosing": choosing(MODELS.values(), repeats),
        "cold": [cold(name, steps) for name in COLD],
        "without_codegen": transformer(layers, steps, "graphs"),
        "with_codegen": transformer(codegen_layers, codegen_steps, "step"),
    }
    show("The first choice of a process, imports included", rows["cold"])
    show(f"First step of a transformer of {layers} layers, no code generated", rows["without_codegen"])
    show(f"First step of a transformer of {codegen_layers} layers", rows["with_codegen"])
    show("Choosing what to save, inside TorchInductor", rows["choosing"])
    report = {"provenance": provenance(), "seeds": "0, for weights and inputs", "device": "cpu", **rows}
    write_results(output, report)
    console.print(f"written to {output}")


@dataclass(frozen=True)
class Race:
    """Sums up the seconds of both choices over the joint graphs of one compilation.

    Attributes:
        graphs: joint graphs, of which a graph break makes several.
        nodes: their nodes.
        torch_s, remat_s: wall time of PyTorch's choice, and of ours: facts, problem, solution, proof and check.
        torch_cpu_s, remat_cpu_s: processor time of the same.
    """

    graphs: int = 0
    nodes: int = 0
    torch_s: float = 0.0
    remat_s: float = 0.0
    torch_cpu_s: float = 0.0
    remat_cpu_s: float = 0.0

    def and_of(self, nodes: int, torchs: Seconds, ours: Seconds) -> Race:
        """Adds the times of one more graph."""
        return Race(
            self.graphs + 1,
            self.nodes + nodes,
            self.torch_s + torchs.wall,
            self.remat_s + ours.wall,
            self.torch_cpu_s + torchs.cpu,
            self.remat_cpu_s + ours.cpu,
        )


class Seconds(NamedTuple):
    """Holds seconds of wall time, and of processor time of this thread."""

    wall: float
    cpu: float


def choosing(cases: Iterable[ModelCase], repeats: int) -> list[dict[str, Any]]:
    """Compiles each model `repeats` times, and times both choices in each, ours first in every second one.

    A graph is new to both each time, but the process is warm: another model was compiled before.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        race(ModelCase("warm-up", lambda: torch.nn.Sequential(torch.nn.Linear(7, 7), torch.nn.Tanh()), _warm_up_batch))
        for case in cases:
            with console.status(case.name):
                races = [
                    at_depth(depth, functools.partial(race, case, ours_first=bool(i % 2)))
                    for i, depth in enumerate(depths(repeats))
                ]
            rows.append({"model": case.name, **compared(races)})
    return rows


def _warm_up_batch() -> tuple[torch.Tensor, ...]:
    return (torch.randn(3, 7),)


def race(case: ModelCase, *, ours_first: bool = False, codegen: bool = True) -> Race:
    """Trains a case through `remat.compile`, and times PyTorch's choice beside ours on its joint graphs."""
    torch.compiler.reset()
    total = Race()

    def partition_timed(module: Any, inputs: Any, chooser: Chooser, **kwargs: Any) -> Any:
        def both(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> Any:
            nonlocal total
            chosen: list[Any] = []

            def ours() -> None:
                chosen.append(chooser(joint_graph, node_info, num_fwd_outputs))

            def torchs() -> None:
                torchs_choice(joint_graph, node_info)

            seconds = {step: _timed(step) for step in ((ours, torchs) if ours_first else (torchs, ours))}
            total = total.and_of(len(joint_graph.nodes), seconds[torchs], seconds[ours])
            return chosen[0]

        return partition(module, inputs, both, **kwargs)

    # TorchInductor's own cache only spares the C++ compiler; AOTAutograd's would spare the choice.
    with patch.object(split, "partition", partition_timed), aot_config.patch(enable_autograd_cache=False):
        train(case, lambda model: compiled("remat", model, codegen=codegen, dynamic=case.dynamic))
    return total


def _timed(step: Callable[[], None]) -> Seconds:
    cpu, wall = time.thread_time(), time.perf_counter()
    step()
    return Seconds(time.perf_counter() - wall, time.thread_time() - cpu)


def compared(races: list[Race]) -> dict[str, Any]:
    """Computes medians over compilations, their ratio, and the spread."""
    columns = {name: [getattr(race, name) for race in races] for name in ("torch_s", "remat_s")}
    cpu = {name: statistics.median(getattr(race, name) for race in races) for name in ("torch_cpu_s", "remat_cpu_s")}
    row: dict[str, Any] = {"graphs": races[0].graphs, "nodes": races[0].nodes}
    for name, seconds in columns.items():
        row |= {name: statistics.median(seconds), f"{name}_fastest": min(seconds), f"{name}_slowest": max(seconds)}
    row["ratio"] = row["torch_s"] / row["remat_s"]
    row["cpu_ratio"] = cpu["torch_cpu_s"] / cpu["remat_cpu_s"]
    return row


def cold(name: str, repeats: int) -> dict[str, Any]:
    """Times the first choice in a process of its own, by PyTorch and by us in turns."""
    rows = [{who: in_own_process(who, "choose", name, depth)["choose_s"] for who in WHO} for depth in depths(repeats)]
    torchs, ours = (statistics.median(row[who] for row in rows) for who in WHO)
    slowest = {f"{who}_slowest_s": max(row[who] for row in rows) for who in WHO}
    return {"model": name, "torch_s": torchs, "remat_s": ours, "ratio": torchs / ours, **slowest}


def transformer(layers: int, steps: int, what: str) -> list[dict[str, Any]]:
    """Times first steps of the transformer in processes of their own, by PyTorch and by us in turns."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in WHO}
    for depth in depths(steps):
        for who in WHO:
            with console.status(f"{who}, {what}, {layers} layers"):
                runs[who].append(in_own_process(who, what, str(layers), depth))
    return totals(runs, layers)


def totals(runs: dict[str, list[dict[str, Any]]], layers: int) -> list[dict[str, Any]]:
    """Makes a row for each partitioner from its runs of a transformer: PyTorch's first, then ours with ratios to it."""
    rows: list[dict[str, Any]] = []
    for who, each in runs.items():
        median = {key: statistics.median(run[key] for run in each) for key in ("total_s", "cpu_s", "choose_s")}
        spread = {"fastest_s": min(run["total_s"] for run in each), "slowest_s": max(run["total_s"] for run in each)}
        spread |= {"least_cpu_s": min(run["cpu_s"] for run in each), "most_cpu_s": max(run["cpu_s"] for run in each)}
        share = statistics.median(run["choose_s"] / run["total_s"] for run in each)
        spread = {"choose_share": share, "steps": len(each), **spread}
        rows.append({"partitioner": who, "layers": layers, **median, **spread})
        rows[-1] |= {"ratio": rows[0]["total_s"] / median["total_s"], "cpu_ratio": rows[0]["cpu_s"] / median["cpu_s"]}
    pairs = [(torchs["cpu_s"], ours["cpu_s"]) for torchs, ours in zip(*runs.values(), strict=True)]
    rows[-1] |= paired(pairs)
    return rows


def paired(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Compares runs that followed each other: a machine that gets slower while it measures slows both of a pair.

    Args:
        pairs: seconds of PyTorch's run, and of ours.

    Returns:
        the median of what ours saves, in how many pairs it is faster, and how likely so many or more were if neither
        were faster (sign test, one-sided).
    """
    saved = [torchs - ours for torchs, ours in pairs]
    faster = sum(seconds > 0 for seconds in saved)
    chance = sum(math.comb(len(pairs), k) for k in range(faster, len(pairs) + 1)) / 2 ** len(pairs)
    return {"saved_cpu_s": statistics.median(saved), "pairs_faster": faster, "chance": chance}


def in_own_process(who: str, what: str, which: str, depth: int) -> dict[str, Any]:
    """Runs `experiments.bench.speed_compile_case` with an empty cache folder and no caches, and returns its row."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        command = [sys.executable, "-m", "experiments.bench.speed_compile_case", who, what, which, str(depth)]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    typer.run(main)
