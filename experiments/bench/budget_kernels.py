"""Compares plans at PyTorch's budgets by what their kernels move: `python -m experiments.bench.budget_kernels`.

Our ten small models and models by `transformers` have three plans at each of PyTorch's budgets from 0.1 to 0.9:
PyTorch's own; `portfolio`, the plan with the least recompute time that saves no more bytes; and `no_worse`, which
`remat.refine` makes from PyTorch's plan in 15 s with the objective "no-worse". Recompute time is that of the roofline
of an A100; bytes and kernels are those of TorchInductor's own schedule for CPUs.

Below a budget of 1 PyTorch draws random numbers twice where there is dropout (pytorch#190758); its plan is then counted
with these numbers saved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import remat
from costmodels import RecomputeTime
from experiments.models.held_out import transformers
from experiments.models.workloads import ZOO_INSTANCES, Sample
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Choice, Corpus, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import TENTHS, torchs_plans_of

SECONDS = 15.0
FACTS = ("saved_bytes", "recompute_ns", "traffic_bytes", "kernels")
OURS = ("portfolio", "no_worse")


def subjects() -> dict[str, Callable[[], Graph]]:
    """Lists what is compared: a name, and the function that makes the graph."""
    found: dict[str, Callable[[], Graph]] = {name: partial(Corpus.open().graph, name) for name in ZOO_INSTANCES}
    return found | {name: partial(_captured, make) for name, make in transformers.MODELS.items()}


def _captured(make: Callable[[], Sample]) -> Graph:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model, args = make()
    return remat.capture(model, *args)


def compared(
    graph: Graph, seconds: float = SECONDS, budgets: Sequence[float] = TENTHS[1:-1]
) -> Iterator[dict[str, Any]]:
    """Compares the plans of one graph: a row for each of PyTorch's budgets."""
    problem, schedule = RecomputeTime().pose(graph), Scheduled(graph)

    def row(plan: Plan) -> dict[str, Any]:
        budget_bytes, begin = PlanFacts.of(graph, plan).saved_bytes, time.monotonic()
        fastest = remat.solve(replace(problem, budget_bytes=budget_bytes)).plan
        assert fastest is not None  # PyTorch's own plan fits
        between = time.monotonic()
        found = remat.refine(graph, plan, "no-worse", "inductor", time_limit_s=seconds)
        kernels = schedule.kernels(fastest)
        return {
            "pytorch": dict(zip(found.terms, found.before, strict=True)),
            "portfolio": {
                "traffic_bytes": sum(kernel.bytes for kernel in kernels),
                "kernels": len(kernels),
                "saved_bytes": PlanFacts.of(graph, fastest).saved_bytes,
                "recompute_ns": Choice.from_plan(problem, fastest).cost(problem),
            },
            "no_worse": dict(zip(found.terms, found.after, strict=True)),
            "portfolio_s": round(between - begin, 1),
            "no_worse_s": round(found.time_s, 1),
        }

    plans = torchs_plans_of(graph, budgets, legal=True)
    rows = {plan.digest: row(plan) for plan in {plan.digest: plan for plan in plans.values()}.values()}
    yield from ({"budget": budget} | rows[plan.digest] for budget, plan in plans.items())


def change(row: dict[str, Any], who: str, fact: str) -> float:
    """Returns by which part a plan of ours has more of something than PyTorch's."""
    return row[who][fact] / row["pytorch"][fact] - 1 if row["pytorch"][fact] else 0.0


def is_better(row: dict[str, Any]) -> bool:
    """Says if the refined plan has less of something than PyTorch's, and more of nothing."""
    changes = [change(row, "no_worse", fact) for fact in FACTS]
    return max(changes) <= 0 and min(changes) < 0


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says in how many rows our plans have less, as much, and more of each."""
    found: list[str] = []
    for who in OURS:
        for fact in FACTS:
            changes = [change(row, who, fact) for row in rows]
            worst = max(rows, key=lambda row: change(row, who, fact))
            found.append(
                f"{who}, {fact}: less in {sum(c < 0 for c in changes)} of {len(rows)}, as much in "
                f"{sum(c == 0 for c in changes)}, more in {sum(c > 0 for c in changes)}; "
                f"median {statistics.median(changes):+.1%}, best {min(changes):+.1%}, "
                f"worst {change(worst, who, fact):+.1%} ({worst['case']} at {worst['budget']})".replace("_", " ")
            )
        times = [row[f"{who}_s"] for row in rows]
        found.append(f"{who}, seconds: median {statistics.median(times):.1f}, worst {max(times):.1f}".replace("_", " "))
    better = sum(map(is_better, rows))
    return [bullets([*found, f"no worse, less of something and more of nothing: {better} of {len(rows)}"])]


TABLE = ResultTable(
    "experiments.bench.budget_kernels",
    "Plans at PyTorch's budgets, by TorchInductor's kernels",
    cases=subjects,
    measure=lambda name: compared(subjects()[name]()),
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
