"""Asks why the paper's Table 3 came out the wrong way round: botorch's qEHVI, kernel by kernel, without a GPU.

`python -m experiments.bench.acquisition` captures botorch's own function (`experiments.models.botorch_acquisition`) for
sizes at which "no checkpoint" holds about the published 5.3 GB: q = 8, 4 objectives, 16 restarts, 512 samples, 36
cells. The paper does not say its sizes. A plan is scheduled by TorchInductor for an A100 of 40 GB, and Triton code is
written, but nothing runs. `moved` are the bytes that kernels read and write; `peak` is that of the written code. Each
kernel takes the time of its bytes at the reached bandwidth, or of its arithmetic, whichever is longer, or a launch.
Arithmetic is counted in the written code: each line that computes a number, for each element, at 4.85e12 operations
a second (the data sheet's rate in double precision, without fused multiply-add); it is an upper bound, as lines that
only convert count, too.

"No checkpoint" saves what autograd saves; "memory-budget" without a share keeps half of what PyTorch's default plan
saves. "Factors": products over objectives are multiplications of their parts, and least values are read with `amin`.
"Limits off": TorchInductor's limits on the length of an expression are raised.
Timed steps take turns: on a GPU with the sizes above, where norms of gradients are compared; on this CPU with 32
samples, 4 restarts and 32 cells, where gradients are.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch._inductor import config

import remat
from costmodels import ByteTraffic, MemoryBudget, StepTime
from experiments.bench.measured_steps import Step as MeasuredStep
from experiments.bench.measured_steps import Worker, device_of, ended_at_last, started, timed_in_turns
from experiments.models.botorch_acquisition import Sizes, Step, traced
from experiments.models.recipe import fake
from experiments.models.save_everything import plan_of
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable, Row
from remat.answer.plan_facts import no_recompute_saved
from remat.improve.byte_budgets import default_plan
from remat.plugin import PlanFacts
from remat.predict.time.known_devices import find_device
from remat.pytorch.inductor.cubins import PassCode, triton_code
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.seam.gpu_sheets import sheet_of
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.virtual_gpu import virtual_gpu

GPU = "a100-40gb"
SIZES = Sizes(samples=512, restarts=16, q=8, objectives=4, cells=36)
SMALL = Sizes(samples=32, restarts=4, q=8, objectives=4, cells=32)
OPERATIONS_PER_S = 4.85e12
LIMITS = {"realize_reads_threshold": 100, "realize_opcount_threshold": 1000, "realize_acc_reads_threshold": 1000}
NONE, DEFAULT, OURS = "no checkpoint", "PyTorch's default", "step-time"
EAGER = "eager"
COST_MODELS: dict[str, remat.CostModel] = {
    "byte-traffic": ByteTraffic(),
    "byte-traffic, aggressive": ByteTraffic(mode="aggressive"),
    OURS: StepTime(device=GPU),
    "memory-budget": MemoryBudget(estimator=f"roofline:device={GPU}"),
    "memory-budget, 0.25 of the peak": MemoryBudget(0.25, of="peak", estimator=f"roofline:device={GPU}"),
}
PLANS = {
    "botorch": (NONE, DEFAULT, "byte-traffic", "byte-traffic, aggressive", OURS, "memory-budget"),
    "factors": (NONE, DEFAULT, OURS, "memory-budget, 0.25 of the peak"),
    "factors, limits off": (NONE, DEFAULT, OURS),
}


def without_checkpoint(graph: remat.Graph) -> remat.Plan:
    """Saves what autograd saves; of each storage, the value that owns it."""
    return remat.Choice.from_saved(graph, graph.owners(no_recompute_saved(graph))).plan(graph)


def counted(case: str) -> Iterator[Row]:
    """Has TorchInductor write one step for the GPU, from tensors without contents."""
    function, _, name = case.partition(": ")
    graph = remat.capture(fake(traced(SIZES, function != "botorch"), ())[0])
    graph = replace(graph, meta={**graph.meta, "device": "cuda", "gpu": sheet_of(GPU).name})
    given = {NONE: without_checkpoint, DEFAULT: default_plan}
    plan = given[name](graph) if name in given else plan_of(graph, COST_MODELS[name])
    assert plan is not None
    device = find_device(GPU)
    with config.patch(LIMITS if "limits" in function else {}):  # pyright: ignore[reportUnknownMemberType]
        code = triton_code(Scheduled(graph), plan)
        with virtual_gpu(sheet_of(GPU)):
            peak_bytes = rehearsed_peak(graph, plan)
    kernels = [(kernel, ops) for one in code for kernel, ops in zip(one.kernels, _arithmetic(one), strict=True)]
    memory_s = [kernel.bytes / device.reached_bytes_per_s for kernel, _ in kernels]
    ops_s = [ops / OPERATIONS_PER_S for _, ops in kernels]
    most = sorted((kernel for kernel, _ in kernels), key=lambda kernel: -kernel.bytes)[:5]
    yield {
        "saved_bytes": PlanFacts.of(graph, plan).saved_bytes,
        "peak_bytes": peak_bytes,
        "moved_bytes": sum(kernel.bytes for kernel, _ in kernels),
        "kernels": len(kernels),
        "values": len(graph),
        "ms": 1e3 * sum(max(*each, device.launch_ns / 1e9) for each in zip(memory_s, ops_s, strict=True)),
        "ms_without_arithmetic": 1e3 * sum(max(each, device.launch_ns / 1e9) for each in memory_s),
        "predicted_bytes": remat.predict_traffic(graph, plan).bytes,
        "largest": [[k.backward, dict(k.reads), dict(k.writes)] for k in most],
    }


def _arithmetic(code: PassCode) -> list[int]:
    """Counts, for each launch, the numbers that its Triton code computes, reads left out."""

    def operations(source: str) -> int:
        numbers = [int(n) for n in re.findall(r"^\s*(?:[xy]numel|r\d_numel) = (\d+)", source, re.MULTILINE)]
        lines = re.findall(r"^\s*tmp\d+ = (?!tl\.(?:load|broadcast_to|full))", source, re.MULTILINE)
        return int(np.prod(numbers, dtype=np.int64)) * len(lines)

    return [sum(operations(code.sources[name]) for name in launched) for launched in code.launched]


def timed(repeats: int = 7) -> Iterator[Row]:
    """Compiles small steps for this CPU, and times them in turns."""
    torch.set_num_threads(1)
    steps: dict[str, tuple[Step, Callable[..., Any]]] = {}
    ours = partial(remat.compile, cost_model=StepTime(device="cpu"))
    ways: dict[str, Callable[..., Any]] = {DEFAULT: torch_compile, OURS: ours}
    for function, (plan, compiled) in product(("botorch", "factors"), ways.items()):
        step = traced(SMALL, function != "botorch")
        steps[f"{function}: {plan}"] = step, compiled(step, dynamic=False)
        steps[f"{function}: {plan}"][1]().backward()
    eager = traced(SMALL, factors=False)
    steps["botorch: eager"] = eager, eager
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, (step, run) in steps.items():
            step.zero_grad()
            begin = time.perf_counter()
            run().backward()
            times[name].append(time.perf_counter() - begin)
    gradients = {name: np.asarray(step.candidates.grad) for name, (step, _) in steps.items()}
    exact = gradients["botorch: eager"]
    for name, gradient in gradients.items():
        off = float(np.abs(gradient - exact).max() / np.abs(exact).max())
        yield {"strategy": name, "cpu_ms": 1e3 * statistics.median(times[name][1:]), "gradient_off": off}


class GpuStep(MeasuredStep):
    """Takes the step of a function under a plan, at the sizes of the paper."""

    def __init__(self, case: None, way: str, limit: int | None) -> None:
        del case, limit  # the way says all
        function, plan = way.split(": ")
        self._device, self._way, self._args, self._autocast = torch.device("cuda"), way, (), False
        self._limits = LIMITS if "limits" in function else {}
        self._model = traced(SIZES, function != "botorch", "cuda")
        if plan == NONE:
            saved = without_checkpoint(remat.capture(self._model, device="cuda"))
            self._step = remat.compile(self._model, plan=saved, dynamic=False)
        elif plan in (EAGER, DEFAULT):
            self._step = self._model if plan == EAGER else torch_compile(self._model, dynamic=False)
        else:
            model = StepTime(device=device_of("cuda")) if plan == OURS else COST_MODELS[plan]
            self._step = remat.compile(self._model, cost_model=model, dynamic=False)

    def first(self) -> Row:
        """Compiles the step, and returns what it computes."""
        with config.patch(self._limits):  # pyright: ignore[reportUnknownMemberType]
            return super().first()

    def predicted(self) -> Row:
        """Predicts nothing: `counted` does, for another GPU."""
        return {}


def timed_on_gpu() -> Iterator[Row]:
    """Compiles the steps for a GPU, measures their peaks, and times them in turns."""
    ways = [f"botorch: {plan}" for plan in (EAGER, NONE, DEFAULT, "byte-traffic, aggressive", OURS)]
    ways += [f"factors: {plan}" for plan in (NONE, DEFAULT, OURS)] + [f"factors, limits off: {OURS}"]
    with ended_at_last() as workers:
        rows = started([Worker(None, way, None, GpuStep) for way in ways], workers)
        for row in timed_in_turns(rows, workers):
            facts = {name: row.get(name) for name in ("peak_bytes", "gradient_norm", "error")}
            yield {"strategy": row["way"], "gpu_ms": 1e3 * row["step_s"] if row["step_s"] else None, **facts}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how the best step compares with no checkpoint, beside the published ratios."""
    of = {row["case"]: row for row in rows if "ms" in row}
    if (none := of.get(f"botorch: {NONE}")) is None:
        return []
    facts = ("peak_bytes", "moved_bytes", "ms")
    lines = [(case, *(f"{row[fact] / none[fact]:.3f}" for fact in facts)) for case, row in of.items()]
    return [
        table(("beside no checkpoint", "peak", "bytes moved", "time"), [*lines, ("published", "0.178", "", "0.140")])
    ]


TIMED = {"timed on this CPU": timed, "timed on a GPU": timed_on_gpu}

TABLE = ResultTable(
    "experiments.bench.acquisition",
    "The acquisition function qEHVI, kernel by kernel",
    cases=lambda: [*(f"{function}: {plan}" for function, plans in PLANS.items() for plan in plans), *TIMED],
    measure=lambda case: TIMED[case]() if case in TIMED else counted(case),
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
