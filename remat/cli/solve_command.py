"""Finds the best plan of a graph, and prints its proof; or writes the problem to a file: `remat solve`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import remat
from remat.answer.dimacs_file import write_dimacs
from remat.answer.option_text import label, option_text
from remat.answer.plan_facts import PlanFacts
from remat.answer.solution import Solution
from remat.cli.options import GraphFile, NewPlanFile, Question, TimeLimit
from remat.cli.output import Answer, bold, picked, table, waiting, written
from remat.facts.graph import Graph
from remat.facts.json_file import write_document
from remat.predict.memory.memory_export import stated_memory
from remat.problem.costmodel import CostModel
from remat.problem.mps_file import write_mps
from remat.problem.problem import Problem
from remat.problem.problem_file import problem_document
from remat.views.compare import warm_up
from remat.words import counted, human_bytes, human_price, human_seconds, spoken_gap

# Suffix of the file of a problem -> its format; all others are JSON.
_FORMATS = {".mps": "mps", ".max": "dimacs", ".dimacs": "dimacs"}


_PROBLEM = """Write the problem to this file, for other solvers, and solve nothing: an integer program (.mps), a maximum
flow (.max), or plain numbers (.json, .json.gz)."""


def solve(
    graph: GraphFile,
    question: Question,
    time_limit: TimeLimit = None,
    output: NewPlanFile = None,
    problem_file: Annotated[Path | None, typer.Option("--problem", help=_PROBLEM)] = None,
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many saved activations to list, the largest first.")
    ] = 10,
) -> Answer:
    """Find the best plan of a graph, and prove it.

    \b
      remat solve gpt2.json.gz -o plan.json
      remat solve gpt2.json.gz -O mode=aggressive
      remat solve gpt2.json.gz -s pulp --time-limit 60
      remat solve gpt2.json.gz -s networkx -S flow_func=dinitz
      remat solve gpt2.json.gz -m memory-budget -O budget=8GB
      remat solve gpt2.json.gz -m memory-budget:budget=0.5,of=peak
      remat solve gpt2.json.gz -m memory-budget:budget=0.5 --problem half.mps
    """
    model, chosen = question.model(), question.chosen_solver()
    values = Graph.load(graph)
    if problem_file is not None:
        return _write_problem(graph, values, model, problem_file)
    warm_up(chosen)
    start = time.perf_counter()
    problem = model.pose_without_peak(values)
    pose_time_s = time.perf_counter() - start
    with waiting("solving", ends_early=model.limits_memory) as say:  # a minimum cut has no best so far
        solution = remat.choose(
            values,
            model,
            chosen,
            time_limit_s=time_limit,
            progress=lambda count, last: say(f"{count} plans, the last with a peak of {human_bytes(last[0])}"),
        )
    assert solution.plan is not None  # choose() raises where there is none
    if output is not None:
        solution.plan.save(output)
    facts = PlanFacts.of(values, solution.plan)
    document = {
        "graph": str(graph),
        "values": len(values),
        "cost_model": label(model),
        "unit": model.unit,
        "solver": label(chosen) if chosen else solution.solver,
        **picked(solution, "objective", "bound", "gap"),
        "termination": solution.termination.reason.name.lower(),
        "limit": solution.termination.limit,
        "certified": str(solution.certificate),
        "proven": solution.is_proven,
        "pose_time_s": pose_time_s,
        "solve_time_s": solution.solve_time_s,
        "digest": solution.plan.digest,
        **asdict(facts),
    }
    solver, grid = option_text(chosen) if chosen else solution.solver, Table.grid(padding=(0, 2))
    for title, text in _summary(facts, solution, model.unit, pose_time_s):
        grid.add_row(Text(title, style="dim"), Text(text))
    heading = bold(f"{graph.name}: {len(values):,} values, {option_text(model)}, {solver}")
    return document, (heading, grid, *_largest(values, problem, facts, model.unit, top), *written(output))


def _write_problem(graph: Path, values: Graph, model: CostModel, path: Path) -> Answer:
    problem, format = model.pose(values), _FORMATS.get(path.suffix, "json")
    if format == "mps":
        write_mps(problem, path)
    elif format == "dimacs":
        write_dimacs(problem, path)
    else:
        document = problem_document(
            problem,
            name=graph.name.removesuffix(".gz").removesuffix(".json"),
            unit=model.unit,
            remarks={"graph": graph.name, "cost_model": label(model)},
            memory=stated_memory(values),
        )
        write_document(document, path)
    return {"problem": str(path), "format": format, "values": len(problem), "unit": model.unit}, written(path)


def _summary(facts: PlanFacts, solution: Solution, unit: str, pose_time_s: float) -> Iterator[tuple[str, str]]:
    yield "objective", human_price(solution.objective or 0, unit)
    bound = "unknown" if solution.bound is None else human_price(solution.bound, unit)
    yield "bound", bound + (f", {spoken_gap(solution.gap, before='gap ')}" if solution.gap else "")
    ended = "proven optimal" if solution.is_proven else solution.termination.reason.name.lower()
    yield "proof", ended + ("" if solution.certificate is None else f" ({solution.certificate})")
    if solution.termination.limit is not None:
        yield "ended by", {"time": "the time limit", "interrupt": "Ctrl-C"}.get(solution.termination.limit, "a limit")
    saved = f"{counted(len(facts.saved_activations), 'activation')}, {human_bytes(facts.saved_bytes)}"
    inputs = f"; and {counted(len(facts.saved_inputs), 'input')}, alive anyway" if facts.saved_inputs else ""
    yield "saved", saved + inputs
    if facts.offloaded:
        hosted = counted(len(facts.offloaded), "activation")
        yield "offloaded", f"{hosted}, {human_bytes(facts.offloaded_bytes)} on the host"
    views = f", and {counted(len(facts.recomputed_views), 'view')}" if facts.recomputed_views else ""
    yield "recomputed", f"{counted(len(facts.recomputed_ops), 'operator')}{views}"
    yield "time", f"posed in {human_seconds(pose_time_s)}, solved in {human_seconds(solution.solve_time_s)}"


def _largest(graph: Graph, problem: Problem, facts: PlanFacts, unit: str, top: int) -> Iterator[object]:
    positions = [problem.index[name] for name in facts.saved_activations]
    order = sorted(positions, key=lambda v: -int(problem.save_bytes[v]))
    priced = bool(problem.save_cost[positions].any())  # no column if saving is free
    # A place and an operator do not both fit into 80 columns, and the name mostly tells the operator.
    about = "from" if any(problem.places) else "operator"
    if order and top > 0:
        yield ""
        yield table(
            {
                "saved activation": problem.names[v],
                about: problem.places[v] if about == "from" else graph.ops[graph.index[problem.names[v]]],
                "memory": human_bytes(int(problem.save_bytes[v])),
                **({"price": human_price(int(problem.save_cost[v]), unit)} if priced else {}),
            }
            for v in order[:top]
        )
    if len(order) > top > 0:
        yield Text(f"... and {len(order) - top} smaller ones (--top {len(order)} shows all)", style="dim")
