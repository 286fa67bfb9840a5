"""Solvers and cost models by name. Built-ins register exactly as a stranger's plug-in does.

A package adds its own through entry points in its `pyproject.toml`; nothing is imported until the
name is used:

    [project.entry-points."remat.solvers"]
    my-solver = "my_package.my_module:MySolver"

A notebook calls `remat.register(MySolver)`.
"""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from remat.costmodel import CostModel
from remat.errors import RematError, UnknownName
from remat.solver import Solver

DEFAULT_SOLVER = "ortools"
DEFAULT_COST_MODEL = "byte-traffic"
"""Constants, never "the first one installed": the same call gives the same answer everywhere."""

_GROUPS: dict[type[Solver] | type[CostModel], str] = {Solver: "remat.solvers", CostModel: "remat.costmodels"}
_registered: dict[str, dict[str, type[Any]]] = {group: {} for group in _GROUPS.values()}

_Plugin = TypeVar("_Plugin", bound=type[Solver] | type[CostModel])


def register(plugin: _Plugin) -> _Plugin:
    """Registers a solver or cost model class under its `name`; usable as a decorator.

    Raises:
        RematError: the name is taken by another class. `unregister(name)` frees it.
    """
    group = _group_of(plugin)
    if plugin.name in solver_names() + costmodel_names():
        raise RematError(
            f"the name {plugin.name!r} is taken; choose another, or call remat.unregister({plugin.name!r})"
        )
    _registered[group][plugin.name] = plugin
    return plugin


def unregister(name: str) -> None:
    """Removes what `register` added; installed plug-ins stay."""
    for group in _registered.values():
        if group.pop(name, None) is not None:
            return
    raise UnknownName(f"{name!r} was not added by remat.register, so it cannot be removed")


def solver_names() -> list[str]:
    """Names of all solvers, installed or not."""
    return _names("remat.solvers")


def costmodel_names() -> list[str]:
    """Names of all cost models."""
    return _names("remat.costmodels")


def solver_class(name: str) -> type[Solver]:
    """The class registered under `name`; raises `UnknownName`, with the nearest match."""
    return _find("remat.solvers", "solver", name)


def costmodel_class(name: str) -> type[CostModel]:
    """The class registered under `name`; raises `UnknownName`, with the nearest match."""
    return _find("remat.costmodels", "cost model", name)


def find_solver(name: str) -> Solver:
    """The solver of this name with its default options."""
    return solver_class(name)()


def find_costmodel(name: str) -> CostModel:
    """The cost model of this name with its default options."""
    return costmodel_class(name)()


def _group_of(plugin: object) -> str:
    for base, group in _GROUPS.items():
        if isinstance(plugin, type) and issubclass(plugin, base):
            return group
    raise RematError(f"register() takes a class derived from remat.Solver or remat.CostModel, got {plugin!r}")


def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def _names(group: str) -> list[str]:
    return sorted({*_installed(group), *_registered[group]})


def _find(group: str, kind: str, name: str) -> Any:
    if name in _registered[group]:
        return _registered[group][name]
    installed = _installed(group)
    if name in installed:
        return installed[name].load()
    near = difflib.get_close_matches(name, _names(group), n=1)
    hint = f"did you mean {near[0]!r}? there" if near else "there"
    raise UnknownName(f"no {kind} is named {name!r}; {hint} are: {', '.join(_names(group))}")
