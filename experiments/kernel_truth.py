"""What TorchInductor makes of the zoo: its kernels for many plans of each model, counted without writing any.

A count takes seconds for each plan, so it can be kept in a folder: `<model>.graph.json.gz`, the joint graph, and
`<model>.json.gz`, the plans with their kernels.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import remat
from costmodels import ByteTraffic
from experiments.demo import SaveLeast
from experiments.models import KERNEL_ZOO
from experiments.peak_error import SaveEverything
from remat.pytorch.budgets import torchs_plans
from remat.pytorch.scheduled import inductor_kernels
from remat.pytorch.traffic_count import Kernel

PLANS = 24
"""For each model."""

_ON_THE_FRONTIER = 8


@dataclass(frozen=True)
class Dice(remat.CostModel):
    """Random prices: a random legal plan for every seed.

    Attributes:
        seed: of the prices.
        recompute: how much dearer recomputing is than saving; small numbers recompute a lot.
    """

    name: ClassVar[str] = "dice"
    unit: ClassVar[str] = "pips"

    seed: int
    recompute: int = 1

    def terms(self, graph: remat.Graph) -> remat.Terms:
        """Cubes, so that prices differ by orders of magnitude."""
        save, recompute = np.random.default_rng(self.seed).integers(0, 100, (2, len(graph))) ** 3
        terms = remat.Terms.nothing(graph)
        return replace(terms, save_cost=8 * save, recompute_cost=self.recompute * recompute)


@dataclass(frozen=True)
class Truth:
    """A model's joint graph, and what Inductor schedules for each of its plans, by the name of the plan."""

    graph: remat.Graph
    plans: dict[str, remat.Plan]
    kernels: dict[str, tuple[Kernel, ...]]

    def save(self, folder: Path, model: str) -> None:
        """Writes two files."""
        folder.mkdir(parents=True, exist_ok=True)
        self.graph.save(_graph_file(folder, model))
        document = {
            name: {
                "saved": plan.saved,
                "recomputed": plan.recomputed,
                "kernels": [asdict(kernel) for kernel in self.kernels[name]],
            }
            for name, plan in self.plans.items()
        }
        with gzip.open(_truth_file(folder, model), "wt") as file:
            json.dump(document, file)

    @classmethod
    def load(cls, folder: Path, model: str) -> Truth:
        """Reads what `save` wrote."""
        graph = remat.Graph.load(_graph_file(folder, model))
        with gzip.open(_truth_file(folder, model), "rt") as file:
            document: dict[str, Any] = json.load(file)
        plans = {
            name: remat.Plan(tuple(found["saved"]), tuple(found["recomputed"])).made_for(graph)
            for name, found in document.items()
        }
        return cls(graph, plans, {name: tuple(map(_kernel, found["kernels"])) for name, found in document.items()})


def find_truth(model: str, folder: Path | None, progress: Callable[[str], None]) -> Truth:
    """The truth about a model of `KERNEL_ZOO`: from the folder if it is there, else from Inductor.

    Args:
        model: its name in `KERNEL_ZOO`.
        folder: where counts are kept; None to keep none.
        progress: told what is being counted.
    """
    if folder is not None and _truth_file(folder, model).exists():
        return Truth.load(folder, model)
    torch.manual_seed(0)
    module, args = KERNEL_ZOO[model]()
    (found,) = torchs_plans(module, *args, budgets=(1.0, 0.5))
    graph = replace(found[0], meta={"model": model, "torch": torch.__version__})
    plans: dict[str, remat.Plan] = {}
    kernels: dict[str, tuple[Kernel, ...]] = {}
    for name, plan in different_plans(graph, found[1]):
        progress(f"{model}: {name} ({len(plans) + 1} of {PLANS})")
        plans[name] = plan
        kernels[name] = tuple(inductor_kernels(module, *args, plans=plan))
    truth = Truth(graph, plans, kernels)
    if folder is not None:
        truth.save(folder, model)
    return truth


def different_plans(graph: remat.Graph, torchs: dict[float, remat.Plan]) -> Iterator[tuple[str, remat.Plan]]:
    """At most `PLANS` legal plans that differ, by name: strategies, the frontier, random ones."""
    seen: set[remat.Plan] = set()
    for name, plan in _plans(graph, torchs):
        if plan not in seen and _is_legal(graph, plan):
            seen.add(plan)
            yield name, plan.made_for(graph)
        if len(seen) == PLANS:
            return


def _plans(graph: remat.Graph, torchs: dict[float, remat.Plan]) -> Iterator[tuple[str, remat.Plan]]:
    yield "autograd's saves", _solved(graph, SaveEverything())
    for budget, plan in torchs.items():
        yield ("PyTorch" if budget == 1 else f"PyTorch, budget {budget}"), plan
    yield "conservative", _solved(graph, ByteTraffic())
    yield "aggressive", _solved(graph, ByteTraffic(mode="aggressive"))
    yield "save least", _solved(graph, SaveLeast())
    vertices = [point for point in remat.frontier(graph).points if point.is_vertex]
    for i in np.unique(np.linspace(0, len(vertices) - 1, _ON_THE_FRONTIER).astype(int)).tolist():
        yield f"frontier, {vertices[i].saved_bytes} bytes", vertices[i].plan
    for seed in range(4 * PLANS):
        yield f"random {seed}", _solved(graph, Dice(seed, recompute=2 ** (seed % 5)))


def _solved(graph: remat.Graph, cost_model: remat.CostModel) -> remat.Plan:
    plan = remat.solve(cost_model.pose(graph)).plan
    assert plan is not None  # solve() raises where there is none
    return plan


def _is_legal(graph: remat.Graph, plan: remat.Plan) -> bool:
    try:
        remat.check_plan(graph.unpriced, plan)
    except remat.InvalidPlan:  # some of PyTorch's own recompute random numbers
        return False
    return True


def _graph_file(folder: Path, model: str) -> Path:
    return folder / f"{_file_name(model)}.graph.json.gz"


def _truth_file(folder: Path, model: str) -> Path:
    return folder / f"{_file_name(model)}.json.gz"


def _file_name(model: str) -> str:
    return model.lower().replace(",", "").replace(".", "-").replace(" ", "-")


def _kernel(found: dict[str, Any]) -> Kernel:
    reads, writes = (tuple((str(name), int(size)) for name, size in found[side]) for side in ("reads", "writes"))
    return Kernel(
        found["name"], found["backward"], found["generated"], tuple(found["operators"]), found["bytes"], reads, writes
    )
