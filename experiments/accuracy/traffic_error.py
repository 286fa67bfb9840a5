"""Measures how far predicted memory traffic is from TorchInductor's schedule, and whether both rank plans alike.

`python -m experiments.accuracy.traffic_error` takes models, and for each of them legal plans that differ: autograd's
saves, PyTorch's and ours, points of the frontier, random ones. For each plan, `remat.predict_traffic` predicts the
bytes that the kernels of both passes read and write, from the `Graph` alone. Inductor's scheduler is asked for the
same, for CPUs, after all fusion and before code generation: see `remat.pytorch.inductor.scheduled`. An error is
negative where the prediction is too low; a rank correlation of 1 means that the two order a model's plans alike.

The rules of `remat.predict.kernels` come from Inductor's source, and were checked on our ten small models
(`experiments.models.workloads.KERNEL_ZOO`): their errors say how well the rules are copied. No rule was written for the
held-out models (`experiments.models.held_out`): expect their errors for a model of yours.
`python -m experiments.accuracy.traffic_error_triton` does the same for GPUs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

import remat
from costmodels import ByteTraffic
from experiments.accuracy.live_kernels import inductor_kernels
from experiments.models.held_out import HELD_OUT
from experiments.models.save_everything import SaveEverything, SaveLeast, plan_of
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.charts import draw_errors
from experiments.report.markdown import bullets, section, table
from experiments.report.result_table import ResultTable, Row
from remat.errors import CannotRebuild
from remat.pytorch.inductor.scheduled import InductorKernel, Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans

Made = Sample | remat.Graph
Count = Callable[[remat.Plan], Sequence[InductorKernel]]


@dataclass(frozen=True)
class Part:
    """Names models that are reported together.

    Attributes:
        models: makers by name; for a GPU, of a graph or of a model.
        plans: how many that differ are compared of each model, at most.
        on_the_frontier: how many of these at most are points of the frontier.
        budgets: of PyTorch's partitioner; 1 is its default.
    """

    models: Mapping[str, Callable[[], Made]]
    plans: int = 24
    on_the_frontier: int = 8
    budgets: tuple[float, ...] = (1.0, 0.5)


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


def compared(sample: Made, part: Part, gpu: str | None = None) -> Iterator[Row]:
    """Compares prediction and count: one row for each plan.

    Args:
        made: the model and what to call it with; or, with a GPU, its graph.
        part: which plans are compared.
        gpu: whose kernels they are, by the name of its sheet; None for those of this CPU.

    Raises:
        ValueError: the model has more than one joint graph.
    """
    graph, torchs = (sample, {}) if isinstance(sample, remat.Graph) else _captured(*sample, budgets=part.budgets)
    plans = dict(different_plans(graph, torchs, part))
    count = Scheduled(graph, device=gpu).kernels if gpu else counter(graph, sample, next(iter(plans.values())))
    for name, plan in plans.items():
        predicted = remat.predict_traffic(graph, plan, backend="triton" if gpu else "cpu")
        kernels = count(plan)
        yield {
            "plan": name,
            "predicted_bytes": predicted.bytes,
            "inductor_bytes": sum(kernel.bytes for kernel in kernels),
            "predicted_kernels": len(predicted.kernels),
            "inductor_kernels": len(kernels),
        }


def _captured(
    module: Any, args: tuple[Any, ...], budgets: Sequence[float]
) -> tuple[remat.Graph, dict[float, remat.Plan]]:
    found = torchs_plans(module, *args, budgets=budgets)
    if len(found) != 1:
        raise ValueError(f"the model must have one joint graph, got {len(found)}: does it have graph breaks?")
    return found[0]


def counter(graph: remat.Graph, sample: Made, first: remat.Plan) -> Count:
    """Decides whom to ask: the graph alone, which is faster, where it gives the model's kernels for the first plan."""
    if isinstance(sample, remat.Graph):
        raise TypeError("on a CPU, take the model: a graph alone is not believed")
    module, args = sample

    def of_the_model(plan: remat.Plan) -> Sequence[InductorKernel]:
        return inductor_kernels(module, *args, plans=plan)

    try:
        alone = Scheduled(graph)
    except CannotRebuild:
        return of_the_model
    return alone.kernels if _moved(alone.kernels(first)) == _moved(of_the_model(first)) else of_the_model


def _moved(kernels: Sequence[InductorKernel]) -> list[tuple[bool, bool, int]]:
    return [(kernel.backward, kernel.generated, kernel.bytes) for kernel in kernels]


def different_plans(
    graph: remat.Graph, torchs: Mapping[float, remat.Plan], part: Part
) -> Iterator[tuple[str, remat.Plan]]:
    """Finds legal plans that differ, with their names: of strategies, of the frontier, and random ones."""
    seen: set[remat.Plan] = set()
    for name, plan in _plans(graph, torchs, part):
        if plan not in seen and _is_legal(graph, plan):
            seen.add(plan)
            yield name, plan.for_graph(graph)
        if len(seen) == part.plans:
            return


def _plans(graph: remat.Graph, torchs: Mapping[float, remat.Plan], part: Part) -> Iterator[tuple[str, remat.Plan]]:
    yield "autograd's saves", plan_of(graph, SaveEverything())
    for budget, plan in torchs.items():
        yield ("PyTorch" if budget == 1 else f"PyTorch, budget {budget}"), plan
    yield "conservative", plan_of(graph, ByteTraffic())
    yield "aggressive", plan_of(graph, ByteTraffic(mode="aggressive"))
    yield "save least", plan_of(graph, SaveLeast())
    if part.on_the_frontier:
        vertices = [point for point in remat.frontier(graph).points if point.is_vertex]
        for i in np.unique(np.linspace(0, len(vertices) - 1, part.on_the_frontier).astype(int)).tolist():
            yield f"frontier, {vertices[i].saved_bytes} bytes", vertices[i].plan
    for seed in range(4 * part.plans):
        yield f"random {seed}", plan_of(graph, Dice(seed, recompute=2 ** (seed % 5)))


def _is_legal(graph: remat.Graph, plan: remat.Plan) -> bool:
    try:
        remat.check_plan(remat.plugin.base_problem(graph), plan)
    except remat.InvalidPlan:  # some of PyTorch's own recompute random numbers
        return False
    return True


def error(row: Row) -> float:
    """The relative error of the bytes."""
    return row["predicted_bytes"] / row["inductor_bytes"] - 1


def overall(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums up rows: how many are exact or near, and the median, the 90th percentile and the largest error."""
    errors = [abs(error(row)) for row in rows]
    return {
        "plans": len(rows),
        "exact": sum(row["predicted_bytes"] == row["inductor_bytes"] for row in rows),
        "within_1_percent": sum(size <= 0.01 for size in errors),
        "within_6_percent": sum(size <= 0.06 for size in errors),
        "median_error": statistics.median(errors),
        "p90_error": float(np.quantile(errors, 0.9)),
        "worst_error": max(errors),
        "worst": max(rows, key=lambda row: abs(error(row))),
    }


def rank_correlation(rows: Sequence[Row]) -> float:
    """Computes Spearman's correlation of predicted and counted bytes; NaN if all plans are equal."""
    return float(pd.DataFrame(rows)[["predicted_bytes", "inductor_bytes"]].corr("spearman").iloc[0, 1])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sums up each part, and each of its models."""
    found: list[str] = []
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        models = dict.fromkeys(row["case"] for row in own)
        total = overall(own)
        lines: list[tuple[object, ...]] = []
        for model in models:
            of = [row for row in own if row["case"] == model]
            about, rank = overall(of), rank_correlation(of)
            lines.append(
                (
                    *(model, len(of), f"{about['median_error']:.1%}", f"{error(about['worst']):+.1%}"),
                    about["worst"]["plan"] if about["worst_error"] else "",
                    "" if np.isnan(rank) else f"{rank:.3f}",
                )
            )
        claim = (
            f"{len(models)} models, {total['plans']} plans: {total['exact']} to the byte, {total['within_1_percent']} "
            f"within 1%, {total['within_6_percent']} within 6%; median error {total['median_error']:.1%}, nine in ten "
            f"within {total['p90_error']:.1%}, the worst {total['worst_error']:.1%} ({total['worst']['case']}, "
            f"{total['worst']['plan']})"
        )
        headings = ("model", "plans", "median error", "worst", "where", "rank correlation")
        found.append(section(part, bullets([claim]), table(headings, lines)))
    return found


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the errors of the models on which the rules were checked, and of all other models."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        label = "models on which the rules were checked" if row["part"] in ("zoo", "captured") else "all other models"
        errors.setdefault(label, []).append(row["predicted_bytes"] / row["inductor_bytes"] - 1)
    draw_errors(errors, "predicted bytes of kernels", path)


def table_of(module: str, title: str, about: str, parts: Mapping[str, Part], gpu: str | None) -> ResultTable[Any]:
    """Makes the experiment on some parts."""

    def measure(case: tuple[str, str]) -> Iterator[Row]:
        part, model = case
        torch.manual_seed(0)
        yield from ({"part": part, **row} for row in compared(parts[part].models[model](), parts[part], gpu))

    return ResultTable(
        module,
        title,
        about,
        cases=lambda: [(name, model) for name, part in parts.items() for model in part.models],
        key=": ".join,
        measure=measure,
        summary=summary,
        draw=draw,
    )


PARTS = {"zoo": Part(KERNEL_ZOO), "held-out": Part(HELD_OUT, 6, on_the_frontier=0, budgets=(1.0,))}
TITLE = "Predicted memory traffic against TorchInductor's"
TABLE = table_of("experiments.accuracy.traffic_error", f"{TITLE} count, for CPUs", __doc__ or "", PARTS, None)

if __name__ == "__main__":
    TABLE.command()
