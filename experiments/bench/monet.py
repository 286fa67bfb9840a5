"""Predicts MONeT's ResNet-50 (batch 184, 15.06 GB as it is): `python -m experiments.bench.monet`.

Its README does not name the GPU; here it is an A100 of 40 GB, and nothing runs. The plans are those of
`MemoryBudget(of="peak")` within the published peaks; `overhead` is beside the step that saves what autograd saves.
"""

from __future__ import annotations

from collections.abc import Iterator

import remat
from costmodels import MemoryBudget
from experiments.bench.acquisition import without_checkpoint
from experiments.bench.largest_batches import GPU
from experiments.models import published
from experiments.models.recipe import fake, images, on_meta
from experiments.report.result_table import ResultTable, Row
from remat.answer.choice import Choice
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

PUBLISHED = {"without checkpointing": (15.06, 0.0), "9.01 GB": (9.01, 0.047), "4.99 GB": (4.99, 0.12)}


def predicted(name: str) -> Iterator[Row]:
    """Predicts one of the three published steps."""
    model, args = fake(*on_meta(published.resnet50, images(184)))
    predictor = StepPredictor.of(remat.capture(model, *args, device=GPU), find_device(GPU), GPU)
    plain = Choice.from_plan(predictor.graph, without_checkpoint(predictor.graph)).saved
    gigabytes, overhead = PUBLISHED[name]
    saved = plain
    if overhead:
        limit = MemoryBudget(int(gigabytes * 1e9), of="peak", estimator=f"roofline:device={GPU}")
        if (plan := remat.choose(predictor.graph, limit).plan) is not None:
            saved = Choice.from_plan(predictor.graph, plan).saved
    yield {
        "peak_gb": predictor.peak(saved) / 1e9,
        "overhead": predictor.ns(saved) / predictor.ns(plain) - 1,
        "published_gb": gigabytes,
        "published_overhead": overhead,
    }


TABLE = ResultTable(
    "experiments.bench.monet",
    "MONeT's ResNet-50, predicted",
    cases=lambda: PUBLISHED,
    measure=predicted,
    summary=lambda _: (),
)

if __name__ == "__main__":
    TABLE.command()
