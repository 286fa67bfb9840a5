"""The notebooks run from top to bottom, show what they draw, and state no number that they do not check."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from depth import deep_except
from examples import cosines
from IPython.core.formatters import DisplayFormatter
from jupyter_cache import get_cache
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

import remat
from remat.answer.registry import solver_class, usable_solvers
from remat.plugin import Feature

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "notebooks"
SITES_RUNS = ROOT / "build" / "notebooks"
"""Where docs/conf.py has the site's build keep the notebooks that it ran."""
READ_BY_NOTEBOOKS = ("remat", "solvers", "costmodels", "experiments", "constraints.txt")
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""All that a reader's Jupyter needs; versions and paths are the business of whoever runs it."""

DRAWS = re.compile(r"^(?:remat\.show|draw_network|plt\.show)\(|^[^=#]*\.(?:plot|show)\([^)]*\)$", re.MULTILINE)
"""A statement at the top level of a cell that displays a picture."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


class ThisInterpreter(AsyncKernelManager):
    """A kernel in the interpreter that runs the tests, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])


def read(path: Path) -> NotebookNode:
    return nbformat.reads(path.read_text(), as_version=4)


def sources(path: Path, kind: str) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == kind]


def executed(path: Path, *, may_be_the_sites: bool) -> NotebookNode:
    notebook = read(path)
    if may_be_the_sites and (ran := left_by_the_site(notebook)) is not None:
        return ran
    where: dict[str, Any] = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=300, resources=where, kernel_manager_class=ThisInterpreter).execute()
    return notebook


def left_by_the_site(notebook: NotebookNode) -> NotebookNode | None:
    """What `make docs` left when it ran the notebook, unless a file that notebooks read has been written since."""
    if not SITES_RUNS.exists():
        return None
    cache = get_cache(SITES_RUNS)
    try:
        record, ran = cache.merge_match_into_notebook(notebook)
    except KeyError:
        return None
    key = cache.get_cache_record(record).hashkey
    read_by_notebooks = [path for name in READ_BY_NOTEBOOKS for path in (ROOT / name, *(ROOT / name).rglob("*.*"))]
    written = max(path.stat().st_mtime for path in read_by_notebooks if path.suffix != ".pyc" and path.is_file())
    return ran if written < (SITES_RUNS / "executed" / key / "base.ipynb").stat().st_mtime else None


def asserted_numbers(path: Path) -> set[float]:
    checks = (
        node for code in sources(path, "code") for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Assert)
    )
    return {
        float(node.value)
        for check in checks
        for node in ast.walk(check.test)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    }


def bold_numbers(path: Path) -> set[float]:
    text = "\n".join(sources(path, "markdown"))
    return {float(number.replace(",", "")) for number in re.findall(r"\*\*([\d,.]*\d)\*\*", text)}


@pytest.mark.parametrize("path", deep_except(NOTEBOOKS[1:2], NOTEBOOKS), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_every_picture(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """In the deep half, a run of the same code by the site's build counts: `.ci/run` builds the site before."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's start-up files
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path / "hypothesis"))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    drawing = 0
    for cell in executed(path, may_be_the_sites=pytestconfig.getoption("--deep")).cells:
        outputs = cell.get("outputs", [])
        assert not [output.text for output in outputs if output.get("name") == "stderr"], cell.source
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        assert bool(pictures) == bool(cell.cell_type == "code" and DRAWS.search(cell.source)), cell.source
        drawing += bool(pictures)
    assert drawing >= 2


def missing_names(code: str) -> list[str]:
    """Attributes that code reads of modules and that are not there: it is not run, but its imports are."""
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    bound: dict[str, Any] = {}
    exec(compile(ast.Module(imports, []), "imports", "exec"), bound)
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    modules = [(bound[node.value.id], node.attr) for node in named if isinstance(bound.get(node.value.id), ModuleType)]
    assert "remat" in bound
    return [f"{module.__name__}.{name}" for module, name in modules if not hasattr(module, name)]


@each
def test_what_a_notebook_names_of_a_module_is_there(path: Path) -> None:
    assert missing_names("\n".join(sources(path, "code"))) == []


def test_a_picture_is_displayed_where_nobody_imported_pyplot() -> None:
    """Then notebooks print the size of matplotlib's own figures."""
    graph = cosines()
    plan = remat.choose(graph).plan
    for figure in (remat.show(graph, plan), remat.frontier(graph).plot(), remat.timeline(graph, plan).show()):
        data, _ = DisplayFormatter().format(figure)
        assert data["image/png"].startswith(b"\x89PNG")


@each
def test_a_notebook_is_stored_without_outputs_as_nbformat_writes_it(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.read_text() == nbformat.writes(notebook) + "\n"
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        assert cell.metadata == {}
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cell.id), "a readable name, so that a diff says what changed"
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@each
def test_every_number_in_bold_is_asserted(path: Path) -> None:
    assert bold_numbers(path) <= asserted_numbers(path)


def test_the_figures_of_the_paper_are_among_them() -> None:
    assert {9, 11, 13, 5} <= bold_numbers(NOTEBOOKS[0])


@each
def test_axes_are_labelled(path: Path) -> None:
    """Where a notebook draws a chart by itself; pictures of graphs have no axes."""
    for code in sources(path, "code"):
        if "plt.show()" in code and "set_axis_off" not in code:
            assert "xlabel=" in code, code
            assert "ylabel=" in code, code


@each
def test_links_lead_somewhere_and_nothing_names_a_machine(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells)
    for target in re.findall(r"\]\(([^)#]+)\)", "\n".join(sources(path, "markdown"))):
        assert (FOLDER / target).exists(), target
    assert not re.findall(r"[\"'\s(](?:/\w+/|[A-Z]:\\|~/)\S*", text)


def test_the_solvers_that_take_budgets_are_as_many_as_is_said() -> None:
    takes = [name for name in usable_solvers() if Feature.BUDGET in solver_class(name).features]
    assert len(takes) == 7
    assert "exhaustive" in takes
    assert "Seven solvers take budgets" in "\n".join(sources(NOTEBOOKS[1], "markdown"))


def test_the_folder_says_what_each_notebook_teaches() -> None:
    listed = re.findall(r"\]\(([^)]+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert listed == [path.name for path in NOTEBOOKS]
    assert len(listed) >= 4
