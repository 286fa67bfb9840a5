"""Compares memory budgets with PyTorch's on the same joint graphs: `python -m experiments.bench.budgets`.

There is a row for each model and each of PyTorch's budgets from 0.0 to 1.0. It has the bytes that PyTorch's partitioner
saves, and the recompute time. Beside that is the recompute time, by the same estimator, of the better plan of
`lagrangian` and `cpsat` (20 s) that saves no more bytes, and of the one that may use the whole budget. Costs are in
flops, or in nanoseconds of the roofline of an A100: estimates, not measured times. The models have random weights (seed
0).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import remat
from costmodels import RecomputeTime
from experiments.models import workloads
from experiments.report.markdown import bullets
from experiments.report.result_table import RESULTS, ResultTable
from remat import Graph, InvalidPlan, Plan, Problem
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.measure.torch_budgets import torchs_plans

MODELS: dict[str, Callable[[], workloads.Sample]] = {
    "transformer": workloads.transformer,
    "transformer, dropout": lambda: workloads.transformer(dropout=0.1),
    "vision transformer": workloads.vit,
    "ResNet": workloads.resnet,
    "MLP-Mixer": workloads.mixer,
    "LSTM cells": workloads.recurrent,
}
ESTIMATORS = ("flops", "roofline")
LIMIT_S = 20.0
PICTURE = RESULTS / "frontier-transformer.svg"


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Compares the plans of a model by both estimators; draws the frontier of the transformer."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    ((graph, plans),) = torchs_plans(model, *args)
    for estimator in ESTIMATORS:
        yield from compared(graph, plans, estimator, LIMIT_S)
    if name == "transformer":
        picture(replace(graph, meta=dict(graph.meta) | {"model": name}), plans)


def compared(graph: Graph, plans: Mapping[float, Plan], estimator: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Compares plans at each of PyTorch's budgets: one row for each."""
    problem = RecomputeTime(estimator).pose(graph)
    most = PlanFacts.of(graph, plans[1.0]).saved_bytes
    for budget, plan in plans.items():
        saved_bytes = PlanFacts.of(graph, plan).saved_bytes
        same = best(problem, saved_bytes, limit_s)
        allowed = int(budget * most)
        within = best(problem, allowed, limit_s) if allowed > saved_bytes else None
        yield {
            "estimator": estimator,
            "budget": budget,
            "illegal": illegal(graph, plan),
            "saved_bytes": saved_bytes,
            "pytorch": remat.Choice.from_plan(problem, plan).cost(problem),
            "lagrangian": remat.solve(replace(problem, budget_bytes=saved_bytes), "lagrangian", throw=False).objective,
            "ours": same and same.objective,
            "bound": same and same.bound,
            "ended": "no legal plan saves so little" if same is None else same.termination.reason.name.lower(),
            "budget_bytes": allowed,
            "ours_at_budget": within and within.objective,
        }


def best(problem: Problem, budget_bytes: int, limit_s: float) -> remat.Solution | None:
    """Finds the better plan of `lagrangian` and `cpsat`; None if no legal plan fits."""
    within = replace(problem, budget_bytes=budget_bytes)
    quick = remat.solve(within, "lagrangian", throw=False)
    if quick.is_proven:
        return quick if quick.plan else None
    exact = remat.solve(within, "cpsat", time_limit_s=limit_s, throw=False)
    if exact.objective is None or quick.objective is None or quick.objective < exact.objective:
        return quick
    return exact


def illegal(graph: Graph, plan: Plan) -> str:
    """Says in one line why a plan is not legal; "" if it is."""
    try:
        remat.check_plan(remat.plugin.base_problem(graph), plan)
    except InvalidPlan as error:
        return str(error).splitlines()[1].strip()
    return ""


def picture(graph: Graph, plans: Mapping[float, Plan]) -> None:
    """Draws the frontier, with PyTorch's plans beside it."""
    curve = remat.frontier(graph)
    points = [curve.price(plan) for plan in plans.values() if not illegal(graph, plan)]
    curve.refine(24).plot(PICTURE, other_points={"PyTorch, budgets 0.0 to 1.0": points})


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts on how many models and budgets each claim holds."""
    legal = [row for row in rows if not row["illegal"]]
    under = [row for row in legal if row["ours_at_budget"] is not None and row["pytorch"] > 0]
    found = [f"{len(rows)} plans of PyTorch's, of which {len(rows) - len(legal)} are not legal"]
    for who, words in (("ours", "ours"), ("lagrangian", "lagrangian alone")):
        less, more = (sum(sign * row[who] < sign * row["pytorch"] for row in legal) for sign in (1, -1))
        found.append(
            f"at the same bytes {words} costs less in {less}, as much in {len(legal) - less - more}, more in {more}"
        )
    for estimator in ESTIMATORS:
        own = [row for row in legal if row["estimator"] == estimator and 0 < row["budget"] < 1 and row["pytorch"]]
        spared = [1 - row["ours"] / row["pytorch"] for row in own] or [0.0]
        found.append(
            f"what ours spares of PyTorch's recompute time by {estimator}, at budgets 0.1 to 0.9: "
            f"median {statistics.median(spared):.1%}, most {max(spared):.1%}, least {min(spared):.2%}"
        )
    fewer = sum(row["ours_at_budget"] < row["pytorch"] for row in under)
    found.append(
        f"PyTorch uses less than its budget, and recomputes, in {len(under)}; there ours costs less in {fewer}"
    )
    return [bullets(found)]


TABLE = ResultTable(
    "experiments.bench.budgets",
    "Memory budgets beside PyTorch's",
    cases=lambda: MODELS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
