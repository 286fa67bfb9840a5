"""Compares plans at PyTorch's budgets by what their kernels move: `python -m experiments.bench.budget_kernels`.

On the graphs of the zoo and on models by `transformers`, at each of PyTorch's budgets from 0.1 to 0.9, three plans:
PyTorch's own; that of the default solver which saves no more bytes and recomputes least by the estimator; and what
`remat.refine` makes of PyTorch's with the objective "no-worse". Of each the bytes and kernels of TorchInductor's own
schedule for CPUs.

Below a budget of 1 PyTorch draws random numbers twice where there is dropout (pytorch#190758); its plan is then
counted with these numbers saved. A graph that is measured stays, so that the command goes on where it was stopped;
`--fresh` begins anew.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import remat
from costmodels import RecomputeTime
from experiments.bench.gpu_plans import ZOO
from experiments.models.held_out import transformers
from experiments.models.workloads import Sample
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Choice, Corpus, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import TENTHS, torchs_plans_of

BUDGETS = TENTHS[1:-1]
SECONDS = 15.0
FACTS = ("saved_bytes", "recompute_ns", "traffic_bytes", "kernels")
OURS = {"portfolio": "portfolio", "no_worse": "no-worse"}
"""Our plans, with their names on the page."""

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="a graph; repeatable")] = None,
    fresh: Annotated[bool, typer.Option(help="measure finished graphs again")] = False,
    seconds: Annotated[float, typer.Option(help="for each refinement")] = SECONDS,
    output: Annotated[Path, typer.Option(help="folder for budget_kernels.json and .md")] = RESULTS,
) -> None:
    """Solves, refines, counts, and writes budget_kernels.json and budget_kernels.md after each graph."""
    file = output / "budget_kernels.json"
    rows: list[dict[str, Any]] = [] if fresh or not file.exists() else json.loads(file.read_text())["rows"]
    for name, graph in subjects().items():
        if name in {row["instance"] for row in rows} or (only and name not in only):
            continue
        rows += [{"instance": name} | row for row in compared(graph(), seconds)]
        document = {"provenance": provenance(gpu=False), "seconds": seconds, "rows": rows}
        write_results(file, document, markdown(document))
        console.print(name, *summarized(rows), sep="\n  ", markup=False)


def subjects() -> dict[str, Callable[[], Graph]]:
    """Lists what is compared: a name, and the function that makes the graph."""
    found: dict[str, Callable[[], Graph]] = {name: partial(Corpus.open().graph, name) for name in ZOO}
    return found | {name: partial(_captured, make) for name, make in transformers.MODELS.items()}


def _captured(make: Callable[[], Sample]) -> Graph:
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model, args = make()
    return remat.capture(model, *args)


def compared(graph: Graph, seconds: float, budgets: Sequence[float] = BUDGETS) -> list[dict[str, Any]]:
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
    return [{"budget": budget} | rows[plan.digest] for budget, plan in plans.items()]


def change(row: dict[str, Any], who: str, fact: str) -> float:
    """Returns by which part a plan of ours has more of something than PyTorch's."""
    return row[who][fact] / row["pytorch"][fact] - 1 if row["pytorch"][fact] else 0.0


def is_better(row: dict[str, Any]) -> bool:
    """Says if the refined plan has less of something than PyTorch's, and more of nothing."""
    changes = [change(row, "no_worse", fact) for fact in FACTS]
    return max(changes) <= 0 and min(changes) < 0


def summarized(rows: list[dict[str, Any]]) -> list[str]:
    """Says in how many rows our plans have less, as much, and more of each."""
    found: list[str] = []
    for who, name in OURS.items():
        for fact in FACTS:
            changes = [change(row, who, fact) for row in rows]
            worst = max(rows, key=lambda row: change(row, who, fact))
            found.append(
                f"{name}, {fact.replace('_', ' ')}: less in {sum(c < 0 for c in changes)} of {len(rows)}, as much in "
                f"{sum(c == 0 for c in changes)}, more in {sum(c > 0 for c in changes)}; "
                f"median {statistics.median(changes):+.1%}, best {min(changes):+.1%}, "
                f"worst {change(worst, who, fact):+.1%} ({worst['instance']} at {worst['budget']})"
            )
        times = [row[f"{who}_s"] for row in rows]
        found.append(f"{name}, seconds: median {statistics.median(times):.1f}, worst {max(times):.1f}")
    better = sum(map(is_better, rows))
    return [*found, f"no-worse, less of something and more of nothing: {better} of {len(rows)}"]


def markdown(document: dict[str, Any]) -> str:
    """Makes the page for people who read the repository."""
    rows, whose = document["rows"], {"pytorch": "PyTorch"} | OURS
    headings = [f"{fact.replace('_', ' ')}, {name}" for fact in FACTS for name in whose.values()]
    return page(
        "Plans at PyTorch's budgets, by TorchInductor's kernels",
        f"{cited(document['provenance'], 'experiments.bench.budget_kernels')}. Recompute time is that of the roofline "
        "of an A100; kernels and bytes are those of TorchInductor's schedule for CPUs. `portfolio` is the plan of "
        "least recompute time at PyTorch's saved bytes; `no-worse` is what `remat.refine` makes of PyTorch's plan, "
        f"with {document['seconds']:g} s for each.",
        bullets(summarized(rows)),
        section(
            "All rows",
            table(
                ["instance", "budget", *headings, *(f"seconds, {name}" for name in OURS.values())],
                [
                    [
                        row["instance"],
                        row["budget"],
                        *(row[who][fact] for fact in FACTS for who in whose),
                        *(row[f"{who}_s"] for who in OURS),
                    ]
                    for row in rows
                ],
            ),
        ),
    )


if __name__ == "__main__":
    typer.run(main)
