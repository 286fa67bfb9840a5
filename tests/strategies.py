"""Ways to decide that are not meant to be good: the ends of the scale, and what lies between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

import remat
from experiments.models.workloads import KERNEL_ZOO
from remat import Bans, CostModel, Graph, Offload, Plan, Problem, Region, Terms, cannot_offload, solve


@dataclass(frozen=True)
class SaveEverything(CostModel):
    """What autograd does: nothing of the forward pass runs twice."""

    name: ClassVar[str] = "save-everything"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        forward = (graph.region == Region.FORWARD) & ~graph.view
        bans = Bans.none(len(graph)).also(forward, "everything is saved")
        return replace(Terms.nothing(graph), save_cost=graph.moved_bytes, cannot_recompute=bans)


@dataclass(frozen=True)
class Dice(CostModel):
    """Random prices: a random legal plan for every seed."""

    name: ClassVar[str] = "dice"
    unit: ClassVar[str] = "pips"

    seed: int

    def terms(self, graph: Graph) -> Terms:
        random = np.random.default_rng(self.seed)
        save, recompute = random.integers(0, 100, (2, len(graph))) ** 3
        return replace(Terms.nothing(graph), save_cost=save, recompute_cost=recompute)


@dataclass(frozen=True)
class DiceWithHost(Dice):
    """Random prices, and for every other value that can be offloaded copies that cost nothing."""

    name: ClassVar[str] = "dice-with-host"

    def pose_without_peak(self, graph: Graph) -> Problem:
        problem = super().pose_without_peak(graph)
        copies = np.random.default_rng([self.seed]).integers(0, 2, len(problem)) * 100**3
        return replace(problem, offload=Offload(copies, cannot_offload(graph).take(graph.plannable)))


@dataclass(frozen=True)
class SaveOnHost(SaveEverything):
    """What autograd keeps, and all of it on the host that can be."""

    name: ClassVar[str] = "save-on-host"

    def pose_without_peak(self, graph: Graph) -> Problem:
        problem = super().pose_without_peak(graph)
        copies = np.zeros(len(problem), np.int64)
        return replace(problem, offload=Offload(copies, cannot_offload(graph).take(graph.plannable)))


def all_on_host(name: str) -> tuple[Graph, Plan]:
    """A model of the zoo, captured for an H100, and the plan of `SaveOnHost`."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    graph = remat.capture(model, *args, device="h100")
    plan = solve(SaveOnHost().pose(graph)).plan
    assert plan is not None
    return graph, plan
