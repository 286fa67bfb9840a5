"""Predicts peaks of compiled steps that offload, for an H100: `python -m experiments.bench.offloaded_peaks`.

In the ten small models of `experiments.models.workloads.KERNEL_ZOO` nothing runs twice: saved values stay on the
device, or all that can be offloaded are offloaded. How far the peak falls depends on when Inductor runs the copies:
between kernels, or in a stream of their own. With such a stream, kernels wait for a copy if no large kernel, such as a
matrix product, runs between its begin and its end.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

import remat
from experiments.bench.offloading import DEVICE, offloaded
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Graph, Timeline

PEAKS = ("saved_bytes", "offloaded_saved_bytes", "peak_bytes", "offloaded_peak_bytes", "stream_peak_bytes")
WAYS = ("to the host", "back")


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Predicts the peak of a compiled step in which nothing runs twice, and of one that offloads all that it can."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    graph = remat.capture(model, *args, device=DEVICE)
    away = offloaded(graph, graph.names)
    lines = [remat.timeline(graph, plan, device=DEVICE) for plan in (replace(away, offloaded=()), away)]
    beside = remat.timeline(graph, away, device=DEVICE, copy_stream=True)
    found = [line.saved_bytes for line in lines] + [line.peak_bytes for line in (*lines, beside)]
    waits = {way: waited_for(graph, beside, f"copy {way}") for way in WAYS}
    yield {**dict(zip(PEAKS, found, strict=True)), "copies": len(away.offloaded), **waits}


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


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far peaks fall, and for how many copies kernels wait."""
    found: list[str] = []
    for peak, words in (("offloaded_peak_bytes", "between kernels"), ("stream_peak_bytes", "in a stream of copies")):
        falls = [1 - row[peak] / row["peak_bytes"] for row in rows]
        found.append(
            f"{words}, the peak falls by {statistics.median(falls):.0%} in the median, by {min(falls):.0%} to "
            f"{max(falls):.0%}"
        )
    copies = sum(row["copies"] for row in rows)
    waits = [f"{sum(row[way] for row in rows)} of {copies} {way}" for way in WAYS]
    return [bullets([*found, f"kernels wait for {' and '.join(waits)}"])]


TABLE = ResultTable(
    "experiments.bench.offloaded_peaks",
    "Predicted peaks of steps that offload",
    cases=lambda: KERNEL_ZOO,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
