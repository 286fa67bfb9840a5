"""What the command line prints for people, with rich."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from remat.answer.option_text import options_of
from remat.answer.plan_facts import PlanFacts, default_of, label
from remat.answer.solution import Solution
from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.problem.costmodel import CostModel
from remat.problem.problem import Problem
from remat.words import human_bytes, human_price

if TYPE_CHECKING:
    from remat.views.comparison import Comparison

_COMPARED = (
    "graph",
    "cost model",
    "solver",
    "objective",
    "ended",
    "certified",
    "saved tensors",
    "saved memory",
    "recomputed ops",
    "solved in",
    "error",
)


def console() -> Console:
    """Standard output; lines are not cut to 80 columns where it is a file or a pipe."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=200)


def table(rows: Iterable[Mapping[str, object]]) -> Table:
    """A table of rows that share their keys, which are the headings."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for position, row in enumerate(rows):
        if position == 0:
            for heading in row:
                built.add_column(heading, overflow="fold")
        built.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row.values()))
    return built


def print_solution(
    graph: Graph, problem: Problem, solution: Solution, heading: str, unit: str, pose_time_s: float, top: int
) -> None:
    """Objective, proof, what is saved (the largest `top` of it) and how much is recomputed."""
    assert solution.plan is not None  # remat.solve raises where there is none
    facts = PlanFacts.of(graph, solution.plan)
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
    gap = f", gap {solution.gap:.2%}" if solution.gap else ""
    ended = "proven optimal" if solution.is_proven else solution.termination.reason.name.lower()
    evidence = "" if solution.certificate is None else f" ({solution.certificate})"
    saved = f"{_count(facts.saved_activations, 'activation')}, {human_bytes(facts.saved_bytes)}"
    if facts.saved_inputs:
        saved += f"; and {_count(facts.saved_inputs, 'input')}, alive anyway"
    views = f", and {_count(facts.recomputed_views, 'view')}" if facts.recomputed_views else ""
    return [
        ("objective", human_price(solution.objective or 0, unit)),
        ("bound", bound + gap),
        ("proof", ended + evidence),
        ("saved", saved),
        ("recomputed", f"{_count(facts.recomputed_ops, 'operator')}{views}"),
        ("time", f"posed in {1000 * pose_time_s:.2f} ms, solved in {1000 * solution.solve_time_s:.2f} ms"),
    ]


def _count(names: Sequence[str], what: str) -> str:
    return f"{len(names):,} {what}{'' if len(names) == 1 else 's'}"


def _largest(graph: Graph, problem: Problem, facts: PlanFacts, unit: str) -> list[dict[str, str]]:
    positions = [problem.index[name] for name in facts.saved_activations]
    order = sorted(positions, key=lambda v: -int(problem.save_bytes[v]))
    return [
        {
            "saved activation": problem.names[v],
            "operator": graph.ops[graph.index[problem.names[v]]],
            "memory": human_bytes(int(problem.save_bytes[v])),
            "price": human_price(int(problem.save_cost[v]), unit),
        }
        for v in order
    ]


def print_comparison(comparison: Comparison) -> None:
    """A row each; the best objective of each graph and cost model in bold."""
    rows = [
        {
            title: Text(row[title], style="bold" if best and title == "objective" else "")
            for title in _COMPARED
            if title in row
        }
        for row, best in zip(comparison.texts(), comparison.best(), strict=True)
    ]
    console().print(table(rows))


def describe(plugin: type[Any]) -> dict[str, Any]:
    """Name, one line of documentation, and options of a plug-in class, for JSON."""
    try:
        hints = get_type_hints(plugin)
    except NameError:  # a plug-in that imports its types for type checkers only
        hints = {}
    options = {name: _option(option, hints.get(name)) for name, option in options_of(plugin).items()}
    doc = (inspect.getdoc(plugin) or "").partition("\n\n")[0]
    return {"name": plugin.name, "doc": " ".join(doc.split()), "options": options}


def describe_solver(solver: type[Solver]) -> dict[str, Any]:
    """Likewise, with what a solver can take and needs."""
    return describe(solver) | {
        "exact": solver.exact,
        "features": sorted(feature.name.lower() for feature in solver.features),
        "max_values": solver.max_values,
        "largest_capacity": solver.largest_capacity,
        "requires": list(solver.requires),
        "installed": not solver.missing(),
    }


def describe_rules(model: object) -> list[dict[str, Any]]:
    """The rules of a cost model that has `active_rules`, as `ByteTraffic` does."""
    rules: Iterable[Any] = getattr(model, "active_rules", ())
    return [{key: str(getattr(rule, key, "")) for key in ("name", "reason", "source")} for rule in rules]


def option_words(options: Mapping[str, Mapping[str, Any]]) -> str:
    """`mode=conservative|aggressive, free_parameters=false`; defaults come first."""
    return "\n".join(f"{name}={option['choices'] or option['default']}" for name, option in options.items())


def _option(option: Field[Any], hint: Any) -> dict[str, Any]:
    default = default_of(option)
    choices = "|".join(str(choice) for choice in get_args(hint) if isinstance(choice, str))
    required = default is MISSING
    return {"default": None if required else default, "required": required, "choices": choices}


def solution_document(
    graph: Graph, cost_model: CostModel, solver: str, solution: Solution, pose_time_s: float
) -> dict[str, Any]:
    """A solution and the facts about its plan, for JSON."""
    assert solution.plan is not None  # remat.solve raises where there is none
    return {
        "values": len(graph),
        "cost_model": label(cost_model),
        "unit": cost_model.unit,
        "solver": solver,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "termination": solution.termination.reason.name.lower(),
        "limit": solution.termination.limit,
        "certified": str(solution.certificate),
        "proven": solution.is_proven,
        "pose_time_s": pose_time_s,
        "solve_time_s": solution.solve_time_s,
        "digest": solution.plan.digest,
        **asdict(PlanFacts.of(graph, solution.plan)),
    }
