"""Finds solvers, cost models and estimators by name. Built-ins register like other plug-ins.

A package registers its own through entry points in its `pyproject.toml`; nothing is imported until the name is used:

    [project.entry-points."remat.solvers"]
    my-solver = "my_package.my_module:MySolver"

A notebook calls `remat.plugin.register(MySolver)`.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import isabstract
from typing import Any, TypeVar

from remat.answer.option_text import from_options, split_options
from remat.answer.solver import Solver
from remat.errors import InvalidOption, NotInstalled, RematError, UnknownName
from remat.problem.costmodel import CostModel
from remat.problem.estimator import Estimator
from remat.words import near_of, pip_install

DEFAULT_SOLVER = "ortools"
DEFAULT_BUDGET_SOLVER = "portfolio"
QUICK_BUDGET_SOLVER = "lagrangian"
DEFAULT_COST_MODEL = "byte-traffic"
DEFAULT_STEP_MODEL = "byte-traffic:prices=pytorch"
DEFAULT_TIME_MODEL = "recompute-time"
FASTEST_STEP_MODEL = "step-time"
DEFAULT_BUDGET_MODEL = "memory-budget"
DEFAULT_PAIR_MODEL = "fusion-pairs"
DEFAULT_ESTIMATOR = "roofline"
"""Constants, not "the first one installed", so that a call gives the same answer everywhere.

Studies of a graph use the paper's prices, in bytes. Steps that run use PyTorch's prices, which lead to better kernels
(`costmodels.byte_traffic`). Searches that solve many budgets of one graph use the quick solver.
"""

FALLBACK_SOLVER = "networkx"
"""A flow solver that is always installed, and accepts prices of any size."""

FALLBACK_SOLVERS = ("scipy", FALLBACK_SOLVER)
"""The solvers to try, in this order, if the default one is not installed: they find the same plan, more slowly."""

TIED_SOLVERS = ("cpsat", "pulp")
"""The solvers that take tied values and a time limit; the first one that is installed is the default for them."""

_GROUPS: dict[type[Solver] | type[CostModel] | type[Estimator], str] = {
    Solver: "remat.solvers",
    CostModel: "remat.costmodels",
    Estimator: "remat.estimators",
}
_registered: dict[str, dict[str, type[Any]]] = {group: {} for group in _GROUPS.values()}
_loaded: dict[tuple[str, str], type[Any]] = {}
"""A cache: searching the metadata of all installed packages takes 5 ms, as long as solving a graph."""

_Base = TypeVar("_Base", Solver, CostModel, Estimator)
_Plugin = TypeVar("_Plugin", bound=type[Solver] | type[CostModel] | type[Estimator])


def register(plugin: _Plugin) -> _Plugin:
    """Registers a solver, cost model or estimator class under its `name`; usable as a decorator.

    Raises:
        RematError: the class is no complete solver, cost model or estimator, or another class has the name
            (`unregister(name)` frees it).
    """
    group = _group_of(plugin)
    registered = _registered[group].get(plugin.name)
    # A notebook cell that runs twice defines its class twice, which is no conflict.
    is_redefined = registered is not None and (registered.__module__, registered.__qualname__) == (
        plugin.__module__,
        plugin.__qualname__,
    )
    if plugin.name in solver_names() + costmodel_names() + estimator_names() and not is_redefined:
        raise RematError(
            f"the name {plugin.name!r} is taken; choose another, or call remat.plugin.unregister({plugin.name!r})"
        )
    _registered[group][plugin.name] = plugin
    return plugin


def unregister(name: str) -> None:
    """Removes a plug-in that `register` added; installed plug-ins stay."""
    for group in _registered.values():
        if group.pop(name, None) is not None:
            return
    raise UnknownName(f"{name!r} was not added by remat.plugin.register, so it cannot be removed")


def solver_names() -> list[str]:
    return _names("remat.solvers")


def costmodel_names() -> list[str]:
    return _names("remat.costmodels")


def estimator_names() -> list[str]:
    """Returns the names of all estimators of recompute time, sorted."""
    return _names("remat.estimators")


def solver_class(name: str) -> type[Solver]:
    return _find("remat.solvers", "solver", name)


def costmodel_class(name: str) -> type[CostModel]:
    return _find("remat.costmodels", "cost model", name)


def estimator_class(name: str) -> type[Estimator]:
    return _find("remat.estimators", "estimator", name)


@cache
def default_is_missing() -> bool:
    """Returns whether the default solver is not installed; warns about it once per process."""
    missing = solver_class(DEFAULT_SOLVER).missing()
    if missing:
        warnings.warn(
            f"{', '.join(missing)} is not installed, so {' or '.join(FALLBACK_SOLVERS)} finds minimum cuts: the same "
            f"plans and proofs, but more slowly. To change this: {pip_install(missing[0])}",
            stacklevel=2,
        )
    return bool(missing)


def usable_solvers() -> list[str]:
    return [name for name in solver_names() if _is_usable(name)]


def find_solver(solver: str | Solver) -> Solver:
    """Returns the solver of this name, with its default options; an instance is returned as it is."""
    return solver_class(solver)() if isinstance(solver, str) else _instance(solver, Solver, "solver")


def find_costmodel(cost_model: str | CostModel) -> CostModel:
    """Returns the cost model that a text names, with options after a colon; an instance is returned as it is.

    >>> find_costmodel("byte-traffic:mode=aggressive")
    ByteTraffic(mode='aggressive', rules={}, free_parameters=False, prices='paper')
    """
    if isinstance(cost_model, str):
        name, options = split_options(cost_model)
        cost_model = from_options(costmodel_class(name), options)
    return _instance(cost_model, CostModel, "cost_model")


def find_estimator(estimator: str | Estimator) -> Estimator:
    """Returns the estimator that a text names, with options after a colon; an instance is returned as it is.

    Raises:
        UnknownName: no estimator has this name; the message suggests the nearest one.
        InvalidOption: there is no such option, or the argument is neither text nor an estimator.

    >>> find_estimator("roofline:device=h200")
    Roofline(device='h200')
    """
    if isinstance(estimator, str):
        name, options = split_options(estimator)
        estimator = from_options(estimator_class(name), options)
    return _instance(estimator, Estimator, "estimator")


def _instance(candidate: object, base: type[_Base], argument: str) -> _Base:
    if isinstance(candidate, base):
        for attribute in ("name", "unit"):
            if attribute in base.__annotations__ and not hasattr(type(candidate), attribute):
                raise InvalidOption(
                    f"{argument} must have the class attribute {attribute!r} (see remat.{base.__name__}), but "
                    f"{type(candidate).__name__} has none"
                )
        return candidate
    hint = "; write it with parentheses" if isinstance(candidate, type) else ""
    raise InvalidOption(f"{argument} must be a name or an instance of remat.{base.__name__}, got {candidate!r}{hint}")


def _is_usable(solver: str) -> bool:
    try:
        return not solver_class(solver).missing()
    except NotInstalled:
        return False


def _group_of(plugin: object) -> str:
    for base, group in _GROUPS.items():
        if isinstance(plugin, type) and issubclass(plugin, base):
            if not isabstract(plugin) and isinstance(getattr(plugin, "name", None), str):
                return group
            raise RematError(f"{plugin.__name__} must have a `name` and implement every abstract method")
    raise RematError(f"register() takes a subclass of Solver, CostModel or Estimator of remat.plugin, got {plugin!r}")


def _installed(group: str) -> dict[str, EntryPoint]:
    by_name: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        # An editable install may be listed twice, with the same value; two packages may not claim one name.
        if by_name.setdefault(entry.name, entry).value != entry.value:
            raise RematError(
                f"two installed packages claim the name {entry.name!r} in {group}: {by_name[entry.name].value} and "
                f"{entry.value}; uninstall one"
            )
    return by_name


# Names the file that hides the package of a plug-in, if that is why its module is not found.
def _hidden(entry: EntryPoint, error: Exception) -> str:
    top = entry.module.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != entry.module or (spec := find_spec(top)) is None:
        return ""
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return f"; {place} hides the package {top!r} that it is in: rename it, or run Python elsewhere"


def _names(group: str) -> list[str]:
    return sorted({*_installed(group), *_registered[group]})


def _find(group: str, kind: str, name: str) -> Any:
    if name in _registered[group]:
        return _registered[group][name]
    if (group, name) in _loaded:
        return _loaded[group, name]
    installed = _installed(group)
    if name in installed:
        try:
            return _loaded.setdefault((group, name), installed[name].load())
        except (ImportError, AttributeError) as error:
            hidden = _hidden(installed[name], error)
            raise NotInstalled(
                f"the {kind} {name!r} ({installed[name].value}) cannot be imported: {error}{hidden}"
            ) from error
    if not installed:  # remat has plug-ins of every kind
        raise NotInstalled(
            f"the {kind} {name!r} is not found, because remat is imported from its source folder and is not installed: "
            f"run `pip install -e .` in that folder"
        )
    raise UnknownName(f"no {kind} is named {name!r}{near_of(name, _names(group))}")
