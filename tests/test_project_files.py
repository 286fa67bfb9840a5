"""The workflows and forms in .github are what the Makefile, `.ci/run` and pyproject.toml say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

import remat

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def commands(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_does_what_the_ci_script_does() -> None:
    typed = re.findall(r"^make (\w+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    ran = re.findall(r"^make (\w+) PYTHON=python$", "\n".join(commands(WORKFLOWS["ci"])), re.MULTILINE)
    assert {"check", *typed} == {*ran}
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {*ran} <= targets


def test_every_python_that_is_promised_is_tested() -> None:
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    for job in ("test", "package"):
        pythons = WORKFLOWS["ci"]["jobs"][job]["strategy"]["matrix"]["python"]
        assert f">={pythons[0]}" == least
        assert pythons == ["3.11", "3.12", "3.13"]


def test_a_release_needs_a_tag_that_is_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert "setuptools_scm" in project["tool"], "the version is that of the tag"
    files, built, _, _ = (command for command in commands(WORKFLOWS["release"]) if "GITHUB_REF_NAME" in command)
    assert files.splitlines() == [
        'grep -qx "## ${GITHUB_REF_NAME#v}" CHANGELOG.md',
        'grep -qx "version: ${GITHUB_REF_NAME#v}" CITATION.cff',
    ]
    assert built == 'test -f "dist/remat-${GITHUB_REF_NAME#v}-py3-none-any.whl"'
    needed = {name: job.get("needs") for name, job in WORKFLOWS["release"]["jobs"].items()}
    assert needed == {"build": None, "publish": "build", "site": "build"}


def test_what_builds_the_package_has_the_tags() -> None:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    building = [job for job in jobs if any("python -m build" in step.get("run", "") for step in job["steps"])]
    assert len(building) == 2
    for job in building:
        (checkout,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@"))
        assert checkout["with"] == {"fetch-depth": 0}


def test_the_version_is_that_of_what_is_installed() -> None:
    assert remat.__version__ == version("remat")
    assert "__version__" in dir(remat)


def published(folder: Path, site: Path, *versions: str) -> list[str]:
    for name in versions:
        (site / "page.html").write_text(name)
        done = [sys.executable, ROOT / "docs" / "publish.py", site, folder, name]
        subprocess.run(done, check=True)
    return json.loads((folder / "versions.json").read_text())


def test_each_version_of_the_site_lists_all_of_them(tmp_path: Path) -> None:
    folder, site = tmp_path / "pages", tmp_path / "site"
    site.mkdir()
    (folder / "notes").mkdir(parents=True)
    assert published(folder, site, "0.3.0rc1") == ["0.3.0rc1"]
    assert "url=0.3.0rc1/index.html" in (folder / "index.html").read_text(), "there is no other"
    listed = ["0.10.0rc1", "0.9.0", "0.3.0rc1", "0.2.1"]
    assert published(folder, site, "0.9.0", "0.10.0rc1", "0.2.1") == listed, "as numbers, the newest first"
    assert "url=0.9.0/index.html" in (folder / "index.html").read_text(), "the newest that is no pre-release"
    assert [(folder / name / "page.html").read_text() for name in listed] == listed


def test_a_version_that_is_published_again_replaces_its_pages(tmp_path: Path) -> None:
    folder, site = tmp_path / "pages", tmp_path / "site"
    site.mkdir()
    published(folder, site, "0.2.0")
    (folder / "0.2.0" / "old.html").touch()
    assert published(folder, site, "0.2.0") == ["0.2.0"]
    assert [path.name for path in (folder / "0.2.0").iterdir()] == ["page.html"]


def test_the_sidebar_of_a_page_reads_the_list_of_versions() -> None:
    template = (ROOT / "docs" / "templates" / "versions.html").read_text()
    assert 'all + "versions.json"' in template
    assert "versions.html" in (ROOT / "docs" / "conf.py").read_text()


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=lambda form: form.stem)
def test_a_form_asks_for_something(form: Path) -> None:
    asked = yaml.safe_load(form.read_text())
    assert asked["name"]
    assert asked["description"]
    ids = [part["id"] for part in asked["body"] if part["type"] != "markdown"]
    assert len({*ids}) == len(ids) >= 2
    assert any(part.get("validations", {}).get("required") for part in asked["body"])
