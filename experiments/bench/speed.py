"""Measures how fast a proven plan is: `python -m experiments.bench.speed`.

`captured` times the choice of saved values on a captured transformer of 10,000 values, ours and PyTorch's own in turns
on the same joint graph. Seconds are processor time, because others use the machine, too. `synthetic` are problems of up
to 1,000,000 values, by `ortools`: nothing is banned, so that the network does not fall into pieces. `import` is the
wall time of a fresh interpreter.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import remat
from costmodels import ByteTraffic
from experiments.models import zoo
from experiments.models.synthetic import training_step
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.torch_partitioner import torchs_choice

PYTORCH = "PyTorch: choose_saved_values_set"
REPEATS = 9


@dataclass(frozen=True)
class Priced(remat.CostModel):
    """Bans nothing, and prices recomputing at a third of a save."""

    name: ClassVar[str] = "priced"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices a save at the bytes it moves, and a recomputation at a third of them."""
        return replace(remat.plugin.Terms.nothing(graph), save_cost=3 * graph.bytes, recompute_cost=graph.bytes)


def captured(layers: int = 50, repeats: int = REPEATS) -> Iterator[dict[str, Any]]:
    """Times PyTorch's choice and ours, in turns, on the joint graph of a deep transformer."""
    model, args = zoo.gpt2(layers=layers, width=32, heads=2, vocabulary=64, context=16, batch=2)
    rows: list[dict[str, Any]] = []

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        def read() -> remat.Graph:
            return extract(joint_graph, node_info, num_fwd_outputs)

        graph = read()
        remat.solve(ByteTraffic().pose(graph))  # imports OR-Tools
        steps: dict[str, Callable[[], Any]] = {
            PYTORCH: lambda: torchs_choice(joint_graph, node_info),
            "remat: live FX graph to Graph": read,
            "remat: Graph to certified plan": lambda: remat.solve(ByteTraffic().pose(graph)),
            "remat: live FX graph to certified plan": lambda: remat.solve(ByteTraffic().pose(read())),
        }
        rows.extend({"values": len(graph), "step": name, **row} for name, row in in_turns(steps, repeats).items())

    visit_joint_graphs(visit, model, *args)
    fastest = next(row["fastest_s"] for row in rows if row["step"] == PYTORCH)
    median = next(row["median_s"] for row in rows if row["step"] == PYTORCH)
    for row in rows:  # the most careful reading: PyTorch at its fastest beside us at our slowest
        yield row | {"median_ratio": median / row["median_s"], "worst_ratio": fastest / row["slowest_s"]}


def in_turns(
    steps: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, dict[str, float]]:
    """Times steps one after the other, again and again: the median, the fastest and the slowest of each."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            gc.collect()  # of the others' garbage, of which a whole collection takes half a second
            start = clock()
            step()
            seconds[name].append(clock() - start)
    return {
        name: {"median_s": statistics.median(taken), "fastest_s": min(taken), "slowest_s": max(taken)}
        for name, taken in seconds.items()
    }


def synthetic() -> Iterator[dict[str, Any]]:
    """Times posing, solving and certifying; half of the values of a graph are in its problem."""
    for size in (20_000, 200_000, 2_000_000):
        graph = training_step(size)
        row = in_turns({"": lambda: remat.solve(Priced().pose(graph))}, 3)[""]  # noqa: B023
        yield {"values": size // 2, "step": "posed, solved by ortools, certified", **row}


def imports() -> Iterator[dict[str, Any]]:
    """Times an interpreter that imports nothing, one with numpy, and one with `remat`."""
    for statement in ("pass", "import numpy", "import remat"):
        command = [sys.executable, "-c", statement]
        row = in_turns({"": lambda: subprocess.run(command, check=True)}, 5, time.perf_counter)[""]  # noqa: B023
        yield {"step": statement, **row}


MEASUREMENTS = {"captured": captured, "synthetic": synthetic, "import": imports}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Puts our times beside PyTorch's."""
    lines = [
        [row["step"], f"{row['median_s']:.3f}", f"{row['median_ratio']:.1f}", f"{row['worst_ratio']:.1f}"]
        for row in rows
        if row["case"] == "captured"
    ]
    return [table(["step", "median, s", "times as fast", "our slowest beside PyTorch's fastest"], lines)]


TABLE = ResultTable(
    "experiments.bench.speed",
    "How fast a proven plan is",
    cases=lambda: MEASUREMENTS,
    measure=lambda name: MEASUREMENTS[name](),
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
