"""Measures compiled steps at PyTorch's default and budgets, its own beside ours.

`python -m experiments.bench.budget_steps` takes the models of the zoo, and eleven by `transformers` with random
weights. PyTorch's own step is `torch.compile` at its default, and at memory budgets of 0.5 and 0.2; ours is
`remat.compile(model)`, and with a `MemoryBudget` of as many bytes as PyTorch's plan saves there. The estimator is the
roofline of an A100.

Of each step, compiled anew: what autograd keeps for real, and the peak by the events of torch's allocator, in bytes;
bytes and kernels by TorchInductor's own count, for CPUs; recompute time by the estimator; and the seconds that the
first step takes. The C++ kernels are left out, since they allocate nothing and take most of the time: so these are the
seconds of tracing, choosing and scheduling. A model that is measured stays, so that the command goes on where it was
stopped.
"""

from __future__ import annotations

import inspect
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Choice, CostModel, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.pytorch.measure.torch_budgets import torchs_plans_of
from remat.pytorch.measure.training_step import measure_step
from remat.pytorch.seam.no_kernels import no_cpu_kernels
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import partitioner_settings

BUDGETS = (1.0, 0.5, 0.2)
MODELS = {name: make for name, make in (KERNEL_ZOO | HELD_OUT).items() if name in KERNEL_ZOO or name.startswith("HF ")}
FACTS = {
    "plan_bytes": "saved, by the plan",
    "saved_bytes": "kept",
    "peak_bytes": "peak",
    "moved_bytes": "moved",
    "kernels": "kernels",
    "recompute_ns": "recompute ns",
    "first_s": "first step, s",
}

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model; repeatable")] = None,
    output: Annotated[Path, typer.Option(help="folder for budget_steps.json and .md")] = RESULTS,
) -> None:
    """Measures, and writes budget_steps.json and budget_steps.md after each model."""
    file = output / "budget_steps.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    for name in only or MODELS:
        if name in {row["model"] for row in rows}:
            continue
        rows += [{"model": name} | row for row in measured(MODELS[name])]
        document = {"provenance": provenance(gpu=False), "rows": rows}
        write_results(file, document, markdown(document))
        console.print(name, *rows[-len(BUDGETS) :], sep="\n  ", markup=False)


def measured(make: Callable[[], Sample]) -> list[dict[str, Any]]:
    """Measures the steps of one model: a row for each of PyTorch's budgets."""
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model, args = make()
    graph = remat.capture(model, *args)
    rows: list[dict[str, Any]] = []
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
        rows.append({"budget": budget} | {who: {fact: side[fact] for fact in FACTS} for who, side in sides.items()})
    return rows


def ours_at(budget: float, saved_bytes: int) -> CostModel:
    """Returns our cost model beside one of PyTorch's budgets, at which its plan saves so many bytes."""
    return find_costmodel(DEFAULT_STEP_MODEL) if budget == 1 else MemoryBudget(f"{saved_bytes} B")


def _facts(graph: Graph, plan: Plan) -> dict[str, int]:
    problem = RecomputeTime().pose(graph)
    return {
        "plan_bytes": PlanFacts.of(graph, plan).saved_bytes,
        "recompute_ns": Choice.from_plan(problem, plan).cost(problem),
    }


def summarized(rows: list[dict[str, Any]]) -> list[list[object]]:
    """Counts for each budget and fact the models in which ours has less, as much, and more."""
    found: list[list[object]] = []
    for budget in BUDGETS:
        for fact, words in FACTS.items():
            changes = {row["model"]: change(row, fact) for row in rows if row["budget"] == budget}
            if changes:
                worst, each = max(changes, key=lambda name: changes[name]), changes.values()
                counts = sum(c < 0 for c in each), sum(c == 0 for c in each), sum(c > 0 for c in each)
                found.append(
                    [budget, words, *counts, f"{statistics.median(each):+.1%}", f"{changes[worst]:+.1%}", worst]
                )
    return found


def change(row: dict[str, Any], fact: str) -> float:
    """Returns by which part ours has more of something than PyTorch's step; where PyTorch's has none, 0."""
    return row["ours"][fact] / row["pytorch"][fact] - 1 if row["pytorch"][fact] else 0.0


def markdown(document: dict[str, Any]) -> str:
    """Makes the page for people who read the repository."""
    rows = document["rows"]
    sides = [f"{words}, {who}" for words in FACTS.values() for who in ("PyTorch", "ours")]
    return page(
        "Compiled steps at PyTorch's default and budgets, beside ours",
        inspect.cleandoc(__doc__ or ""),
        f"{cited(document['provenance'], 'experiments.bench.budget_steps')}.",
        table(["budget", "of a step", "less", "as much", "more", "median", "worst", "in"], summarized(rows)),
        section(
            "All rows",
            table(
                ["model", "budget", *sides],
                [
                    [
                        row["model"],
                        row["budget"],
                        *(_written(row[who][f]) for f in FACTS for who in ("pytorch", "ours")),
                    ]
                    for row in rows
                ],
            ),
        ),
    )


def _written(fact: float) -> str:
    return f"{fact:.1f}" if isinstance(fact, float) else str(fact)


if __name__ == "__main__":
    typer.run(main)
