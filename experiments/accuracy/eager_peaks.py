"""Compares eager peaks of modules on GPUs with predictions from sizes: `python -m experiments.accuracy.eager_peaks`.

The peaks were published in `benchmark/data/all_benchmark_data.csv` of `linkedin/Liger-Kernel` (ead96b61, August 2026):
`max_memory_allocated` of a step of PyTorch's modules, not the first. Graphs are captured for an A100 without a GPU,
with eager's operators. Inputs, outputs, older gradients and all that the backward pass reads stay in memory, because
the benchmark retains autograd's graph. Intermediate values of a formula of autograd stay until the formula ends; silu's
gradient is one kernel. Besides, cuBLAS takes 8,320 KiB in each of two threads, the forward pass's and autograd's
(torch's CUDABlas.cpp), and the norm is measured with its gradient before a cast, and with the weight of another norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

import remat
from experiments.models.recipe import fake
from experiments.report.result_table import ResultTable, Row
from remat.plugin import Region

PUBLISHED = {
    "LlamaMLP": {1024: 1294.25, 2048: 1992.25, 4096: 3452.25, 8192: 6372.25},
    "LlamaRMSNorm": {1024: 80.02, 32768: 2560.38},
    "CrossEntropyLoss": {4096: 1280.13, 131072: 40960.13},
}
"""MiB, by module and size: tokens of each of 4 texts, width of 2,048 rows, vocabulary for 16,384 tokens."""


def peaks(name: str) -> Iterator[Row]:
    """Predicts the peak of a module at each size: a row for each."""
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    for size, published in PUBLISHED[name].items():
        with torch.device("meta"):
            if name == "LlamaMLP":
                module = llama.LlamaMLP(LlamaConfig(hidden_size=4096, intermediate_size=11008)).bfloat16()
                args, workspace_bytes = (torch.empty(4, size, 4096).bfloat16(),), 2 * 8320 * 1024
            elif name == "LlamaRMSNorm":
                module, args = llama.LlamaRMSNorm(size), (torch.empty(2048, size).bfloat16(),)
                workspace_bytes = 4100 * size
            else:
                module, args = nn.CrossEntropyLoss(), (torch.empty(16384, size), torch.zeros(16384).long())
                workspace_bytes = 0
        module, args = fake(module, args)
        args[0].requires_grad_()
        predicted = eager_peak(eager_graph(module, *args)) + workspace_bytes
        mib = {"published_mib": f"{published:.2f}", "predicted_mib": f"{predicted / 2**20:.2f}"}
        yield {"size": size, **mib, "predicted_bytes": predicted}


def eager_graph(module: nn.Module, *args: torch.Tensor) -> remat.Graph:
    """Captures a module for an A100 with eager's operators."""
    with patch("torch._inductor.compile_fx.select_decomp_table", dict):
        return remat.capture(module, *args, device="a100")


def eager_peak(graph: remat.Graph) -> int:
    """Returns the most bytes alive at once, with older gradients, in a step that autograd runs in the graph's order."""
    n, either, forward = len(graph), (graph.region == Region.EITHER) & ~graph.view, graph.region == Region.FORWARD
    last, held, in_kernel = np.arange(n), graph.input | graph.output, np.zeros(n, np.bool_)
    for v in reversed(range(n)):
        for u in graph.operands[v]:
            last[u] = max(last[u], last[v] if either[u] and either[v] else v)
            held[u] |= (forward[u] and not forward[v]) or graph.ops[u] == "placeholder"
    alive = np.full(n, graph.bytes[graph.gradient].sum())
    for v in np.flatnonzero(either):
        in_kernel[v] = graph.ops[v].startswith("aten.sigmoid") or in_kernel[list(graph.operands[v])].any()
    for storage in np.unique(graph.storage[~in_kernel]):
        mine = np.flatnonzero(graph.storage == storage)
        first = 0 if graph.ops[mine[0]] == "placeholder" else mine[0]
        alive[first : n if held[mine].any() else last[mine].max() + 1] += graph.bytes[mine].max()
    return int(alive.max())


TABLE = ResultTable(
    "experiments.accuracy.eager_peaks",
    "Eager peaks of modules on GPUs, beside their predictions",
    cases=lambda: PUBLISHED,
    measure=peaks,
    summary=lambda rows: [
        f"Equal: {sum(row['published_mib'] == row['predicted_mib'] for row in rows)} of {len(rows)}."
    ],
)

if __name__ == "__main__":
    TABLE.command()
