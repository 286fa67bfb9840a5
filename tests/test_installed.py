"""What a user installs works where they are: with the corpus, beside files with unlucky names."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from depth import deep

ROOT = Path(__file__).parents[1]


@deep
def test_the_wheel_has_the_corpus(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(copy)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("remat-*.whl")
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    instances = {file.name for file in (ROOT / "experiments" / "instances").glob("*.json*")}
    assert {name.name for name in names if name.parent == Path("remat/facts/instances")} >= instances
    assert not [name for name in names if name.parts[0] in ("tests", "experiments")]


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
