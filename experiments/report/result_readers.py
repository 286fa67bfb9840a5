"""Reads the files that our experiments write, and makes sections of the report page of them, with our plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from experiments.report.charts import figures
from remat.views.report import Options, Reader
from remat.views.report.content import has, is_rows
from remat.views.report.origins import device, strings
from remat.views.report.results import part, parts
from remat.views.report.section import Part, Row, Section, Table
from remat.views.report.source import Source


def _has_models(content: Any) -> bool:
    """Tells whether it is {"models": {name: {"provenance": {...}, "rows": [...], ...}}, ...}."""
    if not has(content, "models") or not isinstance(content["models"], dict):
        return False
    models = cast(dict[str, Any], content["models"]).values()
    return all(_has_provenance(about) and has(about, "rows") and is_rows(about["rows"]) for about in models)


def _read_models(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    models = {str(name): about for name, about in document["models"].items()}
    rows = [row for about in models.values() for row in about["rows"]]
    runs = [{"model": name, **_origin(about["provenance"], about["rows"], about)} for name, about in models.items()]
    rest = {key: value for key, value in document.items() if key != "models"}
    failed = _failed({name: about.get("failed") for name, about in models.items()})
    return Section("Results", "", (part("rows", rows, figures), *parts(rest, figures), *failed), tuple(runs))


def _failed(failed: Mapping[str, Any]) -> tuple[Part, ...]:
    """Makes a part of what failed, model by model; no part if nothing did."""
    found = {
        name: cast(dict[str, Any], reasons) if isinstance(reasons, dict) else {"": reasons}
        for name, reasons in failed.items()
        if reasons
    }
    rows = [{"model": name, "what": who, "why": why} for name, all in found.items() for who, why in all.items()]
    return (Part("failed", tables=(Table("What failed", rows),)),) if rows else ()


def _has_runs(content: Any) -> bool:
    """Tells whether it is {"runs": [provenance, ...], "rows": [...], ...}."""
    lists = has(content, "runs", "rows") and is_rows(content["runs"]) and is_rows(content["rows"])
    return lists and not has(content, "provenance")


def _read_runs(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    rest = {key: value for key, value in document.items() if key != "runs"}
    several = len(document["runs"]) > 1
    runs = tuple(
        ({"run": str(number)} if several else {})
        | _origin(run, [row for row in document["rows"] if row.get("run") == number])
        for number, run in enumerate(document["runs"])
    )
    return Section("Results", _published(document), parts(rest, figures), runs)


def _published(document: Mapping[str, Any]) -> str:
    """Says of a table of `experiments.paper` where the published figures stand beside ours; "" of other files."""
    table = document.get("table")
    beside = f"{table}.md" if isinstance(table, str) and table else ""
    return f"What was measured. What was published is not in this file; {beside} shows both." if beside else ""


def _has_provenance(content: Any) -> bool:
    """Tells whether it is {"provenance": {...}, ...}."""
    return has(content, "provenance") and isinstance(content["provenance"], dict)


def _read_results(source: Source, _: Options) -> Section:
    document: dict[str, Any] = source.content
    rest = {key: value for key, value in document.items() if key != "provenance"}
    rows = [row for value in rest.values() if is_rows(value) for row in value]
    return Section("Results", "", parts(rest, figures), (_origin(document["provenance"], rows, rest),))


def _origin(run: Mapping[str, Any], rows: Iterable[Row], about: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Adds to the provenance of a run the device that its rows, or the object around them, say they ran on."""
    facts = dict(strings(run))
    used = {str(said["device"]).lower() for said in (*rows, about or {}) if said.get("device")}
    if used == {"cpu"}:  # on a machine that may have a GPU
        return {**facts, "device": "CPU"}
    return {**facts, "device": f"CPU and {device(facts) or 'a GPU'}"} if "cpu" in used else facts


READERS: Sequence[Reader] = (
    Reader('results model by model ({"models": {name: {"provenance", "rows"}}})', _has_models, _read_models),
    Reader('results of experiments ({"provenance": {...}, ...})', _has_provenance, _read_results),
    Reader('results of several runs ({"runs": [...], "rows": [...]})', _has_runs, _read_runs),
)
"""The readers of the kinds of files in `experiments/results`, beside what the library reads."""
