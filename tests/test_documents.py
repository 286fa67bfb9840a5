"""What the README and CONTRIBUTING tell people to type does what they say."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import remat
from remat.answer.registry import costmodel_names, estimator_names, solver_class, solver_names
from remat.answer.solver import Feature

ROOT = Path(__file__).parents[1]


def code_blocks(document: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def test_the_code_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = code_blocks("README.md")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def test_the_quickstart_fits_in_thirty_lines() -> None:
    assert len(code_blocks("README.md")[0].splitlines()) <= 30


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading of the README, without its two header lines."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_readme_lists_every_solver_with_its_features() -> None:
    listed = {row[0].split("`")[1]: row for row in table("Solvers")}
    assert set(listed) == set(solver_names())
    for name, row in listed.items():
        solver = solver_class(name)
        assert (row[2] == "yes") == solver.exact
        assert (row[3] == "yes") == (Feature.BUDGET in solver.features)
        assert (row[4] == "yes") == (Feature.TIME_LIMIT in solver.features)
        extras = {package for package in solver.requires if package != "networkx"}  # always installed
        assert {needed for needed in row[7].split("`") if needed} == extras


def test_the_readme_lists_every_cost_model() -> None:
    assert {row[0].strip("`") for row in table("Cost models")} == set(costmodel_names())


def test_the_readme_lists_every_estimator() -> None:
    assert {row[0].split("`")[1] for row in table("Estimators")} == set(estimator_names())


@pytest.mark.parametrize(
    ("plugin", "package"),
    [("AugmentingPaths", "solvers"), ("SavedMemory", "costmodels"), ("KernelCount", "remat.estimators")],
)
def test_a_newcomer_adds_a_plugin_in_one_file_and_one_line(
    plugin: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of CONTRIBUTING as a module of its own, its entry point, and the check it recommends."""
    blocks = code_blocks("CONTRIBUTING.md")
    source = next(block for block in blocks if f"class {plugin}" in block)
    check = next(block for block in blocks if f"({plugin})" in block and "import check_" in block)
    line = next(
        line for block in code_blocks("CONTRIBUTING.md", "toml") for line in block.splitlines() if plugin in line
    )
    name, target = line.split(" = ")
    module = target.strip('"').split(":")[0].split(".")[-1]

    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    namespace = vars(importlib.import_module(module)).copy()
    try:
        exec(compile(check, "CONTRIBUTING.md", "exec"), namespace)
        assert name == namespace[plugin].name
        assert target.startswith(f'"{package}.{module}:')
    finally:
        del sys.modules[module]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_documents_have_no_placeholders_and_no_dead_links(document: str) -> None:
    text = (ROOT / document).read_text()
    assert not re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b|\| *[A-Z_]{4,} *\|", text)
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)|src=\"([^\"]+)\"", text)
    for target in filter(None, (first or second for first, second in targets)):
        assert (ROOT / target).exists() or (ROOT / f"{target}.md").exists(), target


def test_the_versions_agree() -> None:
    assert f'version = "{remat.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {remat.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
