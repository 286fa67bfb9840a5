"""Compares memory budgets with PyTorch's on the same joint graphs: `python -m experiments.bench.budgets`.

For each model and each of PyTorch's budgets from 0.0 to 1.0: what its partitioner saves, what that
costs in recompute time, and what the best plan costs that saves no more bytes, by the same
estimator. Then the peaks of both, simulated; and the time of PyTorch's choice at one budget beside
the time of our whole frontier, in turns.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.models import workloads
from experiments.report.markdown import bullets, cell, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Graph, InvalidPlan, Plan, Problem
from remat.answer.plan_facts import PlanFacts
from remat.predict.memory import Simulator
from remat.pytorch.measure.torch_budgets import torchs_choice_at, torchs_plans
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract

MODELS: dict[str, Callable[[], workloads.Sample]] = {
    "transformer": workloads.transformer,
    "transformer, dropout": lambda: workloads.transformer(dropout=0.1),
    "vision transformer": workloads.vit,
    "ResNet": workloads.resnet,
    "MLP-Mixer": workloads.mixer,
    "LSTM cells": workloads.recurrent,
}
ESTIMATORS = ("flops", "roofline")
BUSY = 0.2
"""At this budget PyTorch runs its knapsack on every model; other budgets may be met by a cut alone."""

console = Console(width=max(Console().width, 140))


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model; repeatable")] = None,
    time_limit: Annotated[float, typer.Option(help="seconds for cpsat at each budget")] = 20.0,
    repeats: Annotated[int, typer.Option(help="of each timing")] = 5,
    output: Annotated[Path, typer.Option(help="folder for JSON, tables and pictures")] = RESULTS,
    draw: Annotated[bool, typer.Option("--draw", help="draw the pictures again, and measure nothing")] = False,
    times_alone: Annotated[bool, typer.Option("--times", help="measure the times again; the plans stay")] = False,
) -> None:
    """Measures and prints; writes budgets.json, budgets.md and a picture for each model."""
    if draw:
        for name in only or list(MODELS):
            picture(name, *_captured(name), output)
        return
    rows: list[dict[str, Any]] = []
    times: list[dict[str, Any]] = []
    if times_alone:
        document = json.loads((output / "budgets.json").read_text())
        times = [{"model": name} | timed(MODELS[name], repeats) for name in MODELS]
        document["provenance"]["times"] = provenance(gpu=False)
        document |= {"summary": summarized(document["rows"], times), "times": times}
        written(document, output)
        return
    for name in only or list(MODELS):
        with console.status(name):
            times.append({"model": name} | timed(MODELS[name], repeats))
            found = _captured(name)
            for estimator in ESTIMATORS:
                rows += [{"model": name} | row for row in compared(*found, estimator, time_limit)]
            picture(name, *found, output)
        show(f"{name}", [row for row in rows if row["model"] == name], _COLUMNS)
    summary = summarized(rows, times)
    written({"provenance": provenance(gpu=False), "summary": summary, "times": times, "rows": rows}, output)


def written(document: dict[str, Any], output: Path) -> None:
    """Writes budgets.json and budgets.md, and prints the summary."""
    write_results(output / "budgets.json", document, markdown(document))
    show("One of PyTorch's budgets against the whole frontier", document["times"], tuple(document["times"][0]))
    console.print(json.dumps(document["summary"], indent=1))


def _captured(name: str) -> tuple[Graph, dict[float, Plan]]:
    """The joint graph of a model, and PyTorch's plan at each budget."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    ((graph, plans),) = torchs_plans(model, *args)
    return replace(graph, meta=dict(graph.meta) | {"model": name}), plans


def compared(graph: Graph, plans: dict[float, Plan], estimator: str, time_limit_s: float) -> list[dict[str, Any]]:
    """Compares plans at each of PyTorch's budgets: one row for each."""
    problem = RecomputeTime(estimator).pose(graph)
    simulator = Simulator(graph)
    most = PlanFacts.of(graph, plans[1.0]).saved_bytes
    no_recompute = simulator.peak(graph.in_forward)
    rows: list[dict[str, Any]] = []
    for budget, plan in plans.items():
        saved_bytes = PlanFacts.of(graph, plan).saved_bytes
        theirs = remat.Choice.from_plan(problem, plan).cost(problem)
        quick = remat.solve(replace(problem, budget_bytes=saved_bytes), "lagrangian", throw=False)
        same = best(problem, saved_bytes, time_limit_s)
        allowed = int(budget * most)
        within = best(problem, allowed, time_limit_s) if allowed > saved_bytes else None
        peak = remat.choose(graph, MemoryBudget(budget, of="peak", estimator=estimator))
        assert peak.plan is not None
        rows.append(
            {
                "estimator": estimator,
                "budget": budget,
                "illegal": illegal(graph, plan),
                "saved_bytes": saved_bytes,
                "pytorch": theirs,
                "lagrangian": quick.objective,
                "ours": same and same.objective,
                "bound": same and same.bound,
                "ended": "no legal plan saves so little" if same is None else same.termination.reason.name.lower(),
                "budget_bytes": allowed,
                "ours_at_budget": within and within.objective,
                "pytorch_peak_bytes": simulator.peak(remat.Choice.from_plan(graph, plan).saved),
                "ours_peak_bytes": simulator.peak(remat.Choice.from_plan(graph, peak.plan).saved),
                "ours_at_peak": peak.objective,
                "no_recompute_peak_bytes": no_recompute,
            }
        )
    return rows


def best(problem: Problem, budget_bytes: int, time_limit_s: float) -> remat.Solution | None:
    """Finds the better plan of `lagrangian` and `cpsat`; None if no legal plan fits."""
    within = replace(problem, budget_bytes=budget_bytes)
    quick = remat.solve(within, "lagrangian", throw=False)
    if quick.is_proven:
        return quick if quick.plan else None
    exact = remat.solve(within, "cpsat", time_limit_s=time_limit_s, throw=False)
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


def timed(make: Callable[[], workloads.Sample], repeats: int) -> dict[str, Any]:
    """Times PyTorch's choice at one budget, and our facts, prices and whole frontier, in turns.

    Returns:
        medians of processor time: a machine that others share says little else.
    """
    seconds: dict[str, list[float]] = {"pytorch": [], "ours": []}
    about: dict[str, Any] = {}

    def visit(joint_graph: Any, node_info: Any, num_fwd_outputs: int) -> None:
        def ours() -> remat.Frontier:
            return remat.frontier(extract(joint_graph, node_info, num_fwd_outputs))

        curve = ours()  # imports OR-Tools
        about.update(values=len(joint_graph.nodes), vertices=len(curve.vertices))
        steps = {"pytorch": lambda: torchs_choice_at(joint_graph, node_info, BUSY), "ours": ours}
        for _ in range(repeats):
            for name, step in steps.items():
                start = time.thread_time()
                step()
                seconds[name].append(time.thread_time() - start)

    model, args = make()
    visit_joint_graphs(visit, model, *args)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    return about | {
        "pytorch_one_budget_s": round(medians["pytorch"], 4),
        "ours_whole_frontier_s": round(medians["ours"], 4),
        "ratio": round(medians["pytorch"] / medians["ours"], 1),
        "worst_ratio": round(min(seconds["pytorch"]) / max(seconds["ours"]), 1),
    }


def summarized(rows: list[dict[str, Any]], times: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts on how many models and budgets each claim holds."""
    legal = [row for row in rows if not row["illegal"]]
    under = [row for row in legal if row["ours_at_budget"] is not None and row["pytorch"] > 0]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["estimator"]), []).append(row)
    peaks = [[row["ours_peak_bytes"] for row in group] for group in groups.values()]
    return {
        "rows": len(rows),
        "PyTorch's plan is not legal": len(rows) - len(legal),
        "legal": len(legal),
        "at the same bytes ours costs more": sum(row["ours"] > row["pytorch"] for row in legal),
        "at the same bytes ours costs less": sum(row["ours"] < row["pytorch"] for row in legal),
        "at the same bytes lagrangian alone costs more": sum(row["lagrangian"] > row["pytorch"] for row in legal),
        "at the same bytes lagrangian alone costs less": sum(row["lagrangian"] < row["pytorch"] for row in legal),
        **{
            f"{which} share of recompute that ours saves at the same bytes, by {estimator}, budgets 0.1 to 0.9": of(
                [
                    1 - row["ours"] / row["pytorch"]
                    for row in legal
                    if row["estimator"] == estimator and 0 < row["budget"] < 1 and row["pytorch"]
                ]
                or [0.0]
            )
            for estimator in ESTIMATORS
            for which, of in (("median", statistics.median), ("largest", max))
        },
        "PyTorch uses less than its budget, and recomputes": len(under),
        "there ours costs less": sum(row["ours_at_budget"] < row["pytorch"] for row in under),
        "models where the whole frontier takes longer than one of PyTorch's budgets": sum(
            t["ratio"] < 1 for t in times
        ),
        "our peak grows with the budget": all(peak == sorted(peak) for peak in peaks),
        **{
            f"peaks of {who} above that of no recompute": sum(
                row[f"{who}_peak_bytes"] > row["no_recompute_peak_bytes"] for row in rows
            )
            for who in ("ours", "pytorch")
        },
        "PyTorch's peak grows with the budget": all(
            (peak := [row["pytorch_peak_bytes"] for row in group]) == sorted(peak) for group in groups.values()
        ),
    }


def picture(name: str, graph: Graph, plans: dict[float, Plan], folder: Path) -> None:
    """Draws the frontier, with PyTorch's plans beside it."""
    curve = remat.frontier(graph)
    costs = [remat.Choice.from_plan(curve.problem, plan).cost(curve.problem) for plan in plans.values()]
    sizes = [PlanFacts.of(graph, plan).saved_bytes for plan in plans.values()]
    folder.mkdir(exist_ok=True)
    path = folder / f"frontier-{name.replace(', ', '-').replace(' ', '-').lower()}.svg"
    curve.refine(24).plot(path, beside={"PyTorch, budgets 0.0 to 1.0": list(zip(sizes, costs, strict=True))})


_COLUMNS = (
    "estimator",
    "budget",
    "saved_bytes",
    "pytorch",
    "lagrangian",
    "ours",
    "bound",
    "ended",
    "budget_bytes",
    "ours_at_budget",
    "pytorch_peak_bytes",
    "ours_peak_bytes",
    "no_recompute_peak_bytes",
    "illegal",
)


def show(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Prints a table."""
    shown = Table(title=title)
    for column in columns:
        shown.add_column(column, justify="left" if column in ("illegal", "ended", "model") else "right")
    for row in rows:
        shown.add_row(*(cell(row[column]) for column in columns))
    console.print(shown)


def markdown(document: dict[str, Any]) -> str:
    """Makes the page with the same tables for people who read the repository."""
    models = dict.fromkeys(row["model"] for row in document["rows"])
    later = document["provenance"].get("times")
    return page(
        "Memory budgets beside PyTorch's",
        f"{cited(document['provenance'], 'experiments.bench.budgets')}. Costs are in flops, or in nanoseconds of the "
        "roofline of an A100: estimates, not measured times. Ours is the better of `lagrangian` and of `cpsat` with a "
        "time limit. The models have random weights (seed 0). Times are of the processor."
        + (f" They are from a later run: {cited(later, 'experiments.bench.budgets')}." if later else ""),
        bullets(f"{claim}: {cell(number)}" for claim, number in document["summary"].items()),
        _table(document["times"], tuple(document["times"][0])),
        *(
            section(name, _table([row for row in document["rows"] if row["model"] == name], _COLUMNS))
            for name in models
        ),
    )


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    headings = [column.replace("_", " ") for column in columns]
    return table(headings, [[row[column] for column in columns] for row in rows])


if __name__ == "__main__":
    typer.run(main)
