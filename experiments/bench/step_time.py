"""Compares the plan of least `StepTime` with PyTorch's default plan: `python -m experiments.bench.step_time`.

The graphs are those of `experiments.bench.users_table`, and two more convolutional ones. Saved bytes are those of the
plans, each storage once and without inputs. Times are modelled from the kernels that are predicted for an H100, or for
an A100 where the table says so. No device was used.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import remat
from costmodels import StepTime
from experiments.bench.users_table import STEPS
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Choice, Corpus, Plan
from remat.answer.plan_facts import PlanFacts
from remat.improve.byte_budgets import default_plan
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

DEVICES = STEPS | {"efficientnet-b0": "a100", "hf-convnext-tiny": "a100"}


def compared(name: str) -> Iterator[dict[str, Any]]:
    """Yields one row: by which part the plan of least `StepTime` saves more, and takes longer."""
    graph, device = Corpus.open().graph(name), DEVICES[name]
    predictor = StepPredictor.of(graph, find_device(device), device)
    plans = remat.solve(StepTime(device).pose(graph)).plan, default_plan(graph)

    def figures(plan: Plan | None) -> tuple[int, float]:
        assert plan is not None  # every graph of the corpus has both plans
        saved = Choice.from_plan(predictor.graph, plan).saved
        return PlanFacts.of(predictor.graph, plan).saved_bytes, predictor.ns(saved)

    (saved_bytes, ns), (default_bytes, default_ns) = map(figures, plans)
    yield {"device": device, "saved": saved_bytes / default_bytes - 1, "step": ns / default_ns - 1}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says what is saved and how long steps take, in the median and at worst."""
    saved, step = ([row[label] for row in rows] for label in ("saved", "step"))
    told = [
        f"saved bytes: {statistics.median(saved):+.0%} in the median, {max(saved):+.0%} at worst",
        f"step time: {statistics.median(step):+.1%} in the median, {max(step):+.1%} at worst",
    ]
    return [bullets(told)]


TABLE = ResultTable(
    "experiments.bench.step_time",
    "Plans of least step time, by single prices",
    cases=lambda: dict(DEVICES),
    measure=compared,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
