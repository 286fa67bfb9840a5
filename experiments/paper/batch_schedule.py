"""Schedules one batch of a model under a method for a GPU that is not there, and finds the largest that should fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from experiments.paper.batch_search import grain
from experiments.paper.methods import FULL, NO, checkpointed
from experiments.paper.table import VIRTUAL
from experiments.paper.ten_models import Whole
from experiments.paper.without_device import UnlaunchedStep, as_marked, plan_of, scheduled
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


@dataclass(frozen=True)
class Largest:
    """Says which batch should fit, on a straight line over the batch.

    Attributes:
        batch: the largest, rounded down as the search by trial rounds.
        held_bytes, samples_per_s: there, on the line.
        scheduled: the batches that were scheduled.
    """

    batch: int
    held_bytes: float
    samples_per_s: float
    scheduled: tuple[int, ...]


def largest_scheduled(whole: Whole, method: str, limit_bytes: int, trials: int = 1) -> Largest:
    """Finds the largest batch that should fit: memory and time are straight lines as long as the plan stays the same.

    The lines go through the batch that was published for no-checkpoint, which is scheduled, and an empty one, which
    holds the weights and their gradients, and launches as many kernels. With two trials the batch that is found so is
    scheduled, too, and the lines go through these two.
    """
    first = scheduled_batch(whole, method, whole.batches[NO])
    launches_ns = sum(kernel.launch_ns for kernel in first.step.time.kernels)
    found = _largest((0, 2 * _weight_bytes(whole), launches_ns), _point(first), limit_bytes, (first.batch,))
    if trials > 1 and found.batch != first.batch:
        second = scheduled_batch(whole, method, found.batch)
        found = _largest(_point(first), _point(second), limit_bytes, (first.batch, second.batch))
    return found


def _point(found: ScheduledBatch) -> tuple[int, float, float]:
    return found.batch, found.held_bytes, found.step.time.ns


def _largest(
    one: tuple[int, float, float], other: tuple[int, float, float], limit_bytes: int, scheduled: tuple[int, ...]
) -> Largest:
    """Finds where the line of memory through two batches meets the limit; a point is (batch, bytes, ns)."""
    more, more_bytes, more_ns = (b - a for a, b in zip(one, other, strict=True))
    batch = int(one[0] + (limit_bytes - one[1]) * more / more_bytes)
    batch = batch // grain(batch) * grain(batch)
    held_bytes, ns = (at + (batch - one[0]) * rise / more for at, rise in ((one[1], more_bytes), (one[2], more_ns)))
    return Largest(batch, held_bytes, 1e9 * batch / ns, scheduled)


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
    return graph, as_marked(graph, plans[1.0]), at_rest_bytes


@lru_cache(maxsize=4)
def _scheduled(whole: Whole, is_checkpointed: bool, batch: int, saved: frozenset[str]) -> UnlaunchedStep:
    """Schedules what is saved; a plan that saves the same as another is not scheduled again."""
    graph, _, _ = _captured(whole, is_checkpointed, batch)
    return scheduled(graph, Choice.from_saved(graph, np.isin(graph.names, [*saved])).plan(graph))
