"""Measures half-precision copies of parameters between the passes, which DeepSpeed's DeepCompile stopped saving.

`python -m experiments.paper.autocast`
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import typer
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic
from experiments.accuracy.peak_error import solved
from experiments.models.zoo import gpt2
from experiments.paper import steps
from experiments.paper.measure_table import command
from experiments.paper.steps import NOTHING, OURS, PYTORCH
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase
from experiments.paper.without_device import FIGURES, UnlaunchedStep, operator_by_operator, scheduled
from remat.pytorch.measure.step_strategies import Strategy

OPERATORS, INDUCTOR = "operator by operator", "Inductor"
AUTOCAST, BFLOAT16 = "autocast", "bfloat16 weights"
NONE_KEPT = "ours, no copies of parameters"


class Autocast(nn.Module):
    """Runs a model with float32 weights so that it computes its products in bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16):
            return self.model(tokens)


SMALL = {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512, "context": 64, "batch": 4}
LARGE = {"layers": 6, "width": 768, "heads": 12, "vocabulary": 16384, "context": 512, "batch": 8}


def transformer(precision: str, device: str, sizes: Mapping[str, int]) -> tuple[nn.Module, tuple[Tensor]]:
    """Makes a GPT-2-style language model, whose output is its loss, and a batch."""
    model, args = gpt2(device=device, fused=True, **sizes)
    return (Autocast(model) if precision == AUTOCAST else model.to(torch.bfloat16)), args


def parameter_copy_bytes(graph: remat.Graph, plan: remat.Plan) -> int:
    """Counts the bytes that a plan keeps as a copy of one parameter alone; each storage once."""
    copies = remat.recompute_parameter_copies(graph).must_recompute & ~graph.input[graph.base]
    bases = {int(graph.base[graph.index[name]]) for name in plan.saved if copies[graph.index[name]]}
    return sum(int(graph.bytes[base]) for base in bases)


def chosen(strategy: str, backend: str, graph: remat.Graph, plans: Mapping[str, remat.Plan]) -> tuple[Strategy, int]:
    """Finds a strategy, and the bytes of parameter copies that its plan keeps, from those of `steps.plans`."""
    if strategy == NONE_KEPT:
        plan = solved(remat.recompute_parameter_copies(graph), ByteTraffic())
        options: dict[str, Any] = {"cost_model": ByteTraffic(), "recompute_parameter_copies": True}
    else:
        plan = plans[strategy]
        options = {"plan": plan}
    copies = parameter_copy_bytes(graph, plan)
    if backend == INDUCTOR and strategy != NONE_KEPT:
        return steps.strategies()[strategy], copies
    return partial(remat.compile, **options, dynamic=False, codegen=backend == INDUCTOR), copies


def measure(
    strategy: str, backend: str, precision: str, setting: Setting, *, sizes: Mapping[str, int] | None = None
) -> Figures:
    """Measures one strategy, in turns with the one that recomputes nothing."""
    sizes = sizes or (SMALL if setting.is_small else LARGE)
    if setting.is_virtual:
        return _without_device(strategy, backend, precision, sizes)
    model, args = transformer(precision, setting.device, sizes)
    graph, plans = steps.plans(model, args)
    ways = {NOTHING: chosen(NOTHING, backend, graph, plans)[0]}
    ways[strategy], copies = chosen(strategy, backend, graph, plans)
    found = steps.measured(model, args, ways, setting, loss=_itself, tolerance=TOLERANCE)
    step, base = found[strategy], found[NOTHING]
    figures: dict[str, float | int | str | None] = {
        "step_ms": step.ms,
        "kernels_ms": step.kernels_ms,
        "peak_gb": step.peak_bytes / 1e9,
        "saved_mb": step.saved_bytes / 1e6,
        "copies_mb": copies / 1e6,
    }
    if strategy != NOTHING:
        figures["peak_percent"] = 100 * (1 - step.peak_bytes / base.peak_bytes)
        figures["time_percent"] = 100 * (step.ms / base.ms - 1)
    return figures


def _without_device(strategy: str, backend: str, precision: str, sizes: Mapping[str, int]) -> Figures:
    model, args = transformer(precision, "cpu", sizes)
    graph, plans = steps.plans(model, args, device=VIRTUAL)
    plans[NONE_KEPT] = solved(remat.recompute_parameter_copies(graph), ByteTraffic())
    schedule = scheduled if backend == INDUCTOR else operator_by_operator
    found: dict[str, UnlaunchedStep] = {name: schedule(graph, plans[name]) for name in (NOTHING, strategy)}
    step, base = found[strategy], found[NOTHING]
    percents = {
        "peak_percent": 100 * (1 - step.peak_bytes / base.peak_bytes),
        "time_percent": 100 * (step.time.ns / base.time.ns - 1),
    }
    return {
        "peak_gb": step.peak_bytes / 1e9,
        "saved_mb": step.saved_bytes / 1e6,
        "copies_mb": parameter_copy_bytes(graph, plans[strategy]) / 1e6,
        "moved_mb": step.bytes / 1e6,
        "accesses": step.accesses,
        **step.figures,
        **({} if strategy == NOTHING else percents),
    }


def _itself(loss: Tensor) -> Tensor:
    return loss


TOLERANCE = 5e-2
"""The tolerance relative to a value's largest element: bfloat16 has 8 bits, and every strategy rounds elsewhere."""

PUBLISHED = {
    (OPERATORS, AUTOCAST): ((551.92, 12.07), (571.24, 9.96)),
    (OPERATORS, BFLOAT16): ((419.87, 9.47), (445.76, 7.30)),
    (INDUCTOR, AUTOCAST): ((546.97, 12.84), (570.09, 13.04)),
    (INDUCTOR, BFLOAT16): ((444.03, 10.01), (444.70, 10.19)),
}
"""The published (time in ms, memory in GB) before and after the change, by (backend, precision)."""


def _cases() -> list[TableCase]:
    cases: list[TableCase] = []
    for (backend, precision), (before, after) in PUBLISHED.items():
        compared: Figures = {
            "step_ms": after[0],
            "peak_gb": after[1],
            "peak_percent": round(100 * (1 - after[1] / before[1]), 1),
            "time_percent": round(100 * (after[0] / before[0] - 1), 1),
        }
        published: dict[str, Figures] = {
            NOTHING: {"step_ms": before[0], "peak_gb": before[1]},
            NONE_KEPT: compared,
        }
        own = [PYTORCH, OURS] if precision == AUTOCAST else []
        cases += [
            TableCase(
                f"{backend}, {precision}: {strategy}",
                partial(measure, strategy, backend, precision),
                published.get(strategy, {}),
            )
            for strategy in (NOTHING, *own, NONE_KEPT)
        ]
    return cases


NOTES = """
**This is not the published experiment.** That one trains another model with ZeRO-3 on eight GPUs, where each pass
gathers the parameters: its memory falls as gathered parameters and their casts are not kept, and as gathers move later;
and it has activation checkpointing in both columns. Ours is a small transformer on one device, which gathers nothing.
Its numbers can be held against the published ones in one thing only: whether copies of parameters are kept between the
passes, and what that costs. The percentages of the published column are its own figures divided.

- "Operator by operator" is the same pair of graphs without Inductor's code: the published "eager" backend. "nothing
  recomputed" stands beside the published base, "no copies of parameters" (`recompute_parameter_copies=True`) beside the
  published change. PyTorch's own partitioner and our minimum cut without that option are none of the published rows.
- Without a device "operator by operator" is modelled from the traffic of each operator, and its peak is simulated.
- With weights in bfloat16 there is nothing to cast: no plan keeps a copy there.
- Our model: GPT-2 style, 6 layers of width 768 with 12 heads, 16,384 words, 8 sequences of 512 (small: 2 layers of 128,
  4 heads, 512 words, 4 of 64); attention is one operator.
- The published memory is the peak of the forward pass of everything on a GPU; ours is the most that a step holds above
  what was held before it, gradients included, parameters not (on a CPU: summed from the events of torch's allocator,
  without what libraries hold).
- Time of a step: wall time with the launches; kernels alone by torch's profiler, on a GPU. Gradients are compared with
  eager's, to within 5% of their largest element, as bfloat16 rounds. Times on a CPU are the CPU's.
"""

TABLE = PaperTable(
    name="autocast",
    title="Copies of parameters under autocast, kept or made again",
    source="DeepSpeed's pull request that brought the minimum cut to DeepCompile; 8 x RTX 5090, ZeRO-3, another model",
    figures={
        "saved_mb": "kept between the passes (MB)",
        "copies_mb": "of it, copies of parameters (MB)",
        "peak_gb": "peak memory (GB)",
        "peak_percent": "less peak memory than with nothing recomputed (%)",
        "moved_mb": "moved by kernels (MB)",
        "accesses": "tensors read and written by kernels",
        **FIGURES,
        "step_ms": "time of a step (ms)",
        "kernels_ms": "time of its kernels (ms)",
        "time_percent": "more time than with nothing recomputed (%)",
    },
    cases=_cases(),
    notes=NOTES,
    full_size="full",
)

if __name__ == "__main__":
    typer.run(command(TABLE))
