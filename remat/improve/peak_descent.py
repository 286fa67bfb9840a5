"""Lowers the peak of a plan step by step, by changes of what is alive at it.

At the peak of the backward pass two kinds of storages could be absent: saved values that are read only later, and
recomputed values that a later kernel reads. The former are absent if the plan recomputes them; the latter, if it saves
what is computed from them. The bytes that a change may free say in which order changes are tried; each is then
predicted, because it may move the peak to another moment, or change the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import IntArray
from remat.improve.equivalence_classes import by_class
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.predict.memory import Timeline
from remat.problem.problem import Problem

# At most this many changes of one plan are predicted.
_TRIES = 8
# The descent ends after this many steps, or when a step lowers the peak by less than this part of it.
_STEPS, _PAYS = 16, 0.001


@dataclass(frozen=True, eq=False)
class _Change:
    values: IntArray
    saves: bool
    freed_bytes: int  # at the peak, as an estimate


def lowered(
    plan: PeakPlan,
    plans: PeakPlans,
    predicted: Callable[[Choice, str], PeakPlan],
    timeline: Callable[[Choice], Timeline],
    classes: IntArray,
) -> PeakPlan:
    """Returns the plan with the lowest peak that is reached from a plan if each step lowers the peak.

    Args:
        plan: where the descent begins.
        plans: makes choices legal.
        predicted: predicts the peak of a choice; the text says where the choice comes from.
        timeline: predicts the live bytes of a choice.
        classes: (k,) the class of each value of the problem; equal values are saved together.
    """
    for _ in range(_STEPS):
        best = plan
        for change in _changes(plans, plan.choice, timeline(plan.choice), classes)[:_TRIES]:
            if change.freed_bytes <= plan.peak_bytes - best.peak_bytes:
                break
            choice = plans.legal.changed(plan.choice, change.values, saves=change.saves)
            best = min(best, predicted(choice, "change at the peak"), key=lambda one: one.peak_bytes)
        if best.peak_bytes > (1 - _PAYS) * plan.peak_bytes:
            return best
        plan = best
    return plan


def saved_at_peak(problem: Problem, choice: Choice, line: Timeline) -> IntArray:
    """Returns (k,) the bytes at the peak of what a choice saves, 0 for all other values."""
    alive = {tensor.name: tensor.bytes for tensor in line.peak_tensors if tensor.why == "saved"}
    return np.where(choice.saved, np.array([alive.get(name, 0) for name in problem.names]), 0)


def _changes(plans: PeakPlans, choice: Choice, line: Timeline, classes: IntArray) -> list[_Change]:
    """Lists the changes that may lower the peak, those first that may free most; each changes one class of values."""
    bytes_of = saved_at_peak(plans.problem, choice, line)
    changes = [
        _Change(values, saves=False, freed_bytes=int(bytes_of[values].sum()))
        for values in by_class(np.flatnonzero(bytes_of), classes)
    ]
    freed_bytes = _freed_by_saving(plans, choice, line)
    changes += [
        _Change(values, saves=True, freed_bytes=int(freed_bytes[values].max()))
        for values in by_class(np.flatnonzero(choice.recomputed), classes)
    ]
    return sorted((one for one in changes if one.freed_bytes > 0), key=lambda one: -one.freed_bytes)


def _freed_by_saving(plans: PeakPlans, choice: Choice, line: Timeline) -> IntArray:
    """Returns (k,) how much larger a storage at the peak is than a value that is recomputed from it.

    The value can also be the storage itself. Of several storages, the largest counts; without any, the result is -1.
    """
    graph, problem = plans.graph, plans.problem
    recomputed = graph.for_all_values(choice.recomputed).tolist()
    position = {name: v for v, name in enumerate(graph.names)}
    base: list[int] = graph.base.tolist()
    largest = [-1] * len(graph)
    for tensor in line.peak_tensors:
        owner = position[tensor.name]
        if tensor.why == "transient" and tensor.backward and recomputed[owner]:
            largest[owner] = tensor.bytes
    for v, operands in enumerate(graph.operands):
        if recomputed[owner := base[v]]:
            largest[owner] = max([largest[owner], *(largest[base[u]] for u in operands)])
    freed_bytes = np.array([of - own if of >= 0 else -1 for of, own in zip(largest, graph.bytes.tolist(), strict=True)])
    return np.where(problem.cannot_save.mask, -1, freed_bytes[graph.plannable])
