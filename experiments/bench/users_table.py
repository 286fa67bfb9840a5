"""Compares our plans with what users of PyTorch get in one line: `python -m experiments.bench.users_table`.

For training steps of published models: the predicted peak and the modelled step time of PyTorch's default plan, of its
memory budgets 0.05 to 0.9, and of checkpointed layers (`remat.improve.one_liners`), of which those count that no other
one beats in both; and ours by `MemoryBudget(of="peak")` within the peak of each. The peaks of PyTorch's plans are those
of `torch.compile`. Ours are those of `remat.compile`, which offers TorchInductor two more orders of the kernels
(`remat.pytorch.seam.kernel_order`). Steps are captured, and kernels and times are predicted, for an H100, those of
ResNet-50 for an A100. No device was used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

import remat
from costmodels import MemoryBudget
from experiments.corpus.catalogue import recipes
from experiments.models.measured_models import CHECKPOINTED
from experiments.models.recipe import capture
from experiments.report.charts import beside_one_liners, chart
from experiments.report.markdown import bullets
from experiments.report.result_table import Results, ResultTable
from remat import Graph
from remat.improve.one_liners import one_liners
from remat.improve.pareto_front import pareto_front
from remat.improve.step_frontier import one_liner_points
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

STEPS = {
    "hf-llama3-8b-lora": "h100",
    "hf-llama3-8b-32k": "h100",
    "hf-mixtral-8x7b": "h100",
    "hf-vit-base": "h100",
    "resnet50-a100": "a100",
    "gpt2-medium-h100": "h100",
    "hf-bert-large-sdpa": "h100",
    "hf-mamba2-130m": "h100",
    "dit-xl-2": "h100",
    "hf-t5-base": "h100",
    "hf-llama3-8b-h100": "h100",
    "stable-diffusion-unet": "h100",
}
"""The GPU of each step."""
SLOWER = 0.005
"""Overheads are compared where that of PyTorch's plan is more than this part of a step."""
DRAWN = {"hf-llama3-8b-32k": "Llama 3 8B's layers, 32k tokens, H100", "hf-vit-base": "ViT-Base, H100"}


def compared(name: str) -> Iterator[dict[str, Any]]:
    """Compares the plans of one step: a row for each of PyTorch's plans that no other one of them beats."""
    device, graph = STEPS[name], captured(name)
    predictor = StepPredictor.of(graph, find_device(device), device)
    rivals = one_liner_points(predictor)
    torchs_ns = default_ns(predictor)
    for rival in pareto_front(rivals, key=lambda rival: (rival.peak_bytes, rival.step_ns)):
        begin = time.process_time()
        model = MemoryBudget(rival.peak_bytes, of="peak", estimator=f"roofline:device={device}")
        solution = remat.choose(graph, model, throw=False)
        seconds = time.process_time() - begin
        ours = None if solution.step is None else solution.step.ns
        yield {
            "rival": rival.source,
            "peak_bytes": rival.peak_bytes,
            "rival_overhead": rival.step_ns / torchs_ns - 1,
            "our_overhead": None if ours is None else ours / torchs_ns - 1,
            "our_peak_bytes": None
            if solution.plan is None
            else remat.timeline(predictor.graph, solution.plan).peak_bytes,
            "search_s": round(seconds, 1),
        }


def slower_points(name: str) -> Iterator[dict[str, Any]]:
    """Yields the points of one step at which PyTorch's plan is slower than its default by more than 0.5%."""
    for row in Results.read(TABLE.path).rows:
        if row["case"] == name and row["rival_overhead"] > SLOWER:
            yield {key: row[key] for key in ("rival", "peak_bytes", "rival_overhead")}


def our_overhead_at(row: dict[str, Any]) -> float:
    """Returns the overhead of our plan at the point of a row, which another table has."""
    rows = Results.read(TABLE.path).rows
    return next(r["our_overhead"] for r in rows if (r["case"], r["rival"]) == (row["case"], row["rival"]))


def default_ns(predictor: StepPredictor) -> float:
    """Models the step of PyTorch's default plan, in nanoseconds."""
    return predictor.ns(next(iter(one_liners(predictor.graph)))[1])


def captured(name: str) -> Graph:
    """Captures a step for its GPU."""
    recipe = replace(recipes()[name], device=STEPS[name])
    if name == "stable-diffusion-unet":  # whether torch takes cuDNN for heads of 160 depends on its version
        recipe = replace(recipe, within=partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION))
    return capture(recipe)


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how often our plans are faster than those of PyTorch, and by how much."""
    found = [row for row in rows if row["our_overhead"] is not None]
    lost = [row for row in rows if row["our_overhead"] is None or row["our_overhead"] > row["rival_overhead"] + 1e-3]
    over = [row for row in found if row["our_peak_bytes"] > row["peak_bytes"]]
    slow = [row for row in found if row["rival_overhead"] > SLOWER]
    less = [1 - row["our_overhead"] / row["rival_overhead"] for row in slow]
    layers = [1 - r["our_overhead"] / r["rival_overhead"] for r in slow if r["rival"].startswith(CHECKPOINTED)]
    seconds = max(rows, key=lambda row: row["search_s"])
    slower = _slower_than_at_a_smaller_peak(found)
    lines = [
        f"points: {len(rows)}; slower than the plan of PyTorch by more than 0.1 %, or no plan found: {len(lost)}; "
        f"beyond its peak: {len(over)}",
        f"overhead of our plans, against that of PyTorch's at the same peak: {statistics.median(less):.0%} less in the "
        f"median, best {max(less):.0%}, worst {min(less):.0%}",
        f"points where a larger peak has a step that is slower by more than 0.1 %: {slower}",
        f"the longest search: {seconds['search_s']} s of processor time ({seconds['case']})",
    ]
    if layers:
        lines.append(
            f"at the peaks of every layer checkpointed: {statistics.median(layers):.0%} less in the median, best "
            f"{max(layers):.0%}, worst {min(layers):.0%}"
        )
    return [bullets(lines)]


def _slower_than_at_a_smaller_peak(rows: Sequence[dict[str, Any]]) -> int:
    pairs = [(one, other) for one, other in pairwise(rows) if one["case"] == other["case"]]
    return sum(other["our_overhead"] > one["our_overhead"] + 1e-3 for one, other in pairs)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws peaks against overheads for two steps: PyTorch's plans as points, and ours as a line."""
    with chart(path, (10, 4.2), 1, 2) as panels:
        for axes, (name, title) in zip(panels, DRAWN.items(), strict=True):
            own = [row for row in rows if row["case"] == name and row["our_overhead"] is not None]
            ours = [(row["peak_bytes"] / 1e9, 100 * row["our_overhead"]) for row in own]
            rivals = [(row["rival"], row["peak_bytes"] / 1e9, 100 * row["rival_overhead"]) for row in own]
            beside_one_liners(axes, title, ours, rivals)
            axes.set_xlabel("predicted peak, GB")
            axes.set_ylim(bottom=-0.5)


TABLE = ResultTable(
    "experiments.bench.users_table",
    "Our plans beside what PyTorch gives in one line",
    cases=lambda: dict(STEPS),
    measure=compared,
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
