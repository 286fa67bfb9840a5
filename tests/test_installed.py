"""What a user installs works where they are: with the corpus, beside files with unlucky names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from depth import deep

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and an sdist of what is committed; or, in an sdist that was unpacked, of what is there."""
    folder = tmp_path_factory.mktemp("built")
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "-q", ROOT, folder / "clone"], check=True)
    else:
        shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns("build", ".*_cache", "__pycache__"))
    subprocess.run([sys.executable, "-m", "build", "-o", folder, folder / "clone"], check=True, capture_output=True)
    return folder


@deep
def test_the_wheel_has_the_corpus(built: Path) -> None:
    (wheel,) = built.glob("remat-*.whl")
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    instances = {file.name for file in (ROOT / "experiments" / "instances").glob("*.json*")}
    assert {name.name for name in names if name.parent == Path("remat/facts/instances")} >= instances
    assert not [name for name in names if name.parts[0] in ("tests", "experiments")]


@deep
def test_the_sdist_has_all_that_its_tests_read(built: Path) -> None:
    clone = built / "clone"
    (sdist,) = built.glob("remat-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for pattern in ("tests/*.py", "experiments/*/*.json*", "experiments/*/*.ipynb", "docs/*.md", ".github/*/*.yml"):
        committed = {path.relative_to(clone).as_posix() for path in clone.glob(pattern)}
        assert committed, pattern
        assert committed <= names, pattern
    assert {"README.md", "CHANGELOG.md", "Makefile", "constraints.txt", ".ci/run"} <= names


@pytest.mark.parametrize(
    ("file", "call"), [("solvers.py", "solve(problem)"), ("costmodels.py", "choose(graph, 'byte-traffic')")]
)
def test_a_file_that_hides_a_package_of_plug_ins_is_named(tmp_path: Path, file: str, call: str) -> None:
    (tmp_path / file).write_text("")
    script = tmp_path / "mine.py"
    script.write_text(
        "import remat\n"
        "graph = remat.Corpus.open().graph('gpt2-small-bf16')\n"
        "problem = remat.plugin.base_problem(graph)\n"
        f"remat.{call}\n"
    )
    # The folder of the script comes first, as where remat is installed.
    done = subprocess.run(
        [sys.executable, script],
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"{tmp_path / file} hides the package {file.removesuffix('.py')!r}" in done.stderr
