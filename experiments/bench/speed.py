"""Measures how fast a proven plan is, beside PyTorch in one run: `python -m experiments.bench.speed`.

Three tables: choosing what to save on a captured transformer of 10,000 values, against PyTorch's
own choice on the same joint graph; synthetic graphs up to 2,000,000 values for every solver that
can; and what `import remat` costs. Ratios are between medians of alternating runs, of processor time where
PyTorch is beside: a machine that others share says little else. `--only captured` measures one table again.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import remat
from costmodels import ByteTraffic
from experiments.bench.stack import at_depth, depths
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results

console = Console(width=max(Console().width, 130))


def main(
    layers: Annotated[int, typer.Option(help="of the captured transformer; 50 make 10,000 values")] = 50,
    largest: Annotated[int, typer.Option(help="values of the largest synthetic graph")] = 2_000_000,
    repeats: Annotated[int, typer.Option(help="of each timing")] = 5,
    only: Annotated[list[str] | None, typer.Option(help="a table to measure again; the others stay")] = None,
    output: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "speed.json",
) -> None:
    """Measures and prints the three tables, and writes them as JSON with their provenance."""
    # The captured graph comes last: a process starts with its parent's peak memory, and torch has much.
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "synthetic": lambda: synthetic(largest),
        "import": lambda: import_time(repeats),
        "captured": lambda: captured(layers, repeats),
    }
    document: dict[str, Any] = {"provenance": provenance(gpu=False)}
    if only and output.exists():
        before = json.loads(output.read_text())
        last = before.pop("provenance")
        others = last.pop("others", {})
        document["provenance"]["others"] = {name: others.get(name, last) for name in tables if name not in only}
        document |= before
    for name, measure in tables.items():
        if not only or name in only:
            document[name] = measure()
    write_results(output, document)
    console.print(f"written to {output}")


def captured(layers: int, repeats: int) -> list[dict[str, Any]]:
    """Times PyTorch's choice and ours, in turns, on the joint graph of a deep transformer: processor time.

    Each at depths of the stack that are spread evenly (`experiments.bench.stack`).
    """
    from experiments.models import zoo
    from remat.pytorch.read.capture import visit_joint_graphs
    from remat.pytorch.read.extract import extract
    from remat.pytorch.seam.torch_partitioner import torchs_choice

    model, args = zoo.gpt2(layers=layers, width=32, heads=2, vocabulary=64, context=16, batch=2)
    rows: list[dict[str, Any]] = []

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        remat.solve(ByteTraffic().pose(graph))  # imports OR-Tools
        steps = {
            "PyTorch: choose_saved_values_set": lambda: torchs_choice(joint_graph, node_info),
            "remat: live FX graph to Graph": lambda: extract(joint_graph, node_info, num_fwd_outputs),
            "remat: Graph to certified plan": lambda: remat.solve(ByteTraffic().pose(graph)),
            "remat: live FX graph to certified plan": lambda: remat.solve(
                ByteTraffic().pose(extract(joint_graph, node_info, num_fwd_outputs))
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for depth in depths(repeats):
            for name, step in steps.items():
                gc.collect()  # of the others' garbage, of which a whole collection takes half a second
                seconds[name].append(_time(lambda: at_depth(depth, step), time.thread_time))  # noqa: B023
        reference = seconds["PyTorch: choose_saved_values_set"]
        for name, times in seconds.items():
            rows.append(
                {
                    "values": len(graph),
                    "step": name,
                    "median_s": statistics.median(times),
                    "fastest_s": min(times),
                    "slowest_s": max(times),
                    "median_ratio": statistics.median(reference) / statistics.median(times),
                    # The most careful reading: PyTorch at its fastest against us at our slowest.
                    "worst_ratio": min(reference) / max(times),
                }
            )

    with console.status("capturing and timing the transformer"):
        visit_joint_graphs(visit, model, *args)
    show(f"Choosing what to save: a transformer of {layers} layers", rows)
    return rows


def synthetic(largest: int) -> list[dict[str, Any]]:
    """Times each solver on growing graphs, each in a process of its own, until one takes over three seconds."""
    rows: list[dict[str, Any]] = []
    sizes = [size for size in (20_000, 200_000, 2_000_000) if size <= largest]
    for solver in ("ortools", "scipy", "networkx", "pulp"):
        for prices in ("conservative", "aggressive", "priced"):
            for size in sizes:
                with console.status(f"{solver}, {prices}, {size:,} values"):
                    row = _in_own_process(solver, prices, size)
                rows.append(row)
                if "total_s" not in row or row["total_s"] > 3:
                    break  # ten times the size could take minutes
    show("Synthetic joint graphs; half of the values are in the problem", rows)
    return rows


def _in_own_process(solver: str, prices: str, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {"values": size, "problem": size // 2, "solver": solver, "prices": prices}
    command = [sys.executable, "-m", "experiments.bench.speed_case", solver, prices, str(size)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {**row, "note": "over 120 s"}
    if run.returncode:
        return {**row, "note": run.stderr.strip().splitlines()[-1].removeprefix("remat.errors.")[:60]}
    return {**row, **json.loads(run.stdout)}


def import_time(repeats: int) -> list[dict[str, Any]]:
    """Times `import remat` in a fresh interpreter, beside one that imports nothing and one with numpy."""
    rows: list[dict[str, Any]] = []
    for statement in ("pass", "import numpy", "import remat"):
        command = [sys.executable, "-c", statement]
        times = [_time(lambda: subprocess.run(command, check=True)) for _ in range(repeats)]  # noqa: B023
        rows.append({"statement": statement, "median_s": statistics.median(times), "slowest_s": max(times)})
    show("Start-up", rows)
    return rows


def _time(step: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    step()
    return clock() - start


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints rows as a table, with a column for each key."""
    table = Table(title=title)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    console.print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value >= 10 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    typer.run(main)
