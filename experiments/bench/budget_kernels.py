"""Compares plans at PyTorch's budgets by what their kernels move: `python -m experiments.bench.budget_kernels`.

On the graphs of the zoo, at each of PyTorch's budgets from 0.1 to 0.9: the plan of the default solver that saves no
more bytes and recomputes least by the estimator; and of both plans the bytes and kernels of TorchInductor's own
schedule for CPUs. Below a budget of 1 PyTorch draws random numbers twice where there is dropout (pytorch#190758); its
plan is then counted with these numbers saved. A graph that is measured stays, so that the command goes on where it was
stopped.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import remat
from costmodels import RecomputeTime
from experiments.bench.gpu_plans import ZOO
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from remat import Choice, Corpus, Graph, Plan
from remat.improve.refine.states import Space
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import TENTHS, torchs_plans_of

RESULTS = Path(__file__).parents[1] / "results"
BUDGETS = TENTHS[1:-1]

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="a graph of the corpus; repeatable")] = None,
    output: Annotated[Path, typer.Option(help="folder for budget_kernels.json and .md")] = RESULTS,
) -> None:
    """Solves, counts, and writes budget_kernels.json and budget_kernels.md after each graph."""
    file = output / "budget_kernels.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    for name in only or ZOO:
        if name in {row["instance"] for row in rows}:
            continue
        rows += [{"instance": name} | row for row in compared(Corpus.open().graph(name))]
        document = {"provenance": provenance(gpu=False), "rows": rows}
        file.write_text(json.dumps(document, indent=1) + "\n")
        (output / "budget_kernels.md").write_text(markdown(document))
        console.print(name, *summarized(rows), sep="\n  ", markup=False)


def compared(graph: Graph, budgets: Sequence[float] = BUDGETS) -> list[dict[str, Any]]:
    """Compares the plans of one graph: a row for each of PyTorch's budgets."""
    problem, space, schedule = RecomputeTime().pose(graph), Space(graph), Scheduled(graph)
    known: dict[str, dict[str, int]] = {}

    def facts(plan: Plan) -> dict[str, int]:
        if plan.digest not in known:
            kernels = schedule.kernels(plan)
            state = space.state(Choice.from_plan(graph, plan).saved)
            known[plan.digest] = {
                "saved_bytes": state.saved_bytes,
                "recompute_ns": Choice.from_plan(problem, plan).cost(problem),
                "traffic_bytes": sum(kernel.bytes for kernel in kernels),
                "kernels": len(kernels),
            }
        return known[plan.digest]

    rows: list[dict[str, Any]] = []
    for budget, plan in torchs_plans_of(graph, budgets).items():
        legal = space.state(Choice.from_plan(graph, plan).saved)
        theirs = facts(legal.choice.plan(graph))
        ours = remat.solve(replace(problem, budget_bytes=legal.saved_bytes)).plan
        assert ours is not None  # PyTorch's own plan fits
        rows.append({"budget": budget, "pytorch": theirs, "ours": facts(ours)})
    return rows


def change(row: dict[str, Any], fact: str) -> float:
    """Returns by which part our plan has more of something than PyTorch's."""
    return row["ours"][fact] / row["pytorch"][fact] - 1 if row["pytorch"][fact] else 0.0


def summarized(rows: list[dict[str, Any]]) -> list[str]:
    """Says in how many rows ours has less, as much, and more of each."""
    found: list[str] = []
    for fact in ("saved_bytes", "recompute_ns", "traffic_bytes", "kernels"):
        changes = [change(row, fact) for row in rows]
        worst = max(rows, key=lambda row: change(row, fact))
        found.append(
            f"{fact.replace('_', ' ')}: less in {sum(c < 0 for c in changes)} of {len(rows)}, as much in "
            f"{sum(c == 0 for c in changes)}, more in {sum(c > 0 for c in changes)}; "
            f"median {statistics.median(changes):+.1%}, worst {change(worst, fact):+.1%} "
            f"({worst['instance']} at {worst['budget']})"
        )
    return found


def markdown(document: dict[str, Any]) -> str:
    """Makes the page for people who read the repository."""
    rows, facts = document["rows"], ("saved_bytes", "recompute_ns", "traffic_bytes", "kernels")
    headings = [
        "instance",
        "budget",
        *(f"{fact.replace('_', ' ')}, {who}" for fact in facts for who in ("PyTorch", "ours")),
    ]
    return page(
        "Plans at PyTorch's budgets, by TorchInductor's kernels",
        f"{cited(document['provenance'], 'experiments.bench.budget_kernels')}. Recompute time is that of the roofline "
        "of an A100; kernels and bytes are those of TorchInductor's schedule for CPUs.",
        bullets(summarized(rows)),
        section(
            "All rows",
            table(
                headings,
                [
                    [row["instance"], row["budget"], *(row[who][fact] for fact in facts for who in ("pytorch", "ours"))]
                    for row in rows
                ],
            ),
        ),
    )


if __name__ == "__main__":
    typer.run(main)
