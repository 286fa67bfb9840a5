"""Finds what TorchInductor makes of models: its kernels for many plans of each, counted without writing any.

A count takes seconds for each plan, so it can be kept in a folder: `<model>.graph.json.gz`, the joint graph, and
`<model>.json.gz`, the plans with their kernels. Those of another torch, or of another selection of plans, are not used.
Kernels for a GPU are those of TorchInductor's Triton schedule, without a device: of the graph alone, plan by plan, so
that a run that was stopped goes on from there.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import remat
from costmodels import ByteTraffic
from experiments.accuracy.peak_error import SaveEverything, solved
from experiments.demo import SaveLeast
from experiments.models.workloads import Sample
from remat.errors import CannotRebuild
from remat.pytorch.inductor.scheduled import Scheduled, inductor_kernels
from remat.pytorch.inductor.traffic_count import InductorKernel
from remat.pytorch.measure.torch_budgets import torchs_plans


@dataclass(frozen=True)
class PlanSelection:
    """Says which plans of a model Inductor is asked about, and how.

    Attributes:
        plans: how many that differ, at most.
        on_the_frontier: how many of these at most are points of the frontier.
        budgets: of PyTorch's partitioner; 1 is its default.
        every_plan_through_the_model: runs Dynamo and AOTAutograd for each plan. Otherwise they run for the first plan
            alone, and if `Scheduled` finds the same kernels there, it is asked about the other plans: that is faster.
    """

    plans: int = 24
    on_the_frontier: int = 8
    budgets: tuple[float, ...] = (1.0, 0.5)
    every_plan_through_the_model: bool = True


@dataclass(frozen=True)
class Dice(remat.CostModel):
    """Draws random prices, so that every seed gives a random legal plan.

    Attributes:
        seed: of the prices.
        recompute: how much dearer recomputing is than saving; small numbers recompute a lot.
    """

    name: ClassVar[str] = "dice"
    unit: ClassVar[str] = "pips"

    seed: int
    recompute: int = 1

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Draws prices that are cubes, so that they differ by orders of magnitude."""
        save, recompute = np.random.default_rng(self.seed).integers(0, 100, (2, len(graph))) ** 3
        terms = remat.plugin.Terms.nothing(graph)
        return replace(terms, save_cost=8 * save, recompute_cost=self.recompute * recompute)


@dataclass(frozen=True)
class Truth:
    """Holds a model's joint graph, and what Inductor schedules for each of its plans, by the name of the plan.

    The graph's `meta["asked"]` says what Inductor was asked about: the "model", or the "graph" alone (see
    `PlanSelection`).
    """

    graph: remat.Graph
    plans: dict[str, remat.Plan]
    kernels: dict[str, tuple[InductorKernel, ...]]

    def count_on(self, gpu: str, folder: Path, model: str) -> None:
        """Counts the plans that are not counted yet, for a GPU that need not be there, and saves after each."""
        missing = [name for name in self.plans if name not in self.kernels]
        scheduled = Scheduled(self.graph, device=gpu) if missing else None
        for name in missing:
            assert scheduled is not None
            self.kernels[name] = tuple(scheduled.kernels(self.plans[name]))
            self.save(folder, model)

    def save(self, folder: Path, model: str) -> None:
        """Writes two files; the second appears only when it is whole. Plans that are not counted have no kernels."""
        folder.mkdir(parents=True, exist_ok=True)
        self.graph.save(_graph_file(folder, model))
        document = {
            name: {
                "saved": plan.saved,
                "recomputed": plan.recomputed,
                "kernels": [asdict(kernel) for kernel in self.kernels[name]] if name in self.kernels else None,
            }
            for name, plan in self.plans.items()
        }
        part = _truth_file(folder, model).with_suffix(".part")
        with gzip.open(part, "wt") as file:
            json.dump(document, file)
        part.replace(_truth_file(folder, model))

    @classmethod
    def load(cls, folder: Path, model: str) -> Truth:
        """Reads the two files that `save` wrote."""
        graph = remat.Graph.load(_graph_file(folder, model))
        with gzip.open(_truth_file(folder, model), "rt") as file:
            document: dict[str, Any] = json.load(file)
        plans = {
            name: remat.Plan(tuple(found["saved"]), tuple(found["recomputed"])).for_graph(graph)
            for name, found in document.items()
        }
        counted = {name: found["kernels"] for name, found in document.items() if found["kernels"] is not None}
        return cls(graph, plans, {name: tuple(map(_kernel, kernels)) for name, kernels in counted.items()})


def find_truth(
    model: str,
    make: Callable[[], Sample | remat.Graph],
    selection: PlanSelection,
    folder: Path,
    gpu: str | None = None,
) -> Truth:
    """Finds the truth about a model: reads it from the folder if it is there, and asks Inductor if not.

    Args:
        model: its name.
        make: the model, and what to call it with; or, with a GPU, its graph.
        selection: of plans.
        folder: where counts are kept.
        gpu: whose kernels they are, by the name of its sheet; None for those of this CPU.

    Raises:
        ValueError: the model has more than one joint graph.
    """
    if (kept := _kept(folder, model, selection, gpu)) is not None:
        if gpu is not None:
            kept.count_on(gpu, folder, model)
        return kept
    torch.manual_seed(0)
    made = make()
    if isinstance(made, remat.Graph):
        return _begun(model, made, {}, selection, folder, gpu)
    module, args = made
    found = torchs_plans(module, *args, budgets=selection.budgets)
    if len(found) != 1:
        raise ValueError(f"{model} must have one joint graph, got {len(found)}: does it have graph breaks?")
    if gpu is not None:
        return _begun(model, *found[0], selection, folder, gpu)
    graph = found[0][0]
    plans = dict(different_plans(graph, found[0][1], selection))
    asked, ask = _asked(graph, plans, module, args, selection)
    kernels = {name: tuple(ask(plan)) for name, plan in plans.items()}
    truth = Truth(replace(graph, meta=_origin(model, selection) | {"asked": asked}), plans, kernels)
    truth.save(folder, model)
    return truth


def _begun(
    model: str,
    graph: remat.Graph,
    torchs: dict[float, remat.Plan],
    selection: PlanSelection,
    folder: Path,
    gpu: str | None,
) -> Truth:
    """Counts a graph alone, for a GPU."""
    if gpu is None:
        raise ValueError(f"{model} is a graph: on a CPU, take the model")
    plans = dict(different_plans(graph, torchs, selection))
    meta = {key: value for key, value in graph.meta.items() if key == "device"}
    truth = Truth(replace(graph, meta=meta | _origin(model, selection, gpu) | {"asked": "graph"}), plans, {})
    truth.count_on(gpu, folder, model)
    return truth


def _kept(folder: Path, model: str, selection: PlanSelection, gpu: str | None = None) -> Truth | None:
    if not _truth_file(folder, model).exists():
        return None
    kept = Truth.load(folder, model)
    return kept if _origin(model, selection, gpu).items() <= kept.graph.meta.items() else None


def _origin(model: str, selection: PlanSelection, gpu: str | None = None) -> dict[str, str]:
    origin = {"model": model, "torch": torch.__version__, "choice": str(selection)}
    return origin if gpu is None else origin | {"gpu": gpu}


def _asked(
    graph: remat.Graph, plans: dict[str, remat.Plan], module: Any, args: tuple[Any, ...], selection: PlanSelection
) -> tuple[str, Callable[[remat.Plan], list[InductorKernel]]]:
    """Decides whom to ask: the model, or the graph alone where that gives the same kernels for the first plan."""

    def whole(plan: remat.Plan) -> list[InductorKernel]:
        return inductor_kernels(module, *args, plans=plan)

    if selection.every_plan_through_the_model:
        return "model", whole
    try:
        alone = Scheduled(graph)
    except CannotRebuild:
        return "model", whole
    first = next(iter(plans.values()))
    same = _moved(alone.kernels(first)) == _moved(whole(first))
    return ("graph", alone.kernels) if same else ("model", whole)


def _moved(kernels: list[InductorKernel]) -> list[tuple[bool, bool, int]]:
    return [(kernel.backward, kernel.generated, kernel.bytes) for kernel in kernels]


def different_plans(
    graph: remat.Graph, torchs: dict[float, remat.Plan], selection: PlanSelection
) -> Iterator[tuple[str, remat.Plan]]:
    """Finds legal plans that differ, with their names: of strategies, of the frontier, and random ones."""
    seen: set[remat.Plan] = set()
    for name, plan in _plans(graph, torchs, selection):
        if plan not in seen and _is_legal(graph, plan):
            seen.add(plan)
            yield name, plan.for_graph(graph)
        if len(seen) == selection.plans:
            return


def _plans(
    graph: remat.Graph, torchs: dict[float, remat.Plan], selection: PlanSelection
) -> Iterator[tuple[str, remat.Plan]]:
    yield "autograd's saves", solved(graph, SaveEverything())
    for budget, plan in torchs.items():
        yield ("PyTorch" if budget == 1 else f"PyTorch, budget {budget}"), plan
    yield "conservative", solved(graph, ByteTraffic())
    yield "aggressive", solved(graph, ByteTraffic(mode="aggressive"))
    yield "save least", solved(graph, SaveLeast())
    if selection.on_the_frontier:
        vertices = [point for point in remat.frontier(graph).points if point.is_vertex]
        for i in np.unique(np.linspace(0, len(vertices) - 1, selection.on_the_frontier).astype(int)).tolist():
            yield f"frontier, {vertices[i].saved_bytes} bytes", vertices[i].plan
    for seed in range(4 * selection.plans):
        yield f"random {seed}", solved(graph, Dice(seed, recompute=2 ** (seed % 5)))


def _is_legal(graph: remat.Graph, plan: remat.Plan) -> bool:
    try:
        remat.check_plan(remat.plugin.base_problem(graph), plan)
    except remat.InvalidPlan:  # some of PyTorch's own recompute random numbers
        return False
    return True


def _graph_file(folder: Path, model: str) -> Path:
    return folder / f"{_file_name(model)}.graph.json.gz"


def _truth_file(folder: Path, model: str) -> Path:
    return folder / f"{_file_name(model)}.json.gz"


def _file_name(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", model.lower())


def _kernel(found: dict[str, Any]) -> InductorKernel:
    reads, writes = (tuple((str(name), int(size)) for name, size in found[side]) for side in ("reads", "writes"))
    return InductorKernel(
        found["name"], found["backward"], found["generated"], tuple(found["operators"]), found["bytes"], reads, writes
    )
