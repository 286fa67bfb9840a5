"""Lists the plug-ins: `remat solvers`, `remat costmodels`, `remat estimators`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field
from typing import Any, get_args, get_type_hints

from rich.text import Text

from remat.answer.option_text import default_of, options_of
from remat.answer.registry import (
    costmodel_class,
    costmodel_names,
    estimator_class,
    estimator_names,
    solver_class,
    solver_names,
)
from remat.answer.solver import Solver
from remat.cli.options import Json
from remat.cli.output import console, print_json, table
from remat.predict.time.known_devices import ALIASES, HERE, KNOWN
from remat.problem.costmodel import CostModel


def solvers(as_json: Json = False) -> None:
    """List the solvers: what they promise, take and need."""
    found = [_describe_solver(solver_class(name)) for name in solver_names()]
    if as_json:
        return print_json(found)
    rows = [
        {
            "solver": one["name"],
            "exact": "yes" if one["exact"] else "no",
            "takes": ", ".join(feature.replace("_", " ") for feature in one["features"]),
            "most values": "" if one["max_values"] is None else f"{one['max_values']:,}",
            "installed": "yes" if one["installed"] else f"no: needs {', '.join(one['requires'])}",
        }
        for one in found
    ]
    console().print(table(rows, "solver"))
    return _print_words(found)


def costmodels(as_json: Json = False) -> None:
    """List the cost models, with their options and rules."""
    found: list[dict[str, Any]] = []
    for name in costmodel_names():
        model = costmodel_class(name)
        described = _describe(model)
        complete = not any(option["required"] for option in described["options"].values())
        active: Iterable[Any] = getattr(model(), "active_rules", ()) if complete else ()
        rules = [{key: str(getattr(rule, key, "")) for key in ("name", "reason", "source")} for rule in active]
        found.append(described | {"unit": _unit(model), "rules": rules})
    if as_json:
        return print_json(found)
    out = console()
    out.print(table({"cost model": one["name"], "unit": one["unit"]} for one in found))
    _print_words(found)
    for one in found:
        if one["rules"]:
            out.print(f"\nRules of {one['name']}, as by default: what is not recomputed", style="bold")
            out.print(table(one["rules"]))
    return None


def _unit(model: type[CostModel]) -> str:
    """Says the unit of a cost model; where an option decides, that of its defaults, or of the estimator to name."""
    unit: Any = model.unit
    if isinstance(unit, str):
        return unit
    return "the estimator's" if "estimator" in options_of(model) else model().unit


def estimators(as_json: Json = False) -> None:
    """List the estimators of recompute time, with their options."""
    found: list[dict[str, Any]] = [
        _describe(one) | {"unit": one.unit} for one in map(estimator_class, estimator_names())
    ]
    if as_json:
        return print_json(found)
    console().print(table({"estimator": one["name"], "unit": one["unit"]} for one in found))
    _print_words(found)
    return console().print(f"\ndevices: {', '.join([*KNOWN, *ALIASES, HERE])} (remat device --list), or a file")


def _describe(plugin: type[Any]) -> dict[str, Any]:
    try:
        hints = get_type_hints(plugin)
    except NameError:  # a plug-in that imports its types for type checkers only
        hints = {}
    options = {name: _option(option, hints.get(name)) for name, option in options_of(plugin).items()}
    doc = (inspect.getdoc(plugin) or "").partition("\n\n")[0]
    return {"name": plugin.name, "doc": " ".join(doc.split()), "options": options}


def _describe_solver(solver: type[Solver]) -> dict[str, Any]:
    return _describe(solver) | {
        "exact": solver.exact,
        "features": sorted(feature.name.lower() for feature in solver.features),
        "max_values": solver.max_values,
        "largest_capacity": solver.largest_capacity,
        "requires": list(solver.requires),
        "installed": not solver.missing(),
    }


def _print_words(found: Iterable[Mapping[str, Any]]) -> None:
    """Prints what each plug-in does, and its options: `mode=conservative|aggressive`, or with the default."""
    out = console()
    for one in found:
        out.print(Text.assemble("\n", (one["name"], "bold"), f": {one['doc']}"))
        for name, option in one["options"].items():
            default = "VALUE" if option["required"] else option["default"]
            text = default if isinstance(default, str) else json.dumps(default, default=str)
            out.print(Text(f"  {name}={option['choices'] or text}"))


def _option(option: Field[Any], hint: Any) -> dict[str, Any]:
    default = default_of(option)
    choices = "|".join(choice for choice in get_args(hint) if isinstance(choice, str))
    required = default is MISSING
    return {"default": None if required else default, "required": required, "choices": choices}
