"""Measures peaks of the steps of Table 2 beside the prediction: `python -m experiments.bench.measured_batches`.

It needs a GPU. Models and plans are those of `experiments.bench.largest_batches`; batches are about a fifth of the
largest one that was predicted there for "none". Each step runs twice, and the peak of the second counts: the most
that torch's allocator hands out above what it held before. The predicted peak needs no GPU; it counts no workspace of
convolutions. `measured_batch` is the largest batch if each sample takes what it took here.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

import remat
from experiments.bench.largest_batches import LIMIT_BYTES, PUBLISHED, captured, published_methods, step_of
from experiments.bench.measured_steps import device_of
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.answer.choice import Choice
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device
from remat.pytorch.measure.saved import peak_bytes

BATCHES = {
    "resnet18": 512,
    "vgg16": 256,
    "mobilenetv2_100": 128,
    "efficientnet_b0": 128,
    "densenet121": 96,
    "hf-gpt2": 8,
}


def measured(name: str) -> Iterator[Row]:
    """Measures the peak of each method, in a process of its own."""
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as processes:
        yield from processes.map(_row, [name] * 3, PUBLISHED[name])


def _row(name: str, method: str) -> Row:
    batch = BATCHES[name]
    graph = captured(name, batch, "cuda")
    plan = published_methods(graph)[method]
    predicted = StepPredictor.of(graph, find_device(device_of("cuda"))).peak(Choice.from_plan(graph, plan).saved)
    model, args = step_of(name, batch, "cuda")
    step = remat.compile(model, plan=plan, dynamic=False)

    def train() -> None:
        model.zero_grad()
        step(*args).backward()
        model.zero_grad()

    train()
    taken = peak_bytes(train, torch.device("cuda"))
    return {
        "method": method,
        "batch": batch,
        "predicted_bytes": predicted,
        "taken_bytes": taken,
        "error": predicted / taken - 1,
        "published": PUBLISHED[name][method],
        "measured_batch": int(batch * LIMIT_BYTES / taken),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far the predicted peaks are off, and what that does to the largest batches."""
    lines: list[str] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        errors = [row["error"] for row in rows if row["method"] == method]
        batches = [row["measured_batch"] / row["published"] - 1 for row in rows if row["method"] == method]
        lines.append(
            f"{method}: predicted peaks are {statistics.median(errors):+.1%} off in the median, {min(errors):+.1%} to "
            f"{max(errors):+.1%}; by measured peaks, batches are {statistics.median(batches):+.0%} beside the published"
        )
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.measured_batches",
    "Peaks of the steps of Table 2, measured on a GPU",
    cases=lambda: BATCHES,
    measure=measured,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
