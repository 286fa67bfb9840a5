"""Measures compiled steps at PyTorch's default and budgets: PyTorch's steps beside ours.

`python -m experiments.bench.budget_steps` takes our ten small models, and eleven by `transformers` with random weights.
PyTorch's own step is `torch.compile` at its default, and at memory budgets of 0.5 and 0.2; ours is
`remat.compile(model)`, and with a `MemoryBudget` of as many bytes as PyTorch's plan saves there. The estimator is the
roofline of an A100.

Each step is compiled anew. A row has the bytes that the plan saves, the bytes that autograd really keeps
(`saved_bytes`), the peak by the events of torch's allocator, bytes and kernels by TorchInductor's own count for CPUs,
recompute time by the estimator, and the seconds of the first step. The C++ kernels are left out, since they allocate
nothing and take most of the time: so these are the seconds of tracing, choosing and scheduling.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.bench.budget_kernels import change
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable
from remat import Choice, CostModel, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.pytorch.measure.torch_budgets import torchs_plans_of
from remat.pytorch.measure.training_step import measure_step
from remat.pytorch.seam.step_allocations import no_cpu_kernels
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import partitioner_settings

BUDGETS = (1.0, 0.5, 0.2)
MODELS = {name: make for name, make in (KERNEL_ZOO | HELD_OUT).items() if name in KERNEL_ZOO or name.startswith("HF ")}
FACTS = ("plan_bytes", "saved_bytes", "peak_bytes", "moved_bytes", "kernels", "recompute_ns", "first_s")


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Measures the steps of one model: a row for each of PyTorch's budgets."""
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model, args = MODELS[name]()
    graph = remat.capture(model, *args)
    for budget, plan in torchs_plans_of(graph, BUDGETS, legal=True).items():
        with partitioner_settings(activation_memory_budget=budget), no_cpu_kernels():
            step = measure_step(torch_compile(model), model, *args, repeats=0)
        theirs = _facts(graph, plan) | step.row()
        prices = ours_at(budget, theirs["plan_bytes"])
        own = remat.choose(graph, prices).plan
        assert own is not None  # PyTorch's own plan fits
        with no_cpu_kernels():
            step = measure_step(remat.compile(model, cost_model=prices), model, *args, repeats=0)
        sides = {"pytorch": theirs, "ours": _facts(graph, own) | step.row()}
        yield {"budget": budget} | {who: {fact: side[fact] for fact in FACTS} for who, side in sides.items()}


def ours_at(budget: float, saved_bytes: int) -> CostModel:
    """Returns our cost model beside one of PyTorch's budgets, at which its plan saves so many bytes."""
    return find_costmodel(DEFAULT_STEP_MODEL) if budget == 1 else MemoryBudget(f"{saved_bytes} B")


def _facts(graph: Graph, plan: Plan) -> dict[str, int]:
    problem = RecomputeTime().pose(graph)
    return {
        "plan_bytes": PlanFacts.of(graph, plan).saved_bytes,
        "recompute_ns": Choice.from_plan(problem, plan).cost(problem),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts for each budget and fact the models in which ours has less, as much, and more."""
    lines: list[list[object]] = []
    for budget in BUDGETS:
        for fact in FACTS:
            changes = {row["case"]: change(row, "ours", fact) for row in rows if row["budget"] == budget}
            worst, each = max(changes, key=lambda name: changes[name]), changes.values()
            counts = sum(c < 0 for c in each), sum(c == 0 for c in each), sum(c > 0 for c in each)
            lines.append([budget, fact, *counts, f"{statistics.median(each):+.1%}", f"{changes[worst]:+.1%}", worst])
    return [table(["budget", "of a step", "less", "as much", "more", "median", "worst", "in"], lines)]


TABLE = ResultTable(
    "experiments.bench.budget_steps",
    "Compiled steps at PyTorch's default and budgets, beside ours",
    cases=lambda: MODELS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
