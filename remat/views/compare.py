"""Compares graphs, cost models and solvers, with one row per combination: `remat.compare`."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remat.answer.option_text import option_text
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_COST_MODEL, find_costmodel, find_solver, usable_solvers
from remat.answer.solver import Solver
from remat.errors import InvalidOption, NotInstalled, RematError, UnsupportedProblem
from remat.facts.argument_checks import checked_list, checked_number, checked_path
from remat.facts.graph import Graph, checked_graph
from remat.facts.json_file import read_document, write_document
from remat.improve.choose import choose
from remat.improve.progress import Progress, check_progress, end_at_ctrl_c, is_over
from remat.problem.costmodel import CostModel
from remat.problem.features import Feature
from remat.problem.problem import Problem
from remat.proof.solve import solve

if TYPE_CHECKING:
    from remat.views.comparison import Comparison

_FORMAT = "remat.comparison"


def compare(
    graphs: Graph | Iterable[Graph] | Mapping[str, Graph],
    cost_models: str | CostModel | Iterable[str | CostModel] = (DEFAULT_COST_MODEL,),
    solvers: str | Solver | Iterable[str | Solver] | None = None,
    *,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    n_jobs: int = 1,
    path: str | Path | None = None,
) -> Comparison:
    """Poses every graph with every cost model, and solves it with every solver.

    Args:
        graphs: a graph, several graphs, or graphs by name. Without names, the graphs have the names of their models.
        cost_models: names or instances.
        solvers: names or instances; by default every installed one.
        time_limit_s: wall time in seconds of each solve, for solvers that support a time limit.
        progress: called with the number of finished rows, and the number of all rows.
        n_jobs: how many processes solve at once; each takes a graph under a cost model. They slow each other down.
        path: a file that keeps the finished rows, so that another call with the same file continues.

    Returns:
        one row for each combination, in the given order. A solver that refuses a problem or is not installed, and a
        problem without a plan, make a row with the reason; other errors propagate.

    Raises:
        InvalidOption: an argument is out of range; or the file is no comparison, or damaged.
    """
    from remat.views.comparison import Comparison  # imports pandas

    named = _named(graphs)
    models = [find_costmodel(model) for model in _several(cost_models, CostModel)]
    chosen = [find_solver(one) for one in _several(usable_solvers() if solvers is None else solvers, Solver)]
    check_progress(progress)
    n_jobs = checked_number("n_jobs", n_jobs, 1)
    cases = [_Case(name, graph, model, time_limit_s) for name, graph in named.items() for model in models]
    file = None if path is None else checked_path(path)
    rows = {} if file is None or not file.exists() else _finished_rows(file)
    open_cases = [(case, [one for one in chosen if case.key(one) not in rows]) for case in cases]
    for key, row in _solved_by(n_jobs, [(case, left) for case, left in open_cases if left]):
        rows[key] = row
        if file is not None:
            finished = {key: row for key, row in rows.items() if row.get("ended_by") != "interrupt"}
            write_document({"format": _FORMAT, "version": 1, "rows": finished}, file)
        if progress is not None:
            progress(sum(case.key(one) in rows for case in cases for one in chosen), (len(cases) * len(chosen),))
    return Comparison.of([rows[key] for case in cases for one in chosen if (key := case.key(one)) in rows])


@dataclass(frozen=True)
class _Case:
    name: str
    graph: Graph
    model: CostModel
    time_limit_s: float | None

    @cached_property
    def _digest(self) -> str:
        facts = (self.graph.signature, self.graph.flops.tolist(), dict(self.graph.meta))
        return hashlib.sha256(repr(facts).encode(errors="backslashreplace")).hexdigest()

    def key(self, solver: Solver) -> str:
        return json.dumps([self.name, self._digest, option_text(self.model), option_text(solver), self.time_limit_s])

    def rows(self, solvers: Sequence[Solver]) -> Iterator[tuple[str, dict[str, Any]]]:
        for solver in solvers:
            warm_up(solver)
        start = time.perf_counter()
        problem = None if self.model.limits_peak else self.model.pose(self.graph)
        limits = [one for one in self.model.peak_limits if type(one) is int]
        limits += [one.bytes for one in self.model.device_limits]
        about = {
            "graph": self.name,
            "instance": self.graph.meta.get("instance", ""),
            "values": len(self.graph),
            "cost_model": option_text(self.model),
            "unit": self.model.unit,
            "budget_bytes": min(limits, default=None) if problem is None else problem.budget_bytes,
            "pose_time_s": time.perf_counter() - start,
        }
        for solver in solvers:
            yield self.key(solver), about | _solved(self.graph, self.model, problem, solver, self.time_limit_s)


# Yields rows as they finish, until the search is over.
def _solved_by(n_jobs: int, cases: list[tuple[_Case, list[Solver]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    if n_jobs == 1:
        keyed_rows = (keyed for case, solvers in cases for keyed in case.rows(solvers))
        while not is_over() and (keyed := next(keyed_rows, None)) is not None:
            yield keyed
        return
    with ProcessPoolExecutor(n_jobs, initializer=end_at_ctrl_c) as pool:
        for done in as_completed([pool.submit(_listed_rows, *case) for case in cases]):
            yield from done.result()
            if is_over():
                return pool.shutdown(cancel_futures=True)


def _listed_rows(case: _Case, solvers: list[Solver]) -> list[tuple[str, dict[str, Any]]]:
    return list(case.rows(solvers))


def _finished_rows(path: Path) -> dict[str, dict[str, Any]]:
    what, remedy = "a file of comparisons", "name another one, or delete it to solve all again"
    rows: Any = read_document(path, _FORMAT, InvalidOption, file_kind=what, remedy=remedy).get("rows")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in cast(dict[str, Any], rows).values()):
        raise InvalidOption(f"{path}: not {what}; {remedy}")
    return {key: row for key, row in cast(dict[str, Any], rows).items() if row.get("termination") != "refused"}


def _solved(
    graph: Graph, model: CostModel, problem: Problem | None, solver: Solver, time_limit_s: float | None
) -> dict[str, Any]:
    row: dict[str, Any] = {"solver": option_text(solver), "exact": solver.exact}
    row |= {"proven": False, "certified": "", "error": "", "ended_by": None}
    limit = time_limit_s if Feature.TIME_LIMIT in solver.features else None
    try:
        if problem is None:
            solution = choose(graph, model, solver, time_limit_s=limit, throw=False)
        else:
            solution = solve(problem, solver, time_limit_s=limit, throw=False)
    except (NotInstalled, UnsupportedProblem) as error:
        return row | {"termination": "refused", "error": str(error)}
    ended = solution.termination
    row |= {"termination": ended.reason.name.lower(), "ended_by": ended.limit, "bound": solution.bound}
    if solution.plan is None:
        early = "Ctrl-C stopped it before it had a plan" if ended.limit == "interrupt" else ended.reason.value
        return row | {"error": ended.detail or early}
    facts = PlanFacts.of(graph, solution.plan)
    return row | {
        "objective": solution.objective,
        "gap": solution.gap,
        "certified": "" if solution.certificate is None else str(solution.certificate),
        "proven": solution.is_proven,
        "solve_time_s": solution.solve_time_s,
        "saved_tensors": len(facts.saved_activations),
        "saved_bytes": facts.saved_bytes,
        "recomputed_ops": len(facts.recomputed_ops),
    }


def _several(plugins: Any, kind: type[Solver] | type[CostModel]) -> list[Any]:
    one = isinstance(plugins, (str, kind))
    return [plugins] if one else checked_list(f"each {kind.__name__}", plugins, InvalidOption)


def _named(graphs: Graph | Iterable[Graph] | Mapping[str, Graph]) -> dict[str, Graph]:
    if isinstance(graphs, Mapping):
        return {name: checked_graph(graph) for name, graph in cast(Mapping[str, Graph], graphs).items()}
    named: dict[str, Graph] = {}
    for position, graph in enumerate(
        [graphs] if isinstance(graphs, Graph) else checked_list("graphs", graphs, InvalidOption)
    ):
        name = checked_graph(graph).meta.get("model", f"graph{position}")
        named[name if name not in named else f"{name} ({position})"] = graph
    return named


def warm_up(solver: Solver | None) -> None:
    """Solves a tiny problem, so that measured times do not include the import of the backend."""
    with suppress(RematError):
        solve(Problem.of([1, 1], edges=[(0, 1)], needed=[1], cannot_recompute={0: "an input"}), solver)
