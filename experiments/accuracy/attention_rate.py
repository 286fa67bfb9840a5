"""Tells how fast attention with a mask was on an H200, by whole steps: `python -m experiments.accuracy.attention_rate`.

The steps are those of PyTorch's ways in `experiments.bench.measured_steps`; attention was not timed alone. Each step is
modelled with attention at the rate of matrix products (`attention_s` and `rest_s`), and as it is modelled now
(`now_s`). For each model, a fit of both parts (least squares of the relative errors) says how many times as long as
modelled each part took. The graphs are captured for an H200 on a machine without a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import remat
from experiments.bench.measured_steps import checkpoint_layers
from experiments.models.measured_models import BUDGETED, CASES, CHECKPOINTED, Case
from experiments.models.recipe import fake
from experiments.models.setups import Autocast
from experiments.report.markdown import table
from experiments.report.result_table import RESULTS, ResultTable, Row
from remat.predict.buffers import StepMemory
from remat.predict.time import modelled_time
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import masked_attention
from remat.pytorch.measure.torch_budgets import legal_plans, torchs_plans


def rates(case: Case) -> Iterator[Row]:
    """Models the steps of PyTorch's ways: a row for each."""
    share = find_device("h200").masked_attention_fraction
    rows = json.loads((RESULTS / "measured_steps.json").read_text())["rows"]
    measured = {row["way"]: row["step_s"] for row in rows if row["case"] == f"{case.name} (cuda)"}
    for way in case.rivals:
        with torch.device("meta"):
            model, args = case.make()
        if way == CHECKPOINTED:
            checkpoint_layers(model)
        model, args = fake((Autocast(model) if case.autocast else model).train(), args)
        budget = float(way.removeprefix(BUDGETED)) if way.startswith(BUDGETED) else 1.0
        ((graph, plans),) = torchs_plans(model, *args, budgets=[budget], device="h200")
        kernels = StepMemory(graph).kernels(remat.Choice.from_plan(graph, legal_plans(graph, plans)[budget]).saved)
        masked, now = masked_attention(graph), modelled_time(graph, kernels, "h200")
        timed = [time for kernel, time in zip(kernels, now.kernels, strict=True) if masked[list(kernel.values)].any()]
        rest = now.ns - sum(time.ns for time in timed)
        attention = sum(max(time.memory_ns, share * time.compute_ns) + time.launch_ns for time in timed)
        modelled = {"attention_s": attention / 1e9, "rest_s": rest / 1e9, "now_s": now.ns / 1e9}
        yield {"way": way, **modelled, "measured_s": measured[way]}


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Says how far the modelled steps are off, and how many times as long as modelled each part took."""
    lines: list[tuple[str, ...]] = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        shares = np.array(
            [[row[part] / row["measured_s"] for part in ("attention_s", "rest_s", "now_s")] for row in own]
        )
        taken = np.linalg.lstsq(shares[:, :2], np.ones(len(own)), rcond=None)[0]
        errors = [f"{each.min() - 1:+.1%} to {each.max() - 1:+.1%}" for each in (shares[:, :2].sum(1), shares[:, 2])]
        lines.append((case, *(f"{times:.2f}" for times in taken), *errors))
    yield table(("model", "attention took", "the rest took", "error before", "error now"), lines)


TABLE = ResultTable(
    "experiments.accuracy.attention_rate",
    "The rate of attention with a mask, by whole steps",
    cases=lambda: [case for case in CASES if case.name.startswith(("Llama 2", "Llama 3", "GPT-2 medium, 12"))],
    key=lambda case: case.name,
    measure=rates,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
