"""Finds the best plan of a graph, and prints its proof: `remat solve`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import remat
from remat.answer.option_text import label
from remat.answer.plan_facts import PlanFacts
from remat.answer.solution import Solution
from remat.cli.inputs import cost_model_of, solver_if_named
from remat.cli.options import (
    CostModelName,
    GraphFile,
    Json,
    ModelOptions,
    NewPlanFile,
    SolverName,
    SolverOptions,
    TimeLimit,
)
from remat.cli.output import console, counted, print_json, table, waiting
from remat.cli.wording import spoken
from remat.facts.graph import Graph
from remat.problem.problem import Problem
from remat.views.compare import warm_up
from remat.words import human_bytes, human_price, spoken_gap


def solve(
    graph: GraphFile,
    cost_model: CostModelName = None,
    solver: SolverName = None,
    model_options: ModelOptions = None,
    solver_options: SolverOptions = None,
    time_limit: TimeLimit = None,
    output: NewPlanFile = None,
    top: Annotated[int, typer.Option(min=0, help="How many saved activations to list, the largest first.")] = 10,
    as_json: Json = False,
) -> None:
    """Find the best plan of a graph, and prove it.

    \b
      remat solve gpt2.json.gz -o plan.json
      remat solve gpt2.json.gz -O mode=aggressive -O 'rules={"used_far_apart": false}'
      remat solve gpt2.json.gz -s pulp --time-limit 60
      remat solve gpt2.json.gz -s networkx -S flow_func=dinitz
      remat solve gpt2.json.gz -m memory-budget -O budget=8GB -O estimator=roofline:device=h200
      remat solve gpt2.json.gz -m memory-budget:budget=0.5,of=peak
    """
    model, chosen = cost_model_of(cost_model, model_options), solver_if_named(solver, solver_options)
    values = Graph.load(graph)
    warm_up(chosen)
    start = time.perf_counter()
    problem = model.pose_without_peak(values)
    pose_time_s = time.perf_counter() - start
    with waiting("solving", quiet=as_json) as say:
        solution = remat.choose(
            values,
            model,
            chosen,
            time_limit_s=time_limit,
            progress=lambda count, last: say(f"{count} plans, the last with a peak of {human_bytes(last[0])}"),
        )
    assert solution.plan is not None  # choose() raises where there is none
    facts = PlanFacts.of(values, solution.plan)
    solver = label(chosen) if chosen else solution.solver
    if output is not None:
        solution.plan.save(output)
    if as_json:
        about = {"graph": str(graph), "values": len(values), "cost_model": label(model), "unit": model.unit}
        found = _document(solution, pose_time_s) | {"digest": solution.plan.digest}
        return print_json(about | {"solver": solver} | found | asdict(facts))
    heading = f"{graph.name}: {len(values):,} values, {spoken(label(model))}, {spoken(solver)}"
    return _print(values, problem, solution, facts, heading, model.unit, pose_time_s, top)


def _document(solution: Solution, pose_time_s: float) -> dict[str, Any]:
    return {
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "termination": solution.termination.reason.name.lower(),
        "limit": solution.termination.limit,
        "certified": str(solution.certificate),
        "proven": solution.is_proven,
        "pose_time_s": pose_time_s,
        "solve_time_s": solution.solve_time_s,
    }


def _print(
    graph: Graph,
    problem: Problem,
    solution: Solution,
    facts: PlanFacts,
    heading: str,
    unit: str,
    pose_time_s: float,
    top: int,
) -> None:
    out = console()
    out.print(Text(heading, style="bold"))
    grid = Table.grid(padding=(0, 2))
    for title, text in _summary(facts, solution, unit, pose_time_s):
        grid.add_row(Text(title, style="dim"), Text(text))
    out.print(grid)
    largest = _largest(graph, problem, facts, unit)
    if largest and top > 0:
        out.print()
        out.print(table(largest[:top]))
    if len(largest) > top > 0:
        out.print(Text(f"... and {len(largest) - top} smaller ones (--top {len(largest)} shows all)", style="dim"))


def _summary(facts: PlanFacts, solution: Solution, unit: str, pose_time_s: float) -> list[tuple[str, str]]:
    bound = "unknown" if solution.bound is None else human_price(solution.bound, unit)
    gap = f", {spoken_gap(solution.gap, before='gap ')}" if solution.gap else ""
    ended = "proven optimal" if solution.is_proven else solution.termination.reason.name.lower()
    evidence = "" if solution.certificate is None else f" ({solution.certificate})"
    saved = f"{counted(len(facts.saved_activations), 'activation')}, {human_bytes(facts.saved_bytes)}"
    if facts.saved_inputs:
        saved += f"; and {counted(len(facts.saved_inputs), 'input')}, alive anyway"
    hosted = f"{counted(len(facts.offloaded), 'activation')}, {human_bytes(facts.offloaded_bytes)} on the host"
    views = f", and {counted(len(facts.recomputed_views), 'view')}" if facts.recomputed_views else ""
    return [
        ("objective", human_price(solution.objective or 0, unit)),
        ("bound", bound + gap),
        ("proof", ended + evidence),
        ("saved", saved),
        *([("offloaded", hosted)] if facts.offloaded else []),
        ("recomputed", f"{counted(len(facts.recomputed_ops), 'operator')}{views}"),
        ("time", f"posed in {1000 * pose_time_s:.2f} ms, solved in {1000 * solution.solve_time_s:.2f} ms"),
    ]


def _largest(graph: Graph, problem: Problem, facts: PlanFacts, unit: str) -> list[dict[str, str]]:
    positions = [problem.index[name] for name in facts.saved_activations]
    order = sorted(positions, key=lambda v: -int(problem.save_bytes[v]))
    priced = bool(problem.save_cost[positions].any())  # where saving is free, a column of zeros says nothing
    known = any(problem.places)  # both do not fit into 80 columns, and a name tells most of the operator
    return [
        {
            "saved activation": problem.names[v],
            **({"from": problem.places[v]} if known else {"operator": graph.ops[graph.index[problem.names[v]]]}),
            "memory": human_bytes(int(problem.save_bytes[v])),
            **({"price": human_price(int(problem.save_cost[v]), unit)} if priced else {}),
        }
        for v in order
    ]
