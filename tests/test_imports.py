"""`import remat` is quick: it loads numpy, and no backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

BACKENDS = ("torch", "networkx", "ortools", "scipy", "pulp", "pandas", "matplotlib", "hypothesis", "typer", "rich")


def loaded_by(code: str) -> set[str]:
    """Those of `BACKENDS` that a new process has loaded after `code`."""
    report = f"{code}\nimport sys; print(*(name for name in {BACKENDS} if name in sys.modules))"
    command = [sys.executable, "-W", "ignore", "-c", report]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import remat",
        "import solvers",
        "import costmodels",
        "import remat.answer.registry as r; r.solver_names(); r.costmodel_names()",
        "import remat; remat.Problem.of([1]); remat.Plan((), ())",
    ],
)
def test_loads_no_backend(code: str) -> None:
    assert loaded_by(code) == set()


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
    import remat

    with pytest.raises(AttributeError, match="module 'remat' has no attribute 'optimise'"):
        _ = remat.optimise


def test_every_public_name_is_there_at_once_or_when_first_used() -> None:
    import remat

    assert [name for name in remat.__all__ if name not in vars(remat) and name not in remat._LAZY] == []
    assert set(remat._LAZY) <= set(remat.__all__)
