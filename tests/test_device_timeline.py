"""Live memory by predicted kernels: beside what a GPU's allocator handed out."""

from __future__ import annotations

import pytest
import torch
from depth import deep

import remat
from experiments.accuracy.gpu_compared import plans_of
from experiments.models.workloads import KERNEL_ZOO
from remat.errors import UnknownName
from remat.predict.memory import simulate
from tests.results_pages import rows_of


@pytest.mark.parametrize(
    "model",
    ["GPT, attention written out", pytest.param("MLP-Mixer", marks=deep), pytest.param("LSTM cells", marks=deep)],
)
def test_the_peak_is_the_one_that_a_gpu_had(model: str) -> None:
    """An H100, with torch 2.11; the first of the plans is left out, as cuBLAS allocated what it keeps in its step."""
    compared = [row for row in rows_of("gpu_compared") if row["case"] == f"zoo: {model}"]
    rows = {row["plan"]: row for row in compared[1:]}
    torch.manual_seed(0)
    module, args = KERNEL_ZOO[model]()
    graph = remat.capture(module, *args, device="h100")
    peaks = {
        name: remat.timeline(graph, plan, device="h100").peak_bytes / rows[name]["peak_bytes"]
        for name, plan in plans_of(graph, "h100").items()
        if name in rows
    }
    assert sorted(peaks) == sorted(rows)
    exact = [name for name, ratio in peaks.items() if abs(ratio - 1) < 0.01]
    assert len(exact) >= 3, peaks


def test_a_step_is_a_kernel_and_what_is_saved_the_same() -> None:
    graph = remat.Corpus.open().graph("small-resnet")
    plan = remat.choose(graph).plan
    by_value, by_kernel = simulate(graph, plan), remat.timeline(graph, plan, device="h100")
    traffic = remat.predict_traffic(graph, plan, device="h100")
    assert traffic.backend == "triton"
    assert len(by_kernel) == len(traffic.kernels) < len(by_value)
    assert by_kernel.saved_bytes == by_value.saved_bytes
    assert by_kernel.at_forward_end == by_value.at_forward_end
    assert len(remat.timeline(graph, plan, device="cpu")) < len(by_kernel)  # kernels between calls are one function
    with pytest.raises(UnknownName, match=r"no device is named 'h10'.*did you mean 'h100'"):
        remat.timeline(graph, plan, device="h10")
