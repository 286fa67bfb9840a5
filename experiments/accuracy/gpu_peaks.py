"""Compares predicted peaks of compiled steps with those of GPUs: `python -m experiments.accuracy.gpu_peaks`.

The model is a Llama by `transformers` of 32 thin layers, 2 x 1,024 tokens, in single precision, at five of PyTorch's
memory budgets. Its peaks on a GTX 1650 were published by the repository `siddddd17/ackaudit` for
https://github.com/pytorch/pytorch/issues/197838 (September 2026, torch 2.14): `max_memory_allocated` above what was
held before the step. The peaks of an H200 come from `experiments.bench.measured_steps` (torch 2.11).

The prediction is `remat.timeline` of PyTorch's plan, on a graph captured for an H200 without a GPU. `before` is the
prediction of commit 82628b4, which lacked two rules of fused attention on GPUs: a mask that the backward pass computes
is copied for every head, and the call takes memory of its own. `allocated` replays the step in CUDA's caching allocator
(`experiments.accuracy.cuda_allocator`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

import remat
from experiments.accuracy.cuda_allocator import allocated_peak
from experiments.models.measured_models import BUDGETED, thin_llama
from experiments.report.markdown import bullets
from experiments.report.result_table import RESULTS, ResultTable, Row
from remat.predict.buffers import StepMemory
from remat.pytorch.measure.torch_budgets import legal_plans, torchs_plans

PUBLISHED = {0.05: 904_102_912, 0.1: 583_965_696, 0.15: 383_622_144, 0.2: 415_063_040, 0.3: 473_734_144}
BEFORE = {0.05: 900_800_000, 0.1: 520_800_000, 0.15: 347_500_000, 0.2: 379_600_000, 0.3: 437_600_000}
"""Predicted peaks in bytes, to a tenth of a megabyte, by budget."""


def compared(_: str) -> Iterator[Row]:
    """Predicts the peak at each budget: a row for each."""
    with FakeTensorMode():
        model, args = thin_llama()
        ((graph, plans),) = torchs_plans(model.train(), *args, budgets=PUBLISHED, device="h200")
    rows = json.loads((RESULTS / "measured_steps.json").read_text())["rows"]
    thin = {row["way"]: row["peak_bytes"] for row in rows if row["case"].startswith("Llama, 32 thin layers")}
    memory = StepMemory(graph)
    for budget, plan in legal_plans(graph, plans).items():
        saved = remat.Choice.from_plan(graph, plan).saved
        yield {
            "budget": budget,
            "gtx_1650_bytes": PUBLISHED[budget],
            "h200_bytes": thin[f"{BUDGETED}{budget}"],
            "before_bytes": BEFORE[budget],
            "predicted_bytes": memory.peak(saved),
            "allocated_bytes": allocated_peak(memory.lifetimes(saved)),
        }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far predictions are from each GPU."""
    lines: list[str] = []
    for gpu in ("gtx_1650", "h200"):
        for what in ("before", "predicted", "allocated"):
            errors = [row[f"{what}_bytes"] / row[f"{gpu}_bytes"] - 1 for row in rows]
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            lines.append(f"{gpu}, {what}: {median:.2%} off in the median, {worst:+.2%} at worst")
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.accuracy.gpu_peaks",
    "Peaks on GPUs, beside their predictions",
    cases=lambda: ["Llama, 32 thin layers"],
    measure=compared,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
