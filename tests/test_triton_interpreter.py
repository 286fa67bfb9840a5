"""The Triton kernels that are written for a plan compute the joint graph: run in Triton's interpreter, in a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from depth import deep

from experiments.accuracy import triton_interpreter
from experiments.accuracy.triton_interpreter import holds
from experiments.models.tiny_workloads import TINY_ZOO
from experiments.models.workloads import KERNEL_ZOO


def interpreted(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the experiment finds, in a process of its own, as it changes modules for good."""
    command = [sys.executable, "-m", "experiments.accuracy.triton_interpreter", "--output", str(folder / "found.json")]
    kept = ["--kept", str(folder / "kept.jsonl")]
    subprocess.run([*command, *kept, *arguments], check=True, cwd=Path(__file__).parents[1])
    return json.loads((folder / "found.json").read_text())


def assert_right(found: dict[str, Any]) -> None:
    assert [row for row in found["rows"] if not holds(row)] == []
    assert found["wrong_kernels"]
    for row in found["wrong_kernels"]:
        assert row["wrong"] > 0
        assert row["missed"] == []


def test_kernels_with_dropout_give_outputs_and_gradients_and_wrong_ones_do_not(tmp_path: Path) -> None:
    """The masks of both passes are equal, whatever is recomputed."""
    model = "dropout MLP"
    chosen = ["--only", model, "--precision", "float32", "--plans", "default cut", "refined", "--wrong", model]
    assert_right(interpreted(tmp_path, *chosen))


@deep
@pytest.mark.parametrize("model", ["LayerNorm-GeLU MLP", "ResNet"])
def test_kernels_of_the_zoo_give_outputs_and_gradients(model: str, tmp_path: Path) -> None:
    """Two models again; the experiment takes minutes for each of the others."""
    found = interpreted(tmp_path, "--only", model, "--precision", "float32")
    assert len(found["rows"]) == 4
    assert [row for row in found["rows"] if not holds(row)] == []


def test_the_committed_results_are_those_of_the_whole_zoo() -> None:
    found = json.loads(triton_interpreter.RESULTS.read_text())
    assert {row["model"] for row in found["rows"]} == set(TINY_ZOO) == set(KERNEL_ZOO)
    assert len({row["plan"] for row in found["rows"]}) >= 4
    assert_right(found)
    assert triton_interpreter.RESULTS.with_suffix(".md").read_text() == triton_interpreter.markdown(found)
