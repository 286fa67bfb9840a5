"""Compares graphs, cost models and solvers, with a row for each combination: `remat.compare`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from remat.answer.option_text import label
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_COST_MODEL, find_costmodel, find_solver, usable_solvers
from remat.answer.solver import Feature, Solver
from remat.errors import InvalidOption, NotInstalled, RematError, UnsupportedProblem
from remat.facts.given import listed
from remat.facts.graph import Graph, checked_graph
from remat.improve.choose import choose
from remat.improve.progress import Progress, check_progress, is_over
from remat.problem.costmodel import CostModel
from remat.problem.problem import Problem
from remat.proof.solve import solve

if TYPE_CHECKING:
    from remat.views.comparison import Comparison


def compare(
    graphs: Graph | Iterable[Graph] | Mapping[str, Graph],
    cost_models: str | CostModel | Iterable[str | CostModel] = (DEFAULT_COST_MODEL,),
    solvers: str | Solver | Iterable[str | Solver] | None = None,
    *,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Poses every graph under every cost model, and lets every solver solve it.

    Args:
        graphs: one, several, or by name; otherwise named after the model they come from.
        cost_models: names or instances.
        solvers: names or instances; every installed one when left out.
        time_limit_s: for each solve, of the solvers that take a time limit.
        progress: called with the number of rows that are done, and how many there will be.

    Returns:
        one row each, in the order given. A solver that refuses a problem or is not installed, and
        a problem without a plan, make a row that says why; other errors propagate.
    """
    from remat.views.comparison import Comparison  # imports pandas

    named = _named(graphs)
    models = [find_costmodel(model) for model in _several(cost_models, CostModel)]
    if solvers is None:
        solvers = usable_solvers()
    chosen = [find_solver(solver) for solver in _several(solvers, Solver)]
    for solver in chosen:
        warm_up(solver)
    check_progress(progress)
    rows: list[dict[str, Any]] = []
    for name, graph in named.items():
        for model in models:
            start = time.perf_counter()
            problem = None if model.limits_peak else model.pose(graph)
            about = {
                "graph": name,
                "values": len(graph),
                "cost_model": label(model),
                "unit": model.unit,
                "pose_time_s": time.perf_counter() - start,
            }
            for solver in chosen:
                if is_over():
                    break
                rows.append(about | _solved(graph, model, problem, solver, time_limit_s))
                if progress is not None:
                    progress(len(rows), (len(named) * len(models) * len(chosen),))
    return Comparison.of(rows)


def _solved(
    graph: Graph, model: CostModel, problem: Problem | None, solver: Solver, time_limit_s: float | None
) -> dict[str, Any]:
    """Returns the columns about one solver's answer."""
    row: dict[str, Any] = {"solver": label(solver), "exact": solver.exact}
    row |= {"proven": False, "certified": "", "error": ""}
    limit = time_limit_s if Feature.TIME_LIMIT in solver.features else None
    try:
        if problem is None:
            solution = choose(graph, model, solver, time_limit_s=limit, throw=False)
        else:
            solution = solve(problem, solver, time_limit_s=limit, throw=False)
    except (NotInstalled, UnsupportedProblem) as error:
        return row | {"termination": "refused", "error": str(error)}
    ended = solution.termination
    row |= {"termination": ended.reason.name.lower(), "bound": solution.bound}
    if solution.plan is None:
        return row | {"error": ended.detail or ended.reason.value}
    facts = PlanFacts.of(graph, solution.plan)
    return row | {
        "objective": solution.objective,
        "certified": "" if solution.certificate is None else str(solution.certificate),
        "proven": solution.is_proven,
        "solve_time_s": solution.solve_time_s,
        "saved_tensors": len(facts.saved_activations),
        "saved_bytes": facts.saved_bytes,
        "recomputed_ops": len(facts.recomputed_ops),
    }


def _several(given: Any, kind: type[Solver] | type[CostModel]) -> list[Any]:
    return [given] if isinstance(given, (str, kind)) else listed(f"each {kind.__name__}", given, InvalidOption)


def _named(graphs: Graph | Iterable[Graph] | Mapping[str, Graph]) -> dict[str, Graph]:
    if isinstance(graphs, Mapping):
        return {name: checked_graph(graph) for name, graph in cast(Mapping[str, Graph], graphs).items()}
    named: dict[str, Graph] = {}
    for position, graph in enumerate(
        [graphs] if isinstance(graphs, Graph) else listed("graphs", graphs, InvalidOption)
    ):
        name = checked_graph(graph).meta.get("model", f"graph{position}")
        named[name if name not in named else f"{name} ({position})"] = graph
    return named


def warm_up(solver: Solver | None) -> None:
    """Solves a tiny problem: backends are imported when first used, and no measured time should include that."""
    with suppress(RematError):
        solve(Problem.of([1, 1], edges=[(0, 1)], needed=[1], cannot_recompute={0: "an input"}), solver)
