"""What users type on the command line, as objects: plug-ins with options, graphs, plans, factories."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import typer

from remat.costmodel import CostModel
from remat.errors import CaptureError, RematError
from remat.graph import Graph
from remat.registry import costmodel_class, solver_class
from remat.report import default_of, near
from remat.solver import Solver

_Plugin = TypeVar("_Plugin", Solver, CostModel)


def solver_of(text: str, options: Sequence[str] = ()) -> Solver:
    """A solver from `NAME` or `NAME:key=value,key=value`, with further `key=value` options."""
    name, inline = _split(text)
    return _configured(solver_class(name), [*inline, *options])


def cost_model_of(text: str, options: Sequence[str] = ()) -> CostModel:
    """A cost model, likewise."""
    name, inline = _split(text)
    return _configured(costmodel_class(name), [*inline, *options])


def load_graph(path: Path) -> Graph:
    """Reads a graph, naming the file in every error."""
    if path.is_dir():
        raise RematError(f"{path}: a graph file is needed, got a directory")
    return Graph.load(path)


def load_factory(text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Calls `MODULE:FACTORY`, which returns (model, args) or (model, args, kwargs).

    The current directory is importable, as with `python -m`.
    """
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise typer.BadParameter(f"expected MODULE:FACTORY, such as my_package.models:gpt2, got {text!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CaptureError(f"cannot import {module_name!r}: {error}") from error
    if not hasattr(module, name):
        raise CaptureError(f"{module_name} has no {name!r}{near(name, dir(module))}")
    return _model_and_arguments(text, getattr(module, name)())


def _model_and_arguments(text: str, made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    parts = list(cast(tuple[Any, ...], made)) if type(made) is tuple else [made]
    if len(parts) == 2:
        parts.append({})
    if len(parts) == 3 and isinstance(parts[1], (tuple, list)) and isinstance(parts[2], dict):
        return parts[0], tuple(cast(Sequence[Any], parts[1])), cast(dict[str, Any], parts[2])
    got = ", ".join(type(part).__name__ for part in parts)
    raise CaptureError(
        f"{text} must return (model, tuple of args) or (model, tuple of args, dict of kwargs), got ({got})"
    )


def options_of(plugin: type[Any]) -> dict[str, Field[Any]]:
    """The options of a solver or cost model class: its dataclass fields."""
    return {option.name: option for option in fields(plugin) if option.init}


def _split(text: str) -> tuple[str, list[str]]:
    name, _, inline = text.partition(":")
    # A comma separates options only before the next `key=`, so that JSON values may hold some.
    return name, re.split(r",(?=\w+=)", inline) if inline else []


def _configured(plugin: type[_Plugin], pairs: Sequence[str]) -> _Plugin:
    known = options_of(plugin)
    chosen: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"expected KEY=VALUE, got {pair!r}")
        if key not in known:
            listed = ", ".join(known) or "none"
            raise typer.BadParameter(
                f"{plugin.name} has no option {key!r}{near(key, known) or '.'} There are: {listed}"
            )
        chosen[key] = _value(text)
        _check(f"{plugin.name}: {key}", chosen[key], known[key])
    missing = [key for key, option in known.items() if key not in chosen and default_of(option) is MISSING]
    if missing:
        raise typer.BadParameter(f"{plugin.name} needs a value for {', '.join(missing)}: {missing[0]}=VALUE")
    make: Callable[..., _Plugin] = plugin
    try:
        return make(**chosen)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: `true`, `0.5`, `{"a": 1}`, `8GB`, `aggressive`."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check(label: str, value: Any, option: Field[Any]) -> None:
    """Refuses text where the default says that something else is meant: "yes" is true, in Python."""
    default = default_of(option)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise typer.BadParameter(f"{label} must be true or false, got {value!r}")
    if isinstance(default, Mapping) and not isinstance(value, Mapping):
        raise typer.BadParameter(f'{label} must be a JSON object such as {{"name": false}}, got {value!r}')
