"""Measures what offloading buys on the sheet of an H100: `python -m experiments.bench.offloading`.

Ten graphs of the corpus that know their modules, and the ten small models of `experiments.models.workloads.KERNEL_ZOO`;
budgets of 0.5, 0.2 and 0 of what PyTorch's default plan saves.
Beside ours, with its bound: recomputing alone, offloading all that may be, and offloading the first modules whole (a
module is a layer or a block, up to the first number in its path) until the rest fits; the last two recompute what takes
no time alone. All times are by one simulated timeline (`remat.predict.offloading`), none is measured. A row that there
is stays.

Beside that, the predicted peaks of the compiled steps of the small models, where all that may be offloaded is: how far
they fall depends on when Inductor runs the copies.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Choice, Corpus, Graph, Plan, Timeline
from remat.plugin import cannot_offload
from remat.predict.offloading import OffloadTimeline, StepClock, simulated

DEVICE = "h100"
SHARES = (0.5, 0.2, 0.0)
INSTANCES = (
    "gpt2-medium-autocast",
    "gpt2-medium-h100",
    "hf-llama3-8b-32k",
    "hf-llama3-8b-lora",
    "hf-llama3-8b-h100",
    "hf-llama3-70b",
    "hf-mixtral-8x7b",
    "hf-mamba2-130m",
    "dit-xl-2",
    "resnet50-a100",
)
PEAKS = ("saved_bytes", "offloaded_saved_bytes", "peak_bytes", "offloaded_peak_bytes", "stream_peak_bytes")
WAYS = ("to the host", "back")

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="an instance; repeatable")] = None,
    output: Annotated[Path, typer.Option(help="folder for offloading.json and .md")] = RESULTS,
) -> None:
    """Simulates, and writes offloading.json and offloading.md after each instance."""
    file = output / "offloading.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rows": [], "peaks": []}

    def write(**new: list[dict[str, Any]]) -> None:
        found.update(new, provenance=provenance(gpu=False))
        write_results(file, found, markdown(found))

    for name in only or (*INSTANCES, *KERNEL_ZOO):
        there = {row["share"] for row in found["rows"] if row["instance"] == name}
        if shares := [share for share in SHARES if share not in there]:
            rows = [*found["rows"], *compared(name, shares)]
            write(rows=sorted(rows, key=lambda row: (row["instance"], -row["share"])))
    if not only:
        write(peaks=[peaks(name) for name in KERNEL_ZOO])


def peaks(name: str) -> dict[str, Any]:
    """Predicts the peak of a compiled step in which nothing runs twice, and of one that offloads all that it can."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    graph = remat.capture(model, *args, device=DEVICE)
    away = offloaded(graph, graph.names)
    lines = [remat.timeline(graph, plan, device=DEVICE) for plan in (replace(away, offloaded=()), away)]
    beside = remat.timeline(graph, away, device=DEVICE, copy_stream=True)
    found = [line.saved_bytes for line in lines] + [line.peak_bytes for line in (*lines, beside)]
    console.print(name, *found)
    waits = {way: waited_for(graph, beside, f"copy {way}") for way in WAYS}
    return {"model": name, **dict(zip(PEAKS, found, strict=True)), "copies": len(away.offloaded), **waits}


def waited_for(graph: Graph, line: Timeline, copy: str) -> int:
    """Counts the copies that kernels wait for: no matrix product or the like runs between their begin and their end."""
    products, begun, found = 0, dict[str, int](), 0
    for name, op in zip(line.names, line.ops, strict=True):
        if op == f"{copy} begins":
            begun[name] = products
        elif op == f"{copy} ends":
            found += begun[name] == products
        else:
            products += int(graph.compute_bound[graph.index[name]])
    return found


def compared(name: str, shares: list[float]) -> list[dict[str, Any]]:
    """Chooses by each way at each budget. Times are what is added to a step that recomputes and copies nothing."""
    graph = graph_of(name)
    clock = StepClock.of(graph, DEVICE)
    all_away = simulated(clock, offloaded(graph, graph.names))
    rows: list[dict[str, Any]] = []
    for share in shares:
        model = MemoryBudget(share, estimator=f"roofline:device={DEVICE}", offload=DEVICE)
        problem = model.pose(graph)
        found = remat.choose(graph, model)
        alone = remat.solve(replace(problem, offload=None), "lagrangian", throw=False).plan
        assert found.plan is not None
        ours, modules = simulated(clock, found.plan), by_module(graph, clock, problem.budget_bytes or 0)
        rows.append(
            {
                "instance": name,
                "share": share,
                "budget_bytes": problem.budget_bytes,
                "compute_ns": clock.compute_ns,
                "ours_ns": ours.added_ns,
                "bound_ns": found.bound,
                "ours_host_bytes": ours.host_bytes,
                "ours_exposed_ns": ours.exposed_ns,
                "recompute_ns": None if alone is None else simulated(clock, alone).added_ns,
                "module_ns": None if modules is None else modules.added_ns,
                "everything_ns": all_away.added_ns,
                "everything_saved_bytes": all_away.saved_bytes,
                "seconds": round(found.solve_time_s, 1),
            }
        )
        console.print(rows[-1], markup=False)
    return rows


def graph_of(name: str) -> Graph:
    """Reads a graph of the corpus, or captures a small model."""
    if name not in KERNEL_ZOO:
        return Corpus.open().graph(name)
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    return remat.capture(model, *args)


def offloaded(graph: Graph, names: tuple[str, ...]) -> Plan:
    """Recomputes only what takes no time, and offloads what may be of the values `names`."""
    plan = remat.solve(RecomputeTime(f"roofline:device={DEVICE}").pose(graph)).plan
    assert plan is not None
    saved = Choice.from_plan(graph, plan).saved
    return Choice.from_saved(graph, saved, saved & np.isin(graph.names, names) & ~cannot_offload(graph).mask).plan(
        graph
    )


def by_module(graph: Graph, clock: StepClock, budget_bytes: int) -> OffloadTimeline | None:
    """Offloads the first modules whole, as many as it takes; None if all are not enough."""
    blocks = [re.split(r"(?<=\\.\\d)(?=\\.)|(?<=\\.\\d\\d)(?=\\.)", module)[0] for module in graph.modules]
    order = list(dict.fromkeys(blocks))
    fewest, most = 0, len(order)

    def first(count: int) -> OffloadTimeline:
        chosen = set(order[:count])
        names = tuple(name for name, block in zip(graph.names, blocks, strict=True) if block in chosen)
        return simulated(clock, offloaded(graph, names))

    if first(most).saved_bytes > budget_bytes:
        return None
    while fewest < most:
        count = (fewest + most) // 2
        fewest, most = (fewest, count) if first(count).saved_bytes <= budget_bytes else (count + 1, most)
    return first(most)


def markdown(document: dict[str, Any]) -> str:
    """Makes the page for people who read the repository."""
    rows = document["rows"]
    ways = ("recompute_ns", "module_ns", "everything_ns")
    gaps = [(row["ours_ns"] - row["bound_ns"]) / (row["compute_ns"] + row["ours_ns"]) for row in rows]
    fitting = [row for row in rows if row["everything_saved_bytes"] <= row["budget_bytes"]]
    never_above = all(row["ours_ns"] <= row[way] for row in rows for way in ways[:2] if row[way] is not None) and all(
        row["ours_ns"] <= row["everything_ns"] for row in fitting
    )
    less = [1 - row["ours_ns"] / row["recompute_ns"] for row in rows if row["recompute_ns"]]
    return page(
        "Offloading on the sheet of an H100",
        f"{cited(document['provenance'], 'experiments.bench.offloading')}. Simulated by one timeline for all ways, on "
        "the figures of a data sheet: nothing here was measured. Times are what a plan adds to a step that neither "
        "recomputes nor copies; the budget is of what is saved on the device, as a share of PyTorch's default.",
        bullets(
            [
                f"ours is {'never' if never_above else 'SOMETIMES'} above another way within the budget, in "
                f"{len(rows)} rows of {len({row['instance'] for row in rows})} models",
                f"what is added is less than by recomputing alone by {statistics.median(less):.0%} in the median, "
                f"by {min(less):.0%} to {max(less):.0%}",
                f"above the bound by {statistics.median(gaps):.1%} of the step in the median, {max(gaps):.1%} at most",
                f"offloading everything fits the budget in {len(fitting)} rows",
            ]
        ),
        section(
            "All rows, in ms",
            table(
                [
                    "instance",
                    "share",
                    "compute",
                    "ours",
                    "at least",
                    "recompute only",
                    "first modules",
                    "everything",
                    "on the host (GiB)",
                    "seconds",
                ],
                [
                    [
                        row["instance"],
                        f"{row['share']:.1f}",
                        *(
                            "does not fit" if row[key] is None else _ms(row[key])
                            for key in ("compute_ns", "ours_ns", "bound_ns", *ways[:2])
                        ),
                        _ms(row["everything_ns"]) + ("" if row in fitting else " (does not fit)"),
                        f"{row['ours_host_bytes'] / 2**30:.1f}",
                        row["seconds"],
                    ]
                    for row in rows
                ],
            ),
        ),
        _peaks_section(document["peaks"]),
    )


def _peaks_section(rows: list[dict[str, Any]]) -> str:
    falls, beside = (
        [1 - row[peak] / row["peak_bytes"] for row in rows] or [0.0]
        for peak in ("offloaded_peak_bytes", "stream_peak_bytes")
    )
    heads = ("saved (MB)", "still on the device", "peak (MB)", "peak, offloaded", "with a stream of copies")
    return section(
        "Predicted peaks of compiled steps",
        "Nothing runs twice: what is saved stays on the device, or all of it is offloaded that may be. "
        f"The peak falls by {statistics.median(falls):.0%} in the median, by {min(falls):.0%} to {max(falls):.0%}; "
        f"with a stream of copies by {statistics.median(beside):.0%}, by {min(beside):.0%} to {max(beside):.0%}. "
        "Kernels wait for those of its copies between whose begin and end no matrix product or the like runs.",
        table(
            ["model", *heads, "copies each way", *(f"waited for, {way}" for way in WAYS)],
            [
                [row["model"], *(f"{row[key] / 1e6:.2f}" for key in PEAKS), row["copies"], *(row[way] for way in WAYS)]
                for row in rows
            ],
        ),
    )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f}" if ns >= 1e6 else f"{ns / 1e6:.3f}"


if __name__ == "__main__":
    typer.run(main)
