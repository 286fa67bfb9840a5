"""Schedules one batch of a model under a method for a GPU that is not there, and finds the largest that should fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from experiments.paper.batch_search import grain
from experiments.paper.methods import FULL, NO, checkpointed
from experiments.paper.table import VIRTUAL
from experiments.paper.ten_models import Whole
from experiments.paper.without_device import UnlaunchedStep, plan_of, scheduled, unmarked
from remat import Choice, Graph, Plan
from remat.pytorch.measure.torch_budgets import torchs_plans


@dataclass(frozen=True)
class ScheduledBatch:
    """Says what a batch takes on the GPU, by TorchInductor's schedule.

    Attributes:
        batch: its size.
        at_rest_bytes: of parameters, buffers and inputs, which are alive throughout.
        step: the kernels, and what they hold besides.
    """

    batch: int
    at_rest_bytes: int
    step: UnlaunchedStep

    @property
    def held_bytes(self) -> int:
        """The most that tensors hold during a step."""
        return self.at_rest_bytes + self.step.peak_bytes

    @property
    def samples_per_s(self) -> float:
        """By the modelled time."""
        return 1e9 * self.batch / self.step.time.ns


@lru_cache(maxsize=8)
def scheduled_batch(whole: Whole, method: str, batch: int) -> ScheduledBatch:
    """Schedules a batch of a model of the libraries under a method.

    Raises:
        Unavailable: a package is missing.
    """
    graph, torchs, at_rest_bytes = _captured(whole, method == FULL, batch)
    plan = plan_of(method, graph, torchs)
    return ScheduledBatch(batch, at_rest_bytes, _scheduled(whole, method == FULL, batch, frozenset(plan.saved)))


def largest_scheduled(whole: Whole, method: str, limit_bytes: int) -> tuple[int, ScheduledBatch]:
    """Finds the largest batch that should fit, and schedules one next to it.

    Memory is a straight line over the batch as long as the plan stays the same. Two batches are scheduled: the one
    published for no-checkpoint, and where the line from there through an empty batch meets the limit. The result is
    where the line through both meets it.
    """
    first = scheduled_batch(whole, method, whole.batches[NO])
    slope = (first.held_bytes - 2 * _weight_bytes(whole)) / first.batch
    guess = max(1, int((limit_bytes - 2 * _weight_bytes(whole)) / slope))
    second = scheduled_batch(whole, method, _rounded(guess))
    if second.batch == first.batch:
        return second.batch, second
    slope = (second.held_bytes - first.held_bytes) / (second.batch - first.batch)
    return _rounded(int(second.batch + (limit_bytes - second.held_bytes) / slope)), second


def _rounded(batch: int) -> int:
    return batch // grain(batch) * grain(batch)


@lru_cache(maxsize=1)
def _weight_bytes(whole: Whole) -> int:
    return sum(parameter.nbytes for parameter in whole.library.build().parameters())


@lru_cache(maxsize=2)
def _captured(whole: Whole, is_checkpointed: bool, batch: int) -> tuple[Graph, Plan, int]:
    """Captures a model on the GPU: its joint graph, PyTorch's plan, and the bytes that are alive anyway."""
    model, args = whole.library.for_gpu(batch)
    at_rest_bytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *args))
    traced = checkpointed(model, whole.library.layers_of) if is_checkpointed else model
    ((graph, plans),) = torchs_plans(traced, *args, budgets=[1.0], device=VIRTUAL)
    return (*unmarked(graph, plans[1.0]), at_rest_bytes)


@lru_cache(maxsize=4)
def _scheduled(whole: Whole, is_checkpointed: bool, batch: int, saved: frozenset[str]) -> UnlaunchedStep:
    """Schedules what is saved; a plan that saves the same as another is not scheduled again."""
    graph, _, _ = _captured(whole, is_checkpointed, batch)
    return scheduled(graph, Choice.from_saved(graph, np.isin(graph.names, [*saved])).plan(graph))
