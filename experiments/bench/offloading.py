"""Measures what offloading gains, simulated with the data sheet of an H100: `python -m experiments.bench.offloading`.

Ten graphs of the corpus that know their modules, and the ten small models of `experiments.models.workloads.KERNEL_ZOO`;
budgets of 0.5, 0.2 and 0 of what PyTorch's default plan saves. Ours, with its bound, stands beside three ways:
recomputing alone; offloading all that can be offloaded; and offloading the first modules as a whole until the rest fits
(a module is a layer or a block, up to the first number in its path). The last two recompute only values that take no
time. All times come from one simulated timeline (`remat.predict.offloading`) with the figures of a data sheet: none is
measured. A time is what a plan adds to a step that neither recomputes nor copies.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.charts import draw_dots
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Choice, Corpus, Graph, Plan
from remat.plugin import cannot_offload
from remat.predict.offloading import OffloadTimeline, StepClock, simulated

DEVICE = "h100"
SHARES = (0.5, 0.2, 0.0)
WAYS = ("ours_ns", "recompute_ns", "module_ns", "everything_ns")
INSTANCES = (
    "gpt2-medium-autocast", "gpt2-medium-h100", "hf-llama3-8b-32k", "hf-llama3-8b-lora", "hf-llama3-8b-h100",
    "hf-llama3-70b", "hf-mixtral-8x7b", "hf-mamba2-130m", "dit-xl-2", "resnet50-a100",
)  # fmt: skip


def measure(case: tuple[str, float]) -> Iterator[dict[str, Any]]:
    """Chooses by each way at one budget."""
    name, share = case
    graph = graph_of(name)
    clock = StepClock.of(graph, DEVICE)
    all_away = simulated(clock, offloaded(graph, graph.names))
    model = MemoryBudget(share, estimator=f"roofline:device={DEVICE}", offload=DEVICE)
    problem = model.pose(graph)
    found = remat.choose(graph, model)
    alone = remat.solve(replace(problem, offload=None), "lagrangian", throw=False).plan
    assert found.plan is not None
    ours, modules = simulated(clock, found.plan), by_module(graph, clock, problem.budget_bytes or 0)
    yield {
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


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far ours is below the other ways, and above its bound."""
    gaps = [(row["ours_ns"] - row["bound_ns"]) / (row["compute_ns"] + row["ours_ns"]) for row in rows]
    fitting = [row for row in rows if row["everything_saved_bytes"] <= row["budget_bytes"]]
    rivals = [(row, row[way]) for row in rows for way in ("recompute_ns", "module_ns") if row[way] is not None]
    rivals += [(row, row["everything_ns"]) for row in fitting]
    above = sum(row["ours_ns"] > rival for row, rival in rivals)
    less = [1 - row["ours_ns"] / row["recompute_ns"] for row in rows if row["recompute_ns"]]
    told = [
        f"ours is above another way within the budget in {above} of {len(rows)} rows",
        f"what is added is less than by recomputing alone by {statistics.median(less):.0%} in the median, "
        f"by {min(less):.0%} to {max(less):.0%}",
        f"above the bound by {statistics.median(gaps):.1%} of the step in the median, {max(gaps):.1%} at most",
        f"offloading everything fits the budget in {len(fitting)} rows",
    ]
    return [bullets(told)]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws what each way adds to the step of the graphs of the corpus, at a fifth of PyTorch's saved bytes."""
    ways = zip(("ours", "recompute only", "first modules whole", "all that may be"), WAYS, strict=True)
    drawn = [row for row in rows if row["instance"] in INSTANCES and row["share"] == 0.2]
    added = {label: {row["instance"]: 100 * row[way] / row["compute_ns"] for row in drawn} for label, way in ways}
    ticks = (1, 10, 100, 1000)
    draw_dots(added, path, xlabel="added to the step, %", xscale="log", xticks=ticks, xticklabels=ticks)


TABLE = ResultTable(
    "experiments.bench.offloading",
    "Offloading, simulated for an H100",
    cases=lambda: [(name, share) for name in sorted((*INSTANCES, *KERNEL_ZOO)) for share in SHARES],
    key=lambda case: f"{case[0]} at {case[1]}",
    measure=measure,
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
