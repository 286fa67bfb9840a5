"""Compares predicted peaks of compiled steps with those of GPUs: `python -m experiments.accuracy.gpu_peaks`.

The model is a Llama by `transformers` of 32 thin layers, 2 x 1,024 tokens, in single precision, at five of PyTorch's
memory budgets. Its peaks on a GTX 1650 were published by the repository `siddddd17/ackaudit` for
https://github.com/pytorch/pytorch/issues/197838 (September 2026, torch 2.14): `max_memory_allocated` above what was
held before the step. The peaks of an H200 come from `experiments.bench.measured_steps` (torch 2.11).

The prediction is `remat.timeline` of PyTorch's plan, on a graph captured for an H200 without a GPU. `before` is the
prediction of commit 82628b4, which lacked two rules of fused attention on GPUs: a mask that the backward pass computes
is copied for every head, and the call takes memory of its own. `allocated` replays the step in CUDA's caching allocator
(`experiments.accuracy.cuda_allocator`).

The same source has four plans at budget 0.05 that must save the results of the down-projections of some layers, with
the time of a step. We take these bytes out of the budget of PyTorch's knapsack. The other reading, that the budget
remains for all else, gives peaks that are too low. Times are modelled with the data sheet of a GTX 1650.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy

from experiments.accuracy.cuda_allocator import allocated_peak
from experiments.models.measured_models import BUDGETED, thin_llama
from experiments.report.markdown import bullets
from experiments.report.result_table import RESULTS, ResultTable, Row
from remat import Choice, Graph, Plan
from remat.predict.buffers import StepMemory
from remat.predict.time import modelled_time
from remat.predict.time.device import DeviceProfile
from remat.pytorch.measure.torch_budgets import legal_plans, plan_that_saves, torchs_plans
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.torch_partitioner import torchs_choice

CASE, FORCED = "Llama, 32 thin layers", "the same, down-projections saved"
PUBLISHED = {0.05: 904_102_912, 0.1: 583_965_696, 0.15: 383_622_144, 0.2: 415_063_040, 0.3: 473_734_144}
BEFORE = {0.05: 900_800_000, 0.1: 520_800_000, 0.15: 347_500_000, 0.2: 379_600_000, 0.3: 437_600_000}
"""Predicted peaks in bytes, to a tenth of a megabyte, by budget."""

FORCED_PLANS = {
    frozenset[int](): (904_102_912, 780.6),
    frozenset({0, 4, 9, 13, 18, 22, 27, 31}): (853_517_312, 794.1),
    frozenset({*range(0, 16, 2), *range(17, 32, 2)}): (777_626_624, 809.3),
    frozenset(range(32)) - {2, 6, 10, 14, 17, 21, 25, 29}: (703_028_224, 822.7),
}
"""Layers whose down-projection is saved: the published peak in bytes, and step in milliseconds."""

GTX_1650 = DeviceProfile("NVIDIA GTX 1650", {"float32": 2.98e12}, 128e9, 4000.0, "data sheet", 0.7, 0.9)


def compared(case: str) -> Iterator[Row]:
    """Predicts the peak and the step of each plan: a row for each."""
    with FakeTensorMode():
        model, args = thin_llama()
        if case == FORCED:
            graph, plans = _forced_plans(model.train(), *args)
        else:
            ((graph, plans),) = torchs_plans(model.train(), *args, budgets=PUBLISHED, device="h200")
    memory, published = StepMemory(graph), _forced() if case == FORCED else _at_budgets()
    for key, plan in legal_plans(graph, plans).items():
        saved = Choice.from_plan(graph, plan).saved
        yield {
            **published[key],
            "predicted_bytes": memory.peak(saved),
            "allocated_bytes": allocated_peak(memory.lifetimes(saved)),
            "modelled_ms": round(modelled_time(graph, memory.kernels(saved), GTX_1650).ns / 1e6, 1),
        }


def _at_budgets() -> dict[float, Row]:
    rows = json.loads((RESULTS / "measured_steps.json").read_text())["rows"]
    thin = {row["way"]: row["peak_bytes"] for row in rows if row["case"].startswith(CASE)}
    return {
        budget: {
            "budget": budget,
            "gtx_1650_bytes": peak_bytes,
            "h200_bytes": thin[f"{BUDGETED}{budget}"],
            "before_bytes": BEFORE[budget],
        }
        for budget, peak_bytes in PUBLISHED.items()
    }


def _forced() -> dict[float, Row]:
    return {
        len(layers): {"budget": 0.05, "forced": len(layers), "gtx_1650_bytes": peak_bytes, "gtx_1650_ms": step_ms}
        for layers, (peak_bytes, step_ms) in FORCED_PLANS.items()
    }


def _forced_plans(model: nn.Module, *args: torch.Tensor) -> tuple[Graph, dict[float, Plan]]:
    """Returns PyTorch's plans that must save down-projections, by the number of these layers."""
    graphs: list[Graph] = []
    plans: dict[float, Plan] = {}

    def read(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        size = {node: node.meta["val"].nbytes for node in joint_graph.nodes if hasattr(node.meta.get("val"), "nbytes")}
        default = torchs_choice(joint_graph, node_info, 1.0)
        span = sum(size[node] for node in default) - sum(size[node] for node in node_info.inputs)
        products = {
            node: int(layer[1])
            for node in joint_graph.nodes
            if node.target is torch.ops.aten.mm.default and node_info.is_required_fw(node)
            if (layer := re.search(r"layers\D+(\d+)\D+down_proj", str(node.meta.get("nn_module_stack"))))
        }
        for layers in FORCED_PLANS:
            forced = [node for node, layer in products.items() if layer in layers]
            for node in forced:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            saved = torchs_choice(joint_graph, node_info, 0.05 - sum(size[node] for node in forced) / span)
            for node in forced:
                del node.meta["recompute"]
            plans[len(layers)] = plan_that_saves(graph, saved)
        graphs.append(graph)

    visit_joint_graphs(read, model, *args, device="h200")
    return graphs[0], plans


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how far predictions are from each GPU."""
    lines: list[str] = []
    five, four = ([row for row in rows if row["case"] == case] for case in (CASE, FORCED))
    for gpu in ("gtx_1650", "h200"):
        lines += [_errors(five, gpu, what) for what in ("before", "predicted", "allocated") if five]
    lines += [f"{FORCED}: {_errors(four, 'gtx_1650', what)}" for what in ("predicted", "allocated") if four]
    for row in four[1:]:
        real, modelled = (row[f"{what}_ms"] - four[0][f"{what}_ms"] for what in ("gtx_1650", "modelled"))
        lines.append(f"{row['forced']} layers: the step takes {real:.1f} ms longer, modelled {modelled:.1f} ms")
    return [bullets(lines)]


def _errors(rows: Sequence[dict[str, Any]], gpu: str, what: str) -> str:
    errors = [row[f"{what}_bytes"] / row[f"{gpu}_bytes"] - 1 for row in rows]
    median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
    return f"{gpu}, {what}: {median:.2%} off in the median, {worst:+.2%} at worst"


TABLE = ResultTable(
    "experiments.accuracy.gpu_peaks",
    "Peaks on GPUs, beside their predictions",
    cases=lambda: [CASE, FORCED],
    measure=compared,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
