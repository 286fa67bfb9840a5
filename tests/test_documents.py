"""What the README, the pages in docs/ and CONTRIBUTING tell people to type does what they say."""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from depth import deep_except
from test_notebooks import missing_names

import remat
import remat.pytorch
from experiments import compare_solvers, cover
from experiments.accuracy import compiled_peaks, gpu_compared, traffic_error, traffic_error_triton
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from experiments.bench import measured_steps, users_table
from experiments.recipes import recipe_losses
from experiments.report.result_table import Results
from remat.answer.registry import costmodel_names, estimator_names, solver_class, solver_names
from remat.plugin import Feature

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", *PAGES]
"""What explains the library. CONTRIBUTING and CHANGELOG are for those who change it."""
PROJECT = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]


def code_blocks(document: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def blocks_with_output(document: str) -> list[tuple[str, str]]:
    """Blocks of Python, each with the block of text that follows it at once, or ""."""
    blocks = r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    return re.findall(blocks, (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def without_seconds(text: str, shown: str = "") -> list[str]:
    """The words of each line, with one second for any number of seconds in a report, which sets a column's width.

    What is shown may end with "...": then as many lines of the text count as stand before that.
    """
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    if shown.endswith("...\n"):
        lines = [*lines[: len(shown.splitlines()) - 1], "..."]
    return [re.sub(r"(?<=[%n]) \d+(\.\d\d)? (?=[a-z-]+$)", " 1.00 ", line) for line in lines]


LONG = [
    *("docs/index.md", "docs/predictions.md"),
    *(f"docs/howto/{name}.md" for name in ("offload", "out_of_memory", "regions", "solver", "study")),
]
"""To run their code takes five times as long as to run that of all other pages."""
WITH_CODE = [name for name in DOCUMENTS if "```python" in (ROOT / name).read_text()]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """On a CPU, what fused attention takes depends on the number of threads, and so do plans."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("document", deep_except([name for name in WITH_CODE if name not in LONG], WITH_CODE))
def test_the_code_of_the_documents_runs(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page are one program; those of CONTRIBUTING are modules, tested below.

    Code for kernels is written and not compiled: no page speaks of what they compute. Where a block of text follows one
    of code, it is what the code prints, but for seconds.
    """
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    before = set(solver_names())
    with no_cpu_kernels():
        for block, shown in blocks_with_output(document):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, "train.py", "exec"), namespace)
            if shown and torch.__version__.startswith("2.13"):
                assert without_seconds(printed.getvalue(), shown) == without_seconds(shown)
    for name in set(solver_names()) - before:
        remat.plugin.unregister(name)


@pytest.mark.parametrize("document", LONG)
def test_what_a_long_page_names_of_a_module_is_there(document: str) -> None:
    assert missing_names("\n".join(code_blocks(document))) == []


def test_the_readme_is_a_front_door() -> None:
    """At most 700 words, as `wc -w` counts, and thirty lines of use."""
    assert len((ROOT / "README.md").read_text().split()) <= 700
    assert len(code_blocks("README.md")[0].splitlines()) <= 30


@pytest.mark.parametrize("document", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "experiments/instances/README.md"])
def test_a_page_says_for_whom_it_is_and_is_short(document: str) -> None:
    """First for whom, in two lines; at most 1,200 words, as `wc -w` counts, and 1,300 where files are shown."""
    title, empty, first, *rest = (ROOT / document).read_text().splitlines()
    assert title.startswith("# ")
    assert not empty
    assert first.startswith(("For people who ", "For people whose "))
    assert "" in rest[:2], "two lines"
    assert len((ROOT / document).read_text().split()) <= (1300 if document == "CONTRIBUTING.md" else 1200)


@pytest.mark.parametrize("document", PAGES)
def test_a_formula_within_a_sentence_stays_on_one_line(document: str) -> None:
    """A second line that begins with a minus would become a list."""
    prose = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if line.count("$") % 2] == []


@pytest.mark.parametrize(
    ("document", "path", "draw"),
    [
        ("docs/theory/minimum-cut.md", cover.PATH, cover.draw),
        *(
            (document, made.path.with_suffix(".svg"), partial(made.draw, Results.read(made.path).rows))
            for document, made in {
                "README.md": measured_steps.TABLE,
                "docs/results/steps.md": users_table.TABLE,
                "docs/results/kernels.md": traffic_error.TABLE,
                "docs/results/peaks.md": compiled_peaks.TABLE,
                "docs/results/solvers.md": compare_solvers.TABLE,
                "docs/results/kernels.md, for GPUs": traffic_error_triton.TABLE,
                "docs/results/gpus.md": gpu_compared.TABLE,
                "docs/results/training.md": recipe_losses.TABLE,
            }.items()
        ),
    ],
)
def test_a_picture_is_what_its_command_draws(
    document: str, path: Path, draw: Callable[[Path], None], tmp_path: Path
) -> None:
    """But for the date, and the names of its parts, which older pictures have."""
    draw(tmp_path / "again.svg")
    again, committed = (
        re.sub(r'\s*<dc:date>.*|#\w+|id="\w+"', "", picture.read_text()) for picture in (tmp_path / "again.svg", path)
    )
    assert again == committed
    assert path.relative_to(ROOT).as_posix() in (ROOT / document.split(",", maxsplit=1)[0]).read_text()


def table(heading: str, document: str) -> list[list[str]]:
    """The rows of the table under a heading of a document, without its two header lines."""
    section = (ROOT / document).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_every_solver_is_listed_with_its_features() -> None:
    listed = {row[0].split("`")[1]: row for row in table("Solvers", "docs/solvers.md") if len(row) == 6}
    assert set(listed) == set(solver_names())
    for name, row in listed.items():
        solver = solver_class(name)
        assert (row[2] == "yes") == solver.exact
        assert (row[3] == "yes") == (Feature.BUDGET in solver.features)
        assert (row[4] == "yes") == (Feature.TIME_LIMIT in solver.features)
        extras = {package for package in solver.requires if package != "networkx"}  # always installed
        assert {needed for needed in row[5].split("`") if needed} == extras


def test_every_cost_model_and_every_estimator_is_listed() -> None:
    for heading, names in (("Cost models", costmodel_names()), ("Estimators", estimator_names())):
        assert {row[0].split("`")[1] for row in table(heading, "docs/costmodels.md")} == set(names)


def test_the_largest_prices_are_those_of_the_solvers() -> None:
    """docs/solvers.md says what each solver can count to."""
    rows = [line.split("|") for line in (ROOT / "docs/solvers.md").read_text().splitlines() if line.startswith("| `")]
    said = {name: row[2].strip() for row in rows for name in row[1].split("`")[1::2]}
    assert set(said) == set(solver_names())
    for name, most in said.items():
        capacity = getattr(solver_class(name), "largest_capacity", None)
        counted = None if most == "any" else int(most.split("^")[0]) ** int(most.split("^")[1])
        assert (capacity is None) == (counted is None), name
        assert capacity is None or abs(capacity - (counted or 0)) <= 1, name


PLUGINS = {
    "AugmentingPaths": "solvers/augmenting_paths.py",
    "SavedMemory": "costmodels/saved_memory.py",
    "KernelCount": "remat/predict/time/kernel_count.py",
}
"""The files that CONTRIBUTING adds."""


@pytest.mark.parametrize("plugin", deep_except(["SavedMemory", "KernelCount"], PLUGINS))
def test_a_newcomer_adds_a_plugin_in_one_file_and_one_line(
    plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of CONTRIBUTING as a module of its own, its entry point, and the check it recommends."""
    blocks, path = code_blocks("CONTRIBUTING.md"), PLUGINS[plugin]
    source = next(block for block in blocks if f"class {plugin}" in block)
    check = next(block for block in blocks if f"({plugin})" in block and "import check_" in block)
    line = next(
        line for block in code_blocks("CONTRIBUTING.md", "toml") for line in block.splitlines() if plugin in line
    )
    name, target = line.split(" = ")
    module = Path(path).stem
    assert f"`{path}`" in (ROOT / "CONTRIBUTING.md").read_text()

    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    namespace = vars(importlib.import_module(module)).copy()
    try:
        exec(compile(check, "CONTRIBUTING.md", "exec"), namespace)
        assert name == namespace[plugin].name
        assert target == f'"{path.removesuffix(".py").replace("/", ".")}:{plugin}"'
    finally:
        del sys.modules[module]


def test_the_map_shows_every_package() -> None:
    rooms = " ".join(row[0] for row in table("The packages", "CONTRIBUTING.md"))
    packages = {path.parent.name for path in (ROOT / "remat").glob("*/__init__.py")} | {"solvers", "costmodels"}
    missing = {name for name in packages if not re.search(rf"\b{name}\b", rooms)}
    assert not missing


@pytest.mark.parametrize("document", [*DOCUMENTS, *PROJECT, "CHANGELOG.md"])
def test_documents_have_no_placeholders_and_no_dead_links(document: str) -> None:
    text = (ROOT / document).read_text()
    assert not re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b|@@", text)
    links = re.findall(r"\]\(([^)]+)\)|src=\"([^\"]+)\"", text)
    for link in (first or second for first, second in links):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = ((ROOT / document).parent / target) if target else ROOT / document
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


def anchors(page: Path) -> set[str]:
    """The names that a page's headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [*DOCUMENTS, *PROJECT])
def test_modules_commands_and_files_that_documents_name_exist(document: str) -> None:
    """Names such as `remat.predict.kernels`, `python -m experiments...` and `tests/...` are those of the tree."""
    text = (ROOT / document).read_text()
    for name in set(re.findall(r"`(?:python -m )?((?:remat|experiments)(?:\.\w+)+)", text)):
        pkgutil.resolve_name(name)
    paths = set(re.findall(r"`((?:remat|solvers|costmodels|experiments|tests|docs)/[\w./-]*)`", text))
    for path in paths - set(PLUGINS.values()):
        assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), path


def test_every_extra_is_listed() -> None:
    rows = [line for line in (ROOT / "docs/install.md").read_text().splitlines() if line.startswith("| `")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {row.split("`")[1] for row in rows} == set(extras)
    sources = "".join(
        path.read_text() for folder in ("remat", "solvers", "experiments") for path in (ROOT / folder).rglob("*.py")
    )
    assert set(re.findall(r"""pip_install\(["'](\w+)["']\)""", sources)) <= set(extras)
    assert "pip install 'remat[" not in sources  # before the first release, the index has no such package


def test_the_changelog_and_the_citation_name_the_same_last_version() -> None:
    """The workflow of a release compares both with the tag, which is the version of what it builds."""
    first, second, *_ = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    last = second if first == "Unreleased" else first
    assert re.fullmatch(r"\d+\.\d+\.\d+", last)
    assert f"version: {last}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_versions_of_torch_agree() -> None:
    """Those that `make versions` runs are those that users are promised."""
    tried = re.findall(r"^TORCH \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    short = [version.removesuffix(".0") for version in tried]
    for document in ("docs/running.md", "CONTRIBUTING.md"):
        assert f"{', '.join(short[:-1])} and {short[-1]}" in (ROOT / document).read_text()
    assert f'"torch>={short[0]}"' in (ROOT / "pyproject.toml").read_text()


def test_plugins_need_no_inner_module() -> None:
    modules = {
        name for block in code_blocks("CONTRIBUTING.md") for name in re.findall(r"from (remat\S*) import", block)
    }
    assert modules == {"remat.plugin", "remat.testing"}


REFERENCES = "\n".join((ROOT / page).read_text() for page in PAGES if page.startswith("docs/reference/"))


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    """What `remat` gives, and what the packages list in `__all__`; an `automodule` shows all of its package."""
    whole = set(re.findall(r"automodule:: (\S+)", REFERENCES))
    shown = set(re.findall(r"(?:auto\w+|py:class):: (\S+)", REFERENCES))
    assert {"remat.errors", "remat.testing", "solvers", "costmodels"} <= whole
    errors = {name for name in vars(remat.errors) if not name.startswith("_")}
    public = {name for name in dir(remat) if not name.startswith("_")}
    wanted = {f"remat.{name}" for name in public - errors}
    wanted |= {
        f"remat.plugin.{name}"
        for name in vars(remat.plugin)
        if not (name[0] == "_" or name in dir(remat) or name in errors)
    }
    wanted |= {f"remat.pytorch.{name}" for name in remat.pytorch.__all__ if not hasattr(remat, name)}
    assert not wanted - shown
