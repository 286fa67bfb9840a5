"""Eager peaks of modules: beside steps on this CPU, and beside figures that others measured on GPUs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

from experiments.accuracy.eager_peaks import PUBLISHED, eager_graph, eager_peak
from remat.pytorch.measure.saved import peak_bytes
from tests.results_pages import rows_of, section

MLP = llama.LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=176))


@pytest.mark.parametrize(
    ("module", "args", "more"),
    [
        (MLP, (torch.randn(2, 16, 64),), 0),  # the gradient of a weight decides
        (MLP, (torch.randn(2, 512, 64),), 0),  # the gradient of silu decides
        (llama.LlamaRMSNorm(256), (torch.randn(128, 256),), 0),
        (llama.LlamaRMSNorm(256), (torch.randn(128, 256).bfloat16(),), 0),
        (nn.CrossEntropyLoss(), (torch.randn(128, 256), torch.zeros(128).long()), 4),  # eager's gradient of the loss
    ],
)
def test_the_rules_of_eager_peaks_give_the_bytes_of_real_steps(
    module: nn.Module, args: tuple[Tensor, ...], more: int
) -> None:
    """Captured for a GPU, run on a CPU: the order and the sizes are the same."""
    args[0].requires_grad_()
    graph = eager_graph(module, *args)
    gradient = torch.ones_like(module(*args))

    def step() -> None:
        module(*args).backward(gradient, retain_graph=True)

    step()  # from now on there are older gradients
    held = sum(int(graph.bytes[i]) for i, op in enumerate(graph.ops) if op == "placeholder")
    held += int(graph.bytes[graph.gradient].sum())
    assert peak_bytes(step, torch.device("cpu")) == eager_peak(graph) - held + more


def test_the_published_eager_peaks_of_gpus_are_predicted_to_the_last_digit() -> None:
    rows, page = rows_of("eager_peaks"), section("Eager peaks of modules")
    published = [(name, size, f"{mib:.2f}") for name, peaks in PUBLISHED.items() for size, mib in peaks.items()]
    assert [(row["case"], row["size"], row["predicted_mib"]) for row in rows] == published
    for row in rows:
        assert f"{row['predicted_bytes'] / 2**20:.2f}" == row["predicted_mib"]
        assert f"| {row['size']:,} | {row['published_mib']} | {row['predicted_bytes']:,} |" in page
