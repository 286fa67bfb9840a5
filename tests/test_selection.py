"""Choosing a solver or a cost model: by name, from entry points, or an instance of your own."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from helpers import SOLVERS, each

import costmodels
import remat
import remat.predict.time as estimators
import solvers
from remat import CostModel, InvalidOption, NotInstalled, Problem, RematError, Solution, UnsupportedProblem
from remat.answer.registry import costmodel_class, find_costmodel, find_solver, solver_class, solver_names
from remat.errors import InvalidProblem, UnknownName
from remat.plugin import Estimator, Solver, find_estimator
from solvers import Exhaustive

SMALL = Problem.of([3], needed=[0])


@dataclass(frozen=True)
class Mine(Exhaustive):
    name: ClassVar[str] = "mine"


@dataclass(frozen=True)
class NeedsNonsense(Solver):
    name: ClassVar[str] = "nonsense"
    requires: ClassVar[tuple[str, ...]] = ("no_such_package",)

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        raise AssertionError("must not be called without its package")


@pytest.fixture
def registered() -> Iterator[type[Solver]]:
    yield remat.plugin.register(Mine)
    remat.plugin.unregister("mine")


def test_by_default() -> None:
    assert remat.solve(SMALL).solver == remat.plugin.DEFAULT_SOLVER == "ortools"


@each(SOLVERS)
def test_by_name_or_by_instance(solver: Solver) -> None:
    assert remat.solve(SMALL, solver.name).plan == remat.solve(SMALL, solver).plan
    assert find_solver(solver.name) == solver
    assert solver_class(solver.name) is type(solver)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ortool", "no solver is named 'ortool'; did you mean 'ortools'\\? There are: cpsat, exhaustive, "),
        ("gurobi", "no solver is named 'gurobi'; there are: cpsat"),
        ("", "no solver is named ''; there are"),
    ],
)
def test_an_unknown_solver_is_an_error_that_helps(name: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        remat.solve(SMALL, name)


def test_a_missing_package_of_a_stranger_is_named() -> None:
    assert NeedsNonsense.missing() == ("no_such_package",)
    with pytest.raises(NotInstalled, match=r"solver 'nonsense' needs no_such_package: pip install no_such_package \("):
        remat.solve(SMALL, NeedsNonsense())


@each([solver for solver in SOLVERS if solver.requires])
def test_a_backend_that_is_not_installed(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat.answer.solver.find_spec", lambda package: None)
    package = solver.requires[0]
    remedy = package if package == "networkx" else rf"'.\[{package}\]'"  # networkx always comes along
    message = f"solver '{solver.name}' needs {package}: pip install {remedy}"
    with pytest.raises(NotInstalled, match=message):
        remat.solve(SMALL, solver)


@each([solver for solver in SOLVERS if solver.max_values is not None])
def test_more_values_than_a_solver_takes(solver: Solver) -> None:
    values = solver.max_values + 1
    with pytest.raises(UnsupportedProblem, match=f"takes up to {solver.max_values} values, got {values}"):
        remat.solve(Problem.of([1] * values), solver)
    assert remat.solve(Problem.of([1] * solver.max_values), solver).objective == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: solvers.NetworkX(flow_func="magic"), "NetworkX.flow_func must be one of preflow_push, .*got 'magic'"),
        (lambda: solvers.CPSAT(workers=0), "CPSAT.workers must be 1 to 10,000 threads, got 0"),
        (lambda: solvers.CPSAT(bound_first=1), "CPSAT.bound_first must be true or false, got 1"),
        (lambda: solvers.Portfolio(seconds=-1), "Portfolio.seconds must be a number from 0 on, got -1"),
        (lambda: solvers.Portfolio(tolerance="1%"), "Portfolio.tolerance must be a number from 0 on, got '1%'"),
        (lambda: solvers.SciPy(method="magic"), "SciPy.method must be one of dinic, edmonds_karp, got 'magic'"),
        (lambda: costmodels.ByteTraffic(mode="bold"), "ByteTraffic.mode must be one of conservative, .*got 'bold'"),
        (
            lambda: costmodels.MultiRead(mode="fast"),
            r"MultiRead\.mode must be one of conservative, aggressive, got 'fast'",
        ),
        (
            lambda: costmodels.MultiRead(rules={"randon": True}),
            r"MultiRead\.rules: no rule is named 'randon'; there are: r",
        ),
        (lambda: costmodels.ByteTraffic(rules={"luck": True}), "no rule is named 'luck'; there are: random, "),
    ],
)
def test_options_are_checked_when_they_are_set(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options()


def test_register_and_unregister(registered: type[Solver]) -> None:
    assert "mine" in solver_names()
    assert remat.solve(SMALL, "mine").solver == "mine"
    remat.plugin.unregister("mine")
    assert "mine" not in solver_names()
    remat.plugin.register(registered)


@pytest.mark.parametrize("name", ["mine", "ortools"])
def test_a_taken_name_is_refused(registered: type[Solver], name: str) -> None:
    other = dataclass(frozen=True)(type("Other", (Exhaustive,), {"name": name}))
    with pytest.raises(RematError, match=rf"the name '{name}' is taken"):
        remat.plugin.register(other)
    assert remat.plugin.register(registered) is registered, "a cell of a notebook can run again"


def test_an_unfinished_solver_is_refused() -> None:
    with pytest.raises(RematError, match="Unfinished must have a `name` and implement every abstract method"):
        remat.plugin.register(type("Unfinished", (Solver,), {"name": "unfinished"}))


def test_something_else_in_the_place_of_a_plug_in_or_a_problem_is_an_error_that_helps() -> None:
    with pytest.raises(InvalidOption, match=r"solver must be a name or an instance of remat\.Solver, .*parentheses"):
        remat.solve(SMALL, Exhaustive)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"cost_model must be a name or an instance of remat\.CostModel, got 42"):
        find_costmodel(42)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblem, match=r"remat\.Problem, got Graph; .*cost_model\.pose"):
        remat.solve(remat.GraphBuilder().build())  # type: ignore[arg-type]


def test_only_what_was_registered_can_be_unregistered() -> None:
    with pytest.raises(UnknownName, match=r"'ortools' was not added by remat\.plugin\.register"):
        remat.plugin.unregister("ortools")


@pytest.mark.parametrize("plugin", [int, Mine(), "ortools"], ids=repr)
def test_only_classes_of_solvers_and_cost_models_can_be_registered(plugin: Any) -> None:
    with pytest.raises(RematError, match=r"takes a subclass of Solver, CostModel or Estimator of remat.plugin, got "):
        remat.plugin.register(plugin)


def test_an_installed_package_adds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with an entry point and a module, as pip would lay them out."""
    (tmp_path / "stranger.py").write_text(
        "from solvers import Exhaustive\n\n\nclass Stranger(Exhaustive):\n    name = 'stranger'\n"
    )
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[remat.solvers]\nstranger = stranger:Stranger\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "stranger" in solver_names()
    assert "stranger" not in sys.modules, "listing must not import"
    assert remat.solve(SMALL, "stranger").solver == "stranger"


def defined_in(package: ModuleType, base: type) -> set[type]:
    """Every concrete subclass of `base` that is written in a module of the package."""
    modules = [
        importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    ]
    classes = {thing for module in modules for thing in vars(module).values() if isinstance(thing, type)}
    ours = {thing for thing in classes if thing.__module__.startswith(f"{package.__name__}.")}
    return {thing for thing in ours if issubclass(thing, base) and not isabstract(thing)}


@pytest.mark.parametrize(
    ("package", "base", "find"),
    [
        (solvers, Solver, solver_class),
        (costmodels, CostModel, costmodel_class),
        (estimators, Estimator, lambda name: type(find_estimator(name))),
    ],
)
def test_every_plug_in_of_the_folder_is_registered_under_its_name(package: ModuleType, base: type, find: Any) -> None:
    found = defined_in(package, base)
    assert len(found) >= 3
    assert all(find(plugin.name) is plugin for plugin in found)
