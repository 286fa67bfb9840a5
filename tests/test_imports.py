"""`import remat` is quick: it loads numpy, and no backend; and the core knows no plug-in by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import remat
from remat.answer.registry import costmodel_names, solver_names
from remat.plugin import estimator_names

BACKENDS = ("torch", "networkx", "ortools", "scipy", "pulp", "pandas", "matplotlib", "hypothesis", "typer", "rich")


def loaded_by(code: str) -> set[str]:
    """Those of `BACKENDS` that a new process has loaded after `code`."""
    report = f"{code}\nimport sys; print(*(name for name in {BACKENDS} if name in sys.modules))"
    command = [sys.executable, "-W", "ignore", "-c", report]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_loads_no_backend() -> None:
    names = "import remat.answer.registry as r; r.solver_names(); r.costmodel_names()"
    assert loaded_by(f"import remat, solvers, costmodels; remat.Problem.of([1]); remat.Plan((), ()); {names}") == set()


@pytest.mark.parametrize(
    ("solver", "backend"),
    [("cpsat", "ortools"), ("networkx", "networkx"), ("ortools", "ortools"), ("scipy", "scipy"), ("pulp", "pulp")],
)
def test_solving_loads_the_solver_s_own_backend(solver: str, backend: str) -> None:
    loaded = loaded_by(f"import remat; remat.solve(remat.Problem.of([2], needed=[0], recompute_cost=[1]), {solver!r})")
    assert backend in loaded
    assert not {"torch", "matplotlib", "hypothesis"} & loaded


def test_only_testing_loads_hypothesis() -> None:
    assert "hypothesis" in loaded_by("import remat.testing")


def test_an_unknown_attribute_is_an_attribute_error() -> None:

    with pytest.raises(AttributeError, match="module 'remat' has no attribute 'optimise'"):
        _ = remat.optimise


def test_names_that_are_loaded_when_first_used_are_those_that_type_checkers_see() -> None:

    pytest.importorskip("torch", reason="torch is not installed: names that need it are not there")
    source = Path(remat.__file__).read_text()
    checked = ast.parse(source[source.index("if TYPE_CHECKING:") : source.index("_LAZY")]).body[0]
    names = {alias.asname for line in ast.walk(checked) if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert names == set(remat._LAZY)
    assert [name for name in names if not callable(getattr(remat, name))] == []


def test_dir_lists_all_public_names_and_no_other() -> None:
    """Those that `remat/__init__.py` imports to make them public, in a new process, before any is used."""
    tree = ast.parse(Path(remat.__file__).read_text())
    imports = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    public = {alias.name for alias in imports if alias.asname == alias.name} - {"errors", "plugin"}
    assert {"capture", "compile", "forecast", "last_report", "SharedBudget", "largest_batch", "Graph"} <= public
    listed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import remat; print(*dir(remat))"], check=True, capture_output=True
    )
    assert {name for name in listed.stdout.decode().split() if not name.startswith("_")} == public
    assert all(hasattr(remat, name) for name in dir(remat))


def test_two_doors_of_which_the_first_is_small() -> None:
    """What users type has at most 45 names; what only authors of plug-ins type is behind the second door."""

    assert len([name for name in dir(remat) if not name.startswith("_")]) <= 45
    assert set(remat._MOVED) & set(dir(remat)) == set()


@pytest.mark.parametrize("name", ["Bans", "FlowSolver", "InvalidGraph", "unpriced", "unregister"])
def test_an_old_name_works_and_says_the_new_one(name: str) -> None:

    now = remat._MOVED[name]
    with pytest.warns(DeprecationWarning, match=rf"remat\.{name} is {now} now"):
        moved = getattr(remat, name)
    module, _, attribute = now.rpartition(".")
    assert moved is getattr(sys.modules[module], attribute)


def test_every_old_name_leads_somewhere() -> None:

    with warnings.catch_warnings(action="ignore"):
        assert [name for name in remat._MOVED if not hasattr(remat, name)] == []


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("selective_policy", "choose_regions"),
        *((name, "(choose|step_frontier)") for name in ("refine", "Refined", "traffic_frontier", "TrafficFrontier")),
    ],
)
def test_a_name_that_is_gone_says_what_to_use_instead(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*remat\.{instead}"):
        getattr(remat, name)


CORE = Path(remat.__file__).parent
NAMES = {*solver_names(), *costmodel_names(), *estimator_names()}
COLUMNS = {"flops"}
"""Also a column of `Graph`, and a unit."""

ENGLISH = {"exhaustive", "profile", "roofline"}
"""Words that a sentence may hold: they name a plug-in only where nothing but options follows."""

ALLOWED = {
    "answer/registry.py": NAMES,  # the defaults
    "cli/app.py": {"ortools", "pulp"},  # the examples of `remat --help`
    "predict/time/profile.py": {"profile"},  # the core's own estimators say what they are called
    "predict/time/roofline.py": {"roofline"},
}

_ALONE, _ANYWHERE = ("|".join(sorted(names)) for names in (ENGLISH, NAMES - COLUMNS - ENGLISH))
WORD = re.compile(rf"(?<![\w-])({_ANYWHERE})(?![\w-])|^({_ALONE})(?=:|$)")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each text in Python source that is no docstring."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def named(text: str) -> list[str]:
    return [match.group() for match in WORD.finditer(text)]


def test_no_plugin_is_known_by_name() -> None:
    found = [
        f"{path}:{line} {name}"
        for file in sorted(CORE.rglob("*.py"))
        for line, text in texts(file.read_text())
        for name in named(text)
        if name not in ALLOWED.get(path := file.relative_to(CORE).as_posix(), set())
    ]
    assert found == []


def test_a_name_is_found_in_the_middle_of_a_text_but_not_in_a_docstring() -> None:
    source = '"""Like pulp."""\ndef f():\n    """As ortools."""\n    return f"use {1} ortools:threads=2, scipy-like"'
    assert [(line, named(text)) for line, text in texts(source) if named(text)] == [(4, ["ortools"])]
    assert [named(text) for text in ("profile", "roofline:device=a100", "a profile of pulp")] == [
        ["profile"],
        ["roofline"],
        ["pulp"],
    ]
