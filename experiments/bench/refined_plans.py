"""Counts the bytes that refined plans move, beside PyTorch's default: `python -m experiments.bench.refined_plans`.

For each model of `experiments.models.workloads.KERNEL_ZOO`: PyTorch's default plan, the cut of `MultiRead`, and what
`remat.refine` makes of both in 90 s, which saves no more and makes no more kernels than PyTorch's default. Bytes and
kernels are those of TorchInductor's own schedule, for CPUs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import remat
from costmodels import MultiRead
from experiments.models.save_everything import plan_of
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable, Row
from remat.answer.plan_facts import PlanFacts
from remat.improve.refine import Traffic
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans

PYTORCH, CUT, REFINED = "PyTorch", "multi-read cut", "refined"
TRANSFORMERS = ("GPT, attention written out", "GPT, fused attention", "BERT", "nn.TransformerEncoder")
GOAL = 0.05
"""Of the bytes that PyTorch's plan moves, on each of the transformers."""

LIMIT_S = 90.0


def measure(name: str) -> Iterator[Row]:
    """Counts the three plans of a model."""
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0])
    yield from compared(graph, plans[1.0], LIMIT_S)


def compared(graph: remat.Graph, default: remat.Plan, limit_s: float) -> Iterator[Row]:
    """Counts PyTorch's plan, the cut, and the better of what is found from both."""
    schedule = Scheduled(graph)
    begin = time.perf_counter()
    cut = plan_of(graph, MultiRead())
    cut_s = time.perf_counter() - begin
    objective = Traffic(most_kernels=len(schedule.kernels(default)))
    found = remat.refine(graph, default, objective, oracle="inductor", starts=[cut], time_limit_s=limit_s)
    for strategy, plan, seconds in ((PYTORCH, default, None), (CUT, cut, cut_s), (REFINED, found.plan, found.time_s)):
        kernels = schedule.kernels(plan)
        yield {
            "strategy": strategy,
            "bytes": sum(kernel.bytes for kernel in kernels),
            "kernels": len(kernels),
            "saved_bytes": PlanFacts.of(graph, plan).saved_bytes,
            "choosing_s": None if seconds is None else round(seconds, 3),
        }


def fewer(rows: Sequence[Row], case: str, strategy: str) -> float:
    """Returns by which part a strategy moves fewer bytes than PyTorch's default."""
    of = {row["strategy"]: row["bytes"] for row in rows if row["case"] == case}
    return 1 - of[strategy] / of[PYTORCH]


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how many bytes fewer are moved, and which of the transformers miss the goal."""
    cases = sorted(dict.fromkeys(row["case"] for row in rows), key=lambda case: -fewer(rows, case, REFINED))
    lines = [(case, f"{fewer(rows, case, REFINED):.2%}", f"{fewer(rows, case, CUT):.2%}") for case in cases]
    missed = [case for case in TRANSFORMERS if case in cases and fewer(rows, case, REFINED) < GOAL]
    return [
        table(("model", "fewer bytes moved, refined", "fewer, multi-read cut alone"), lines),
        f"The goal was {GOAL:.0%} on all transformers; missed on {', '.join(missed) or 'none'}.",
    ]


TABLE = ResultTable(
    "experiments.bench.refined_plans",
    "What refined plans move",
    cases=lambda: KERNEL_ZOO,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
