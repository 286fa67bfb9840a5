"""Compares `remat.compile` with nothing else to PyTorch's default: `python -m experiments.bench.default_plan`.

A row for each model and device has saved bytes, bytes moved, kernels and the peak, by the predicted kernels of the
device. For CPUs it also has measured figures: bytes and kernels by TorchInductor's own count, in two compilations
without code, and the bytes that autograd keeps between the passes. The models are
`experiments.models.workloads.KERNEL_ZOO`, and those that were held out from the rules of the predicted kernels, eleven
of them by `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import remat
from experiments.models.held_out import HELD_OUT
from experiments.models.save_everything import plan_of
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable
from remat import Graph, Plan
from remat.answer.handover import handed_over
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import scheduled_kernels
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.seam.restore import put_back

MODELS = KERNEL_ZOO | HELD_OUT
FIGURES = ("saved_bytes", "moved_bytes", "kernels", "peak_bytes")
COUNTED = ("inductor_saved_bytes", "inductor_moved_bytes", "inductor_kernels")


def measure(case: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Compares both plans of a model; on the CPU, what Inductor makes of them, too."""
    name, device = case
    torch.manual_seed(0)
    model, args = MODELS[name]()
    ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0], device=None if device == "cpu" else device)
    ours = plan_of(graph, find_costmodel(DEFAULT_STEP_MODEL))
    row: dict[str, Any] = {
        "device": device,
        "values": len(graph),
        "same": handed_over(graph, ours) == handed_over(graph, plans[1.0]),
        "pytorch": predicted(graph, plans[1.0], device),
        "ours": predicted(graph, ours, device),
    }
    if device == "cpu":
        row["pytorch"] |= counted(torch.compile(model, dynamic=False), model, args)
        row["ours"] |= counted(remat.compile(model, dynamic=False), model, args)
    yield row


def predicted(graph: Graph, plan: Plan, device: str) -> dict[str, int]:
    """The four figures of a plan, by the predicted kernels of a device."""
    traffic = remat.predict_traffic(graph, plan, device=device)
    peak = remat.timeline(graph, plan, device=device).peak_bytes
    found = PlanFacts.of(graph, plan).saved_bytes, traffic.bytes, len(traffic.kernels), peak
    return dict(zip(FIGURES, found, strict=True))


def counted(step: Callable[..., Any], model: Any, args: tuple[Any, ...]) -> dict[str, int]:
    """What autograd keeps of a compiled step, and what Inductor says that its kernels move."""
    torch.compiler.reset()  # two steps with one plan would share what Dynamo compiled
    kernels: list[Any] = []
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))), put_back(model, args, {}):
        _, saved = saved_activations(step, model, *args)
    return dict(zip(COUNTED, (saved.bytes, sum(kernel.bytes for kernel in kernels), len(kernels)), strict=True))


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts the rows in which a figure of ours is above PyTorch's, or below it."""
    signs = [[row["ours"][key] - row["pytorch"][key] for key in row["ours"]] for row in rows]
    above, below = (sum(any(sign * by > 0 for by in row) for row in signs) for sign in (1, -1))
    told = [
        f"{len(rows)} graphs; on {sum(row['same'] for row in rows)} both hand over the same values",
        f"some figure of ours is above PyTorch's on {above}, below it on {below}",
    ]
    return [bullets(told)]


TABLE = ResultTable(
    "experiments.bench.default_plan",
    "What `remat.compile` does with nothing else, beside PyTorch's default",
    cases=lambda: [(name, device) for device in ("cpu", "a100") for name in MODELS],
    key=", ".join,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
