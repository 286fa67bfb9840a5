"""The workflows and forms in .github are what the Makefile, `.ci/run` and pyproject.toml say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (check,) = (command for command in commands(WORKFLOWS["release"]) if "GITHUB_REF_NAME" in command)
    assert check == 'grep -qx "version = \\"${GITHUB_REF_NAME#v}\\"" pyproject.toml'
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text().splitlines()
    needed = {name: job.get("needs") for name, job in WORKFLOWS["release"]["jobs"].items()}
    assert needed == {"build": None, "publish": "build", "site": "build"}


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=lambda form: form.stem)
def test_a_form_asks_for_something(form: Path) -> None:
    asked = yaml.safe_load(form.read_text())
    assert asked["name"]
    assert asked["description"]
    ids = [part["id"] for part in asked["body"] if part["type"] != "markdown"]
    assert len({*ids}) == len(ids) >= 2
    assert any(part.get("validations", {}).get("required") for part in asked["body"])
