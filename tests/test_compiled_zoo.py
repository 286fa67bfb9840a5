"""Every Triton kernel of the zoo compiles for GPUs, and what spills is known.

The table of `experiments.accuracy.compiled_zoo` has both GPUs; compiled again are those of one, and where one spills.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from depth import deep

from experiments.accuracy import compiled_zoo
from experiments.models.workloads import KERNEL_ZOO

ALWAYS_SPILL = [("triton_red_fused_8", 8)]
"""Kernels that spill whatever the configuration: one of EvoNorm's on an A100 stores and loads 4 bytes."""


def test_the_committed_table_of_compiled_kernels_has_no_failure() -> None:
    found = json.loads(compiled_zoo.RESULTS.read_text())
    kernels = [kernel for row in found["rows"] for kernel in row["kernels"]]
    assert {row["model"] for row in found["rows"]} == set(KERNEL_ZOO)
    assert {row["device"] for row in found["rows"]} == {"a100", "h100"}
    assert [kernel for kernel in kernels if "error" in kernel] == []
    always = [kernel for kernel in kernels if len(kernel["spilling"]) == kernel["configurations"]]
    assert [(kernel["name"], kernel["spilled_bytes"]) for kernel in always] == ALWAYS_SPILL
    assert compiled_zoo.RESULTS.with_suffix(".md").read_text() == compiled_zoo.markdown(found)


@deep
@pytest.mark.parametrize(("model", "device"), [*((model, "h100") for model in KERNEL_ZOO), ("EvoNorm", "a100")])
def test_every_kernel_of_the_zoo_compiles(model: str, device: str, tmp_path: Path) -> None:
    row = compiled_zoo.row_of(model, device, "default cut", compiled_zoo.Known(tmp_path / "kernels.jsonl"))
    assert row["kernels"]
    for kernel in row["kernels"]:
        assert "error" not in kernel
        always = len(kernel["spilling"]) == kernel["configurations"]
        assert not always or (kernel["name"], kernel["spilled_bytes"]) in ALWAYS_SPILL
