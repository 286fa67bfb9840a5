"""Lists the solvers, the cost models and the estimators: `remat plugins`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.text import Text

from remat.answer import registry
from remat.answer.option_text import default_of, options_of
from remat.answer.solver import Solver
from remat.cli.output import Answer, bold, picked, table
from remat.predict.time.known_devices import ALIASES, HERE, KNOWN
from remat.problem.costmodel import CostModel


class Kind(StrEnum):
    """Lists the kinds of plug-ins."""

    SOLVERS = "solvers"
    COSTMODELS = "costmodels"
    ESTIMATORS = "estimators"


def plugins(kind: Annotated[Kind | None, typer.Argument(help="List only these.")] = None) -> Answer:
    """List the solvers, cost models and estimators: what they promise, their options, and what they need.

    \b
      remat plugins
      remat plugins solvers
    """
    described = {one: _described(one) for one in ([kind] if kind else Kind)}
    if kind is not None:
        return described[kind], _lines(kind, described[kind])
    parts = (thing for one in Kind for thing in (bold(f"{one.upper()}\n"), *_lines(one, described[one]), ""))
    return {one.value: entries for one, entries in described.items()}, parts


def _described(kind: Kind) -> list[dict[str, Any]]:
    if kind is Kind.SOLVERS:
        return [_described_solver(registry.solver_class(name)) for name in registry.solver_names()]
    if kind is Kind.ESTIMATORS:
        return [_plugin(one) | {"unit": one.unit} for one in map(registry.estimator_class, registry.estimator_names())]
    return [_described_cost_model(registry.costmodel_class(name)) for name in registry.costmodel_names()]


def _lines(kind: Kind, entries: list[dict[str, Any]]) -> Iterator[object]:
    rows = [_solver_row(one) if kind is Kind.SOLVERS else {"name": one["name"], "unit": one["unit"]} for one in entries]
    yield table(rows, "name")
    for one in entries:
        yield Text.assemble("\n", (one["name"], "bold"), f": {one['doc']}")
        for name, option in one["options"].items():
            default = "VALUE" if option["required"] else option["default"]
            text = default if isinstance(default, str) else json.dumps(default, default=str)
            yield Text(f"  {name}={option['choices'] or text}")
    for one in entries:
        if one.get("rules"):
            yield bold(f"\nRules of {one['name']}, as by default: what is not recomputed")
            yield table(one["rules"])
    if kind is Kind.ESTIMATORS:
        yield Text(f"\ndevices: {', '.join([*KNOWN, *ALIASES, HERE])} (remat device --list), or a file")


def _solver_row(one: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": one["name"],
        "exact": "yes" if one["exact"] else "no",
        "takes": ", ".join(feature.replace("_", " ") for feature in one["features"]),
        "most values": "" if one["max_values"] is None else f"{one['max_values']:,}",
        "installed": "yes" if one["installed"] else f"no: needs {', '.join(one['requires'])}",
    }


def _described_cost_model(model: type[CostModel]) -> dict[str, Any]:
    described = _plugin(model)
    complete = not any(option["required"] for option in described["options"].values())
    active: Iterable[Any] = getattr(model(), "active_rules", ()) if complete else ()
    rules = [{key: str(getattr(rule, key, "")) for key in ("name", "reason", "source")} for rule in active]
    return described | {"unit": _unit(model), "rules": rules}


# If an option decides, the unit of the defaults, or that of the estimator.
def _unit(model: type[CostModel]) -> str:
    unit: Any = model.unit
    if isinstance(unit, str):
        return unit
    return "the estimator's" if "estimator" in options_of(model) else model().unit


def _described_solver(solver: type[Solver]) -> dict[str, Any]:
    return _plugin(solver) | {
        "exact": solver.exact,
        "features": sorted(feature.name.lower() for feature in solver.features),
        **picked(solver, "max_values", "largest_capacity"),
        "requires": list(solver.requires),
        "installed": not solver.missing(),
    }


def _plugin(plugin: type[Any]) -> dict[str, Any]:
    try:
        hints = get_type_hints(plugin)
    except NameError:  # a plug-in that imports its types for type checkers only
        hints = {}
    options = {name: _option(option, hints.get(name)) for name, option in options_of(plugin).items()}
    doc = (inspect.getdoc(plugin) or "").partition("\n\n")[0]
    return {"name": plugin.name, "doc": " ".join(doc.split()), "options": options}


def _option(option: Field[Any], hint: Any) -> dict[str, Any]:
    default = default_of(option)
    choices = "|".join(choice for choice in get_args(hint) if isinstance(choice, str))
    required = default is MISSING
    return {"default": None if required else default, "required": required, "choices": choices}
