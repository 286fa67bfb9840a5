"""`import remat` is quick: it loads numpy, and no backend."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import remat

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


def test_a_name_that_is_gone_says_what_to_use_instead() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'selective_policy': remat\.choose_regions chooses"):
        _ = remat.selective_policy
