"""Chooses who reads a file of a report: the first reader that knows its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import remat.improve.frontier
from remat.answer.registry import DEFAULT_ESTIMATOR, QUICK_BUDGET_SOLVER
from remat.errors import RematError
from remat.facts.graph import Graph
from remat.facts.graph_file import FORMAT
from remat.views.report import frontier_charts, results, solver_charts, solver_rows
from remat.views.report.content import described, has, is_rows
from remat.views.report.origins import strings
from remat.views.report.section import Row, Section
from remat.views.report.source import Source


@dataclass(frozen=True)
class Options:
    """Says how the frontier of a graph is found.

    Attributes:
        estimator: what prices recomputing.
        refine: how many budgets are solved between the ends of the frontier.
    """

    estimator: str = DEFAULT_ESTIMATOR
    refine: int = 16


class Reader(NamedTuple):
    """Reads one kind of file that a report understands.

    Attributes:
        what: what an error message calls the kind.
        knows: tells whether a file's content is of this kind.
        read: makes the section of such a file.
    """

    what: str
    knows: Callable[[Any], bool]
    read: Callable[[Source, Options], Section]


def read(source: Source, options: Options, further: Sequence[Reader] = ()) -> Section:
    """Makes the section of a file.

    Args:
        source: the file.
        options: what a frontier is found with.
        further: readers that are asked before the library's own.

    Raises:
        RematError: no reader knows what it is, or it is damaged.
    """
    readers = (*further, *READERS)
    for reader in readers:
        if reader.knows(source.content):
            return reader.read(source, options)
    known = "; ".join(reader.what for reader in readers)
    raise RematError(
        f"{source.path}: {described(source.content)}, which a report does not understand. It reads: {known}"
    )


def _is_graph(content: Any) -> bool:
    return has(content, "format") and content["format"] == FORMAT


def _read_graph(source: Source, options: Options) -> Section:
    graph = Graph.load(source.path)
    curve = remat.improve.frontier.frontier(graph, estimator=options.estimator)
    if options.refine:
        curve = curve.refine(options.refine, QUICK_BUDGET_SOLVER)
    drawn = frontier_charts.Curve.of(curve, graph.meta.get("model", source.path.name), options.estimator)
    return frontier_charts.section(drawn, [strings(graph.meta)], f"A joint graph of {len(graph):,} values.")


def _is_frontier(content: Any) -> bool:
    return has(content, "points", "unit") and is_rows(content["points"])


def _read_frontier(source: Source, _: Options) -> Section:
    return frontier_charts.section(frontier_charts.Curve.from_document(source.content, str(source.path)))


def _is_comparison(content: Any) -> bool:
    return is_rows(content) and solver_rows.is_comparison(content)


def _read_comparison(source: Source, _: Options) -> Section:
    rows: Sequence[Row] = source.content
    text = f"{len(rows):,} runs of {len({str(row['solver']) for row in rows})} solvers."
    return Section("Solver comparison", text, (solver_charts.part(rows),), solver_rows.provenance(rows))


def _is_results(content: Any) -> bool:
    return has(content, "provenance") and isinstance(content["provenance"], dict)


def _read_results(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    rest = {key: value for key, value in document.items() if key != "provenance"}
    return Section("Results", "", results.parts(rest), (strings(document["provenance"]),))


READERS: tuple[Reader, ...] = (
    Reader("graph files (`remat capture`, `remat corpus get`)", _is_graph, _read_graph),
    Reader("frontiers (`remat frontier --json`)", _is_frontier, _read_frontier),
    Reader(
        "solver comparisons (`remat compare --json`, or CSV or parquet with the columns instance, values, cost_model, "
        "solver, status, solve_s)",
        _is_comparison,
        _read_comparison,
    ),
    Reader('other results with their provenance ({"provenance": {...}, ...})', _is_results, _read_results),
)
"""The kinds that every report understands."""
