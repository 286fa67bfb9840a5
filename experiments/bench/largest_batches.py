"""Predicts Table 2 of the paper, the largest batch on an A100 of 40 GB: `python -m experiments.bench.largest_batches`.

Each training step in float16 autocast is captured twice, for two batches, without a GPU. Predicted peaks grow by a
constant for each sample; the largest batch is that at which the peak is 39 GiB, as the driver takes the rest. "None"
saves what autograd saves; "min-cut" is PyTorch's default today; "full" is `torch.utils.checkpoint` around each layer, a
module with a number in its path (in some networks of timm, a whole stage), or, where none has one, a part of the graph
that repeats; in ALBERT, each call of its only layer; "ours" is `MemoryBudget(of="peak")` with the peak of "full" as
limit. `ms_a_sample` is modelled at the larger batch. Networks for images come from timm, and are no part of the
environment: `pip install timm torchvision`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import remat
from costmodels import MemoryBudget
from experiments.bench.acquisition import without_checkpoint
from experiments.corpus.catalogue import recipes
from experiments.models.recipe import fake, images, tokens
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.answer.choice import Choice
from remat.facts.columns import IntArray
from remat.improve.byte_budgets import default_plan
from remat.improve.one_liners import checkpointed, every_layer_checkpointed
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import find_device

GPU, LIMIT_BYTES = "a100-40gb", 39 * 2**30

PUBLISHED: dict[str, dict[str, int]] = {
    name: dict(zip(("full", "min-cut", "none"), batches, strict=True))
    for name, batches in {
        "resnet18": (5504, 2560, 1536),
        "vgg16": (4096, 512, 512),
        "hf-gpt2": (480, 56, 32),
        "hf-albert-base": (1088, 64, 48),
        "mobilenetv2_100": (5504, 768, 512),
        "resnest14d": (4096, 896, 768),
        "vovnet39a": (4352, 768, 512),
        "efficientnet_b0": (5120, 768, 512),
        "regnety_120": (5120, 768, 512),
        "densenet121": (2880, 512, 384),
    }.items()
}


class Trained(nn.Module):
    """Runs a model in float16 autocast; images have their loss here, models of language return it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            return functional.cross_entropy(self.model(args[0]), args[1]) if args[0].dim() == 4 else self.model(*args)


def captured(name: str, batch: int, device: str = GPU) -> remat.Graph:
    """Captures a step at a batch; sentences have 512 words."""
    step, given = fake(*step_of(name, batch))
    return remat.capture(step, *given, device=device)


def step_of(name: str, batch: int, device: str = "meta") -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Makes the model of a step, and its arguments; on a device, parameters of language models are zeros."""
    if name.startswith("hf-"):
        model, args = recipes()[name].make()
        inputs = (tokens(batch, 512),) * len(args)
    else:
        inputs = images(batch)
        model = import_module("timm").create_model(name)
    with torch.device(device):
        args = tuple(make() for make in inputs)
    if device != "meta":
        model = _as_zeros(model, device) if name.startswith("hf-") else model.to(device)
    return Trained(model).train(), args


def _as_zeros(model: nn.Module, device: str) -> nn.Module:
    model = model.to_empty(device=device)
    for module in model.modules():  # a weight that two modules shared is not shared on the device
        if hasattr(module, "tie_weights"):
            module.tie_weights()
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().zero_()
    return model


def predictors(name: str) -> dict[int, StepPredictor]:
    """Makes the predictors of a model at two batches."""
    batches = (8, 16) if name.startswith("hf-") else (32, 64)
    return {batch: StepPredictor.of(captured(name, batch), find_device(GPU), GPU) for batch in batches}


def published_methods(graph: remat.Graph) -> dict[str, remat.Plan]:
    """Returns the plans of the paper's three methods."""
    full, cut = every_layer_checkpointed(graph), default_plan(graph)
    if full is None:
        full = checkpointed(graph, _calls_of_one_layer(graph), np.zeros(len(graph), np.bool_))
    assert full is not None
    assert cut is not None
    return {
        "full": Choice.from_saved(graph, graph.owners(full)).plan(graph),
        "min-cut": cut,
        "none": without_checkpoint(graph),
    }


def _calls_of_one_layer(graph: remat.Graph) -> IntArray:
    """Numbers the twelve calls of ALBERT's layer, whose last module is `full_layer_layer_norm`; -1 outside."""
    inside, ends = (np.array([name in path for path in graph.modules]) for name in ("albert_layers", "full_layer_"))
    calls = np.cumsum(np.diff(ends, prepend=False) & ~ends)
    return np.where(inside & graph.in_forward & ~graph.input, calls, -1)


def extrapolated_batch(peaks: Mapping[int, int]) -> int:
    """Returns the largest batch within the limit, from the peaks of two batches."""
    (small, small_peak), (large, large_peak) = peaks.items()
    return int((LIMIT_BYTES - small_peak) * (large - small) / (large_peak - small_peak)) + small


def predicted(name: str) -> Iterator[Row]:
    """Predicts the largest batch of each method."""
    steps = predictors(name)
    (small, _), (large, predictor) = steps.items()
    plans = published_methods(predictor.graph)
    limit_bytes = predictor.peak(Choice.from_plan(predictor.graph, plans["full"]).saved)
    model = MemoryBudget(limit_bytes, of="peak", estimator=f"roofline:device={GPU}")
    if (ours := remat.choose(predictor.graph, model, time_limit_s=45).plan) is not None:
        plans["ours"] = ours
    for method, plan in plans.items():
        published = {**PUBLISHED[name], "ours": None}[method]
        saved = {batch: Choice.from_plan(step.graph, plan).saved for batch, step in steps.items()}
        peaks = {batch: step.peak(saved[batch]) for batch, step in steps.items()}
        batch = extrapolated_batch(peaks)
        yield {
            "method": method,
            "published": published,
            "batch": batch,
            "error": None if published is None else batch / published - 1,
            "bytes_a_sample": round((peaks[large] - peaks[small]) / (large - small)),
            "ms_a_sample": predictor.ns(saved[large]) / 1e6 / large,
        }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far the batches are off."""
    lines = list[str]()
    for method in PUBLISHED["vgg16"]:
        errors = [row["error"] for row in rows if row["method"] == method]
        off = [abs(error) for error in errors]
        lines.append(
            f"{method}: off by {statistics.median(off):.0%} in the median, {min(errors):+.0%} to {max(errors):+.0%}"
        )
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.largest_batches",
    "The largest batch on an A100 of 40 GB, predicted",
    cases=lambda: PUBLISHED,
    measure=predicted,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
