"""The check that no answer has changed: it passes on the committed reference, and lists a plan that differs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from costmodels import ByteTraffic
from experiments.accuracy import fingerprint

NAME = "small-dropout-mlp"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of plans alone, taken in this process: those of the command line start Python for each command."""

    def taken(names: Iterable[str], jobs: int) -> fingerprint.Digests:
        return {key: value for name in names for key, value in fingerprint.of_plans(name).items()}

    monkeypatch.setattr(fingerprint, "taken", taken)


def test_the_plans_of_the_smallest_instance_are_those_of_the_committed_reference() -> None:
    before = json.loads(fingerprint.REFERENCE.read_text())
    plans = {key: value for key, value in before.items() if key.startswith(f"{NAME} | ") and " | remat " not in key}
    assert plans
    assert fingerprint.of_plans(NAME) == plans


def test_a_changed_plan_is_reported(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, only = str(tmp_path / "reference.json"), ["--only", NAME]
    assert fingerprint.main([file, *only]) == 0  # writes it
    assert fingerprint.main([file, *only]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing of ")
    monkeypatch.setitem(fingerprint.COST_MODELS, "byte-traffic", ByteTraffic(mode="aggressive"))
    assert fingerprint.main([file, *only]) == 1
    changed = capsys.readouterr().out.splitlines()
    assert f"changed: {NAME} | byte-traffic | ortools | plan" in changed
    assert all(f"changed: {NAME} | byte-traffic | " in line for line in changed)
    assert fingerprint.main([file, *only, "--update"]) == 0
    capsys.readouterr()
    assert fingerprint.main([file, *only]) == 0
