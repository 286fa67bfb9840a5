"""What a file is, by its content, and the section that it becomes. One reader a kind; the first that knows it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import remat.improve.frontier
from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_ESTIMATOR
from remat.errors import RematError
from remat.facts.graph import Graph
from remat.facts.graph_file import FORMAT
from remat.views.report import frontier_charts as frontiers
from remat.views.report import solver_rows
from remat.views.report.charts import figures
from remat.views.report.origins import on, strings
from remat.views.report.section import Part, Row, Section, Table
from remat.views.report.source import Source


@dataclass(frozen=True)
class Options:
    """How the frontier of a graph is found.

    Attributes:
        estimator: of recompute time.
        refine: how many budgets to solve between the ends.
    """

    estimator: str = DEFAULT_ESTIMATOR
    refine: int = 16


class Reader(NamedTuple):
    """One kind of file.

    Attributes:
        what: how an error message calls it.
        knows: whether a file's content is of this kind.
        read: its section.
    """

    what: str
    knows: Callable[[Any], bool]
    read: Callable[[Source, Options], Section]


def read(source: Source, options: Options) -> Section:
    """The section of a file.

    Raises:
        RematError: nobody knows what it is, or it is damaged.
    """
    for reader in READERS:
        if reader.knows(source.content):
            return reader.read(source, options)
    known = "; ".join(reader.what for reader in READERS)
    raise RematError(
        f"{source.path}: {_describe(source.content)}, which a report does not understand. It reads: {known}"
    )


def _describe(content: Any) -> str:
    if isinstance(content, dict):
        document = cast(dict[str, Any], content)
        keys = ", ".join(repr(key) for key in list(document)[:8]) or "no keys"
        return f"JSON with {keys}{', ...' if len(document) > 8 else ''}"
    if _is_rows(content):
        names = list(dict.fromkeys(key for row in content for key in row))
        return f"a table of {len(content)} rows with the columns {', '.join(map(str, names[:12])) or '(none)'}"
    return "neither JSON, CSV nor parquet" if content is None else f"JSON that is no object: {type(content).__name__}"


def _is_rows(content: Any) -> bool:
    """Whether it is a list of rows; an empty list is one of no rows."""
    return isinstance(content, list) and all(isinstance(row, dict) for row in cast(list[Any], content))


def _has(*keys: str) -> Callable[[Any], bool]:
    return lambda content: isinstance(content, dict) and set(keys) <= cast(dict[str, Any], content).keys()


def _is_graph(content: Any) -> bool:
    return _has("format")(content) and content["format"] == FORMAT


def _read_graph(source: Source, options: Options) -> Section:
    graph = Graph.load(source.path)
    curve = remat.improve.frontier.frontier(graph, estimator=options.estimator)
    if options.refine:
        curve = curve.refine(options.refine, DEFAULT_BUDGET_SOLVER)
    drawn = frontiers.Curve.of(curve, graph.meta.get("model", source.path.name), options.estimator)
    return frontiers.section(drawn, [strings(graph.meta)], f"A joint graph of {len(graph):,} values.")


def _is_frontier(content: Any) -> bool:
    return _has("points", "unit")(content) and _is_rows(content["points"])


def _read_frontier(source: Source, _: Options) -> Section:
    return frontiers.section(frontiers.Curve.from_document(source.content, str(source.path)))


def _is_comparison(content: Any) -> bool:
    return _is_rows(content) and solver_rows.is_comparison(content)


def _read_comparison(source: Source, _: Options) -> Section:
    rows: Sequence[Row] = source.content
    text = f"{len(rows):,} runs of {len({str(row['solver']) for row in rows})} solvers."
    return Section("Solver comparison", text, (_comparison(rows),), solver_rows.provenance(rows))


def _comparison(rows: Sequence[Row], title: str = "Solvers") -> Part:
    text = (
        f"An instance is solved by a plan within {solver_rows.WITHIN:.1%} of the best bound of any solver: a filled "
        "marker; an open one did not solve it, and one that was stopped stands at its time limit. A click on a name in "
        "the legend hides it, a double click shows it alone."
    )
    tables = (
        Table("Solvers, in short", solver_rows.summary(rows)),
        Table("All runs", [solver_rows.renamed(row) for row in rows]),
    )
    return Part(title, text, figures(rows), tables)


def _read_models(source: Source, _: Options) -> Section:
    """{"summary": {...}, "models": {name: {"provenance": {...}, "rows": [...], ...}}}, as `experiments.traffic_study.strategies_compared`."""
    document: dict[str, Any] = source.content
    models = {str(name): about for name, about in document["models"].items()}
    rows = [row for about in models.values() for row in about["rows"]]
    runs = [
        {"model": name, **_said(about["provenance"], _devices(about["rows"], about))} for name, about in models.items()
    ]
    rest = {key: value for key, value in document.items() if key != "models"}
    parts = (
        _part("rows", rows),
        *_parts(rest),
        *_failed({name: about.get("failed") for name, about in models.items()}),
    )
    return Section("Results", "", parts, tuple(runs))


def _failed(failed: Mapping[str, Any]) -> tuple[Part, ...]:
    """What failed, model by model; nothing if nothing did."""
    found = {
        name: cast(dict[str, Any], reasons) if isinstance(reasons, dict) else {"": reasons}
        for name, reasons in failed.items()
        if reasons
    }
    rows = [{"model": name, "what": who, "why": why} for name, all in found.items() for who, why in all.items()]
    return (Part("failed", tables=(Table("What failed", rows),)),) if rows else ()


def _has_models(content: Any) -> bool:
    if not _has("models")(content) or not isinstance(content["models"], dict):
        return False
    models = cast(dict[str, Any], content["models"]).values()
    return all(_has_provenance(about) and _has("rows")(about) and _is_rows(about["rows"]) for about in models)


def _are_rows(content: Any, *keys: str) -> bool:
    return all(_is_rows(content[key]) for key in keys)


def _has_runs(content: Any) -> bool:
    """{"runs": [provenance, ...], "rows": [...]}."""
    return _has("runs", "rows")(content) and not _has("provenance")(content) and _are_rows(content, "runs", "rows")


def _read_runs(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    rest = {key: value for key, value in document.items() if key != "runs"}
    several = len(document["runs"]) > 1
    runs = tuple(
        ({"run": str(number)} if several else {})
        | _said(run, _devices([row for row in document["rows"] if row.get("run") == number]))
        for number, run in enumerate(document["runs"])
    )
    return Section("Results", _published(document), _parts(rest), runs)


def _published(document: Mapping[str, Any]) -> str:
    """Of a table of `experiments.paper`: where the figures are that ours stand beside."""
    table = document.get("table")
    beside = f"{table}.md" if isinstance(table, str) and table else ""
    return f"What was measured. What was published is not in this file; {beside} shows both." if beside else ""


def _devices(rows: Sequence[Row], about: Mapping[str, Any] | None = None) -> set[str]:
    """What rows, or the object around them, say that they were measured on."""
    return {str(said["device"]) for said in (*rows, about or {}) if said.get("device")}


def _said(run: Mapping[str, Any], used: set[str]) -> dict[str, str]:
    """The provenance of a run, with what its rows were measured on."""
    facts = strings(run)
    return {**facts, **on(facts, used)}


def _has_provenance(content: Any) -> bool:
    return _has("provenance")(content) and isinstance(content["provenance"], dict)


def _read_results(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    rest = {key: value for key, value in document.items() if key != "provenance"}
    rows = [row for value in rest.values() if _is_rows(value) for row in value]
    return Section("Results", "", _parts(rest), (_said(document["provenance"], _devices(rows, rest)),))


def _parts(document: Mapping[str, Any], within: str = "") -> tuple[Part, ...]:
    """A part for each list of rows and each object; what is left, as one table. What is empty is left out."""
    parts: list[Part] = []
    facts: list[Row] = []
    for key, value in document.items():
        name = f"{within}{key}"
        if _is_rows(value) and value:
            parts.append(_part(name, value))
        elif isinstance(value, dict):
            inner = cast(dict[str, Any], value)
            if any(found and _is_rows(found) for found in inner.values()):
                parts += _parts(inner, f"{name}: ")
            elif inner:
                parts.append(Part(_title(name), tables=(_object(name, inner),)))
        elif value not in (None, [], ""):
            facts.append({"what": name, "value": value})
    return (*parts, *([Part("Settings", tables=(Table("Settings", facts),))] if facts else []))


def _part(key: str, rows: Sequence[Row]) -> Part:
    if solver_rows.is_comparison(rows):
        return _comparison(rows, _title(key))
    flat = _flat_rows(rows)
    return Part(_title(key), "", figures(flat), (Table(f"{_title(key)}: {len(rows):,} rows", flat),))


def _flat_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows whose objects became columns of their own; two that hold the same name keep theirs before it."""
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for key, value in row.items():
            for name in cast(dict[str, Any], value) if isinstance(value, dict) else (key,):
                homes[name].add(key)
    return [
        {
            name if name == key or len(homes[name]) == 1 else f"{key}: {name}": found
            for key, value in row.items()
            for name, found in (cast(dict[str, Any], value) if isinstance(value, dict) else {key: value}).items()
        }
        for row in rows
    ]


def _object(key: str, value: Mapping[str, Any]) -> Table:
    """An object as a table: of rows, if all it holds is objects."""
    if value and all(isinstance(part, dict) for part in value.values()):
        return Table(_title(key), [{"name": name, **part} for name, part in value.items()])
    return Table(_title(key), [{"what": name, "value": part} for name, part in _flat(value)])


def _flat(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of an object, and those of objects in it."""
    for name, part in value.items():
        if isinstance(part, dict) and part:
            yield from ((f"{name}: {inner}", found) for inner, found in cast(dict[str, Any], part).items())
        else:
            yield name, part


def _title(key: str) -> str:
    words = str(key).replace("_", " ")
    return words[:1].upper() + words[1:]


READERS: tuple[Reader, ...] = (
    Reader("graph files (`remat capture`, `remat corpus get`)", _is_graph, _read_graph),
    Reader("frontiers (`remat frontier --json`)", _is_frontier, _read_frontier),
    Reader(
        "solver comparisons (`remat compare --json`, or CSV or parquet with the columns instance, values, cost_model, "
        "solver, status, solve_s)",
        _is_comparison,
        _read_comparison,
    ),
    Reader(
        'results of experiments model by model ({"models": {name: {"provenance", "rows"}}})', _has_models, _read_models
    ),
    Reader('results of experiments ({"provenance": {...}, ...})', _has_provenance, _read_results),
    Reader('results of several runs ({"runs": [...], "rows": [...]})', _has_runs, _read_runs),
)
"""The kinds that a report understands."""
