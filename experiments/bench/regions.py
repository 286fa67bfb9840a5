"""Compares decisions about modules with plans of operators: `python -m experiments.bench.regions`.

For training steps of published models, at equal predicted peaks: the modelled step of the best decisions that
`remat.choose_regions` finds about modules and about whole layers, of the plan of operators by
`MemoryBudget(of="peak")`, and of the policies that people write by hand: every layer checkpointed; the same with
attention saved; and with attention and every second product saved, as torchtitan does. The limits are the peaks of
these three policies, and the middle between the smallest of them and the peak of PyTorch's default plan. Steps are
captured, and kernels and times are predicted, for an H100, those of ResNet-50 for an A100. No device was used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import remat
from costmodels import MemoryBudget
from experiments.bench.users_table import STEPS
from experiments.corpus.catalogue import recipes
from experiments.models.recipe import capture
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Graph, Infeasible
from remat.improve.one_liners import one_liners
from remat.improve.region_choice import choose_graph_regions
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

CASES = (
    "hf-llama3-8b-32k",
    "hf-llama3-8b-lora",
    "hf-vit-base",
    "hf-mixtral-8x7b",
    "resnet50-a100",
    "hf-bert-large-sdpa",
    "gpt2-medium-h100",
    "hf-t5-base",
)
BY_HAND = {
    "every layer checkpointed": "all layers",
    "every layer checkpointed, saving attention": "attention",
    "every layer checkpointed, saving attention and every second product": "attention, every second product",
}
"""The names of the policies in `one_liners`, and here."""


def compared(name: str) -> Iterator[dict[str, Any]]:
    """Yields a row for each limit of the peak: the overheads of each way, beside PyTorch's default plan."""
    device = STEPS[name]
    graph = capture(replace(recipes()[name], device=device))
    predictor = StepPredictor.of(graph, find_device(device), device)
    known = dict(one_liners(predictor.graph))
    default_peak, default_ns = _figures(predictor, known["PyTorch's default"])
    hand = {label: _figures(predictor, known[policy]) for policy, label in BY_HAND.items() if policy in known}
    least = min(peak for peak, _ in hand.values())
    limits = {label: peak for label, (peak, _) in hand.items()}
    limits["halfway to the default"] = (least + default_peak) // 2
    for label, limit in limits.items():
        own = min((ns for peak, ns in hand.values() if peak <= limit), default=None)
        model = MemoryBudget(limit, of="peak", estimator=f"roofline:device={device}")
        operators = remat.choose(graph, model, throw=False).step
        begin = time.process_time()
        modules = _by_regions(graph, limit, device)
        seconds = time.process_time() - begin
        ways = {
            "by_hand": own,
            "operators": None if operators is None else operators.ns,
            "modules": modules,
            "expensive": _by_regions(graph, limit, device, keep="expensive"),
            "whole_layers": _by_regions(graph, limit, device, regions="layers"),
        }
        yield {
            "limit": label,
            "peak_bytes": limit,
            **{way: None if ns is None else ns / default_ns - 1 for way, ns in ways.items()},
            "search_s": round(seconds, 1),
        }


def _figures(predictor: StepPredictor, saved: Any) -> tuple[int, float]:
    return predictor.peak(saved), predictor.ns(saved)


def _by_regions(graph: Graph, limit: int, device: str, **options: Any) -> float | None:
    try:
        chosen = choose_graph_regions(graph, limit, of="peak", device=device, **options)
    except Infeasible:
        return None
    return None if chosen.solution.step is None else chosen.solution.step.ns


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how much longer steps are than with plans of operators, in the median and at worst."""
    lines = [f"points: {len(rows)}, of {len({row['case'] for row in rows})} steps"]
    for way, label in {
        "modules": "decisions about modules",
        "expensive": "decisions about modules, of which only expensive operators are saved",
        "whole_layers": "decisions about whole layers",
        "by_hand": "the best policy by hand",
    }.items():
        found = [row for row in rows if row[way] is not None and row["operators"] is not None]
        loss = [(1 + row[way]) / (1 + row["operators"]) - 1 for row in found]
        lines.append(
            f"{label}: the step is {statistics.median(loss):+.1%} beside that of the plan of operators in the median, "
            f"{max(loss):+.1%} at worst, {min(loss):+.1%} at best; no way within the limit at {len(rows) - len(found)}"
        )
    better = [min((row[way] for way in ("modules", "expensive") if row[way] is not None), default=None) for row in rows]
    both = [
        (ours, row["by_hand"])
        for ours, row in zip(better, rows, strict=True)
        if ours is not None and row["by_hand"] is not None
    ]
    gain = [(1 + ours) / (1 + hand) - 1 for ours, hand in both]
    slower = sum(each > 1e-3 for each in gain)
    lines.append(
        f"the better of both about modules, beside the best policy by hand: {statistics.median(gain):+.1%} in the "
        f"median, {min(gain):+.1%} at best, {max(gain):+.1%} at worst; slower by more than 0.1% at {slower} of "
        f"{len(both)}"
    )
    longest = max(rows, key=lambda row: row["search_s"])
    lines.append(f"the longest search about modules: {longest['search_s']} s of processor time ({longest['case']})")
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.regions",
    "Decisions about modules beside plans of operators",
    cases=lambda: CASES,
    measure=compared,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
