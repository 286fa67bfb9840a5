"""The commands that list what there is to choose from: solvers, cost models, estimators."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from remat.answer.registry import (
    costmodel_class,
    costmodel_names,
    estimator_class,
    estimator_names,
    solver_class,
    solver_names,
)
from remat.cli import tables

_Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def solvers(as_json: _Json = False) -> None:
    """List the solvers: what they promise, take and need."""
    found = [tables.describe_solver(solver_class(name)) for name in solver_names()]
    if as_json:
        return _print(found)
    rows = [
        {
            "solver": one["name"],
            "exact": "yes" if one["exact"] else "no",
            "takes": ", ".join(feature.replace("_", " ") for feature in one["features"]),
            "most values": "" if one["max_values"] is None else f"{one['max_values']:,}",
            "installed": "yes" if one["installed"] else f"no: needs {', '.join(one['requires'])}",
            "options": tables.option_words(one["options"]),
            "": one["doc"],
        }
        for one in found
    ]
    return tables.console().print(tables.table(rows))


def costmodels(as_json: _Json = False) -> None:
    """List the cost models, with their options and rules."""
    found: list[dict[str, Any]] = []
    for name in costmodel_names():
        described = tables.describe(costmodel_class(name))
        complete = all(option["required"] is False for option in described["options"].values())
        rules = tables.describe_rules(costmodel_class(name)()) if complete else []
        unit: Any = costmodel_class(name).unit  # a property, where an option decides
        found.append(described | {"unit": unit if isinstance(unit, str) else "the estimator's", "rules": rules})
    if as_json:
        return _print(found)
    out = tables.console()
    keys = ("name", "unit", "options", "doc")
    words = [one | {"options": tables.option_words(one["options"])} for one in found]
    out.print(tables.table([{"cost model" if k == "name" else k: one[k] for k in keys} for one in words]))
    for one in found:
        if one["rules"]:
            out.print(f"\nRules of {one['name']}, as by default: what is not recomputed", style="bold")
            out.print(tables.table(one["rules"]))
    return None


def estimators(as_json: _Json = False) -> None:
    """List the estimators of recompute time, with their options."""
    found: list[dict[str, Any]] = [
        tables.describe(estimator_class(name)) | {"unit": estimator_class(name).unit} for name in estimator_names()
    ]
    if as_json:
        return _print(found)
    rows = [
        {"estimator": one["name"], "unit": one["unit"], "options": tables.option_words(one["options"]), "": one["doc"]}
        for one in found
    ]
    return tables.console().print(tables.table(rows))


def _print(found: list[dict[str, Any]]) -> None:
    typer.echo(json.dumps(found, indent=1, default=str))
