"""Measures EvoNorm, the post's example of a normalization without a kernel of its own.

`python -m experiments.paper.evonorm`
"""

from __future__ import annotations

from functools import partial

import torch
import typer

import remat
from experiments.models.workloads import EvoNorm
from experiments.paper import steps
from experiments.paper.measure_table import command
from experiments.paper.steps import EAGER, EVERYTHING, NOTHING, OURS, PYTORCH
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase
from experiments.paper.without_device import FIGURES, fakes, operator_by_operator, scheduled

Shape = tuple[int, int, int, int]

WIDE: Shape = (128, 32, 128, 128)
DEEP: Shape = (128, 2048, 8, 8)
SMALL: dict[Shape, Shape] = {WIDE: (8, 32, 64, 64), DEEP: (8, 2048, 8, 8)}
GROUPS = 32


def measure(strategy: str, shape: Shape, setting: Setting, *, own: Shape | None = None) -> Figures:
    """Measures one strategy at one size, in turns with eager mode."""
    shape = own or (SMALL[shape] if setting.is_small else shape)
    if setting.is_virtual:
        return _without_device(strategy, shape)
    model = EvoNorm(shape[1], GROUPS).to(setting.device)
    x = torch.randn(shape, device=setting.device, requires_grad=True)
    ways = steps.strategies()
    found = steps.measured(
        model, (x,), {name: ways[name] for name in (EAGER, strategy)}, setting, loss=steps.handing(torch.randn_like(x))
    )
    step, eager = found[strategy], found[EAGER]
    figures: dict[str, float | int | str | None] = {
        "step_us": 1e3 * step.ms,
        "kernels_us": None if step.kernels_ms is None else 1e3 * step.kernels_ms,
        "saved_mb": step.saved_bytes / 1e6,
        "peak_mb": step.peak_bytes / 1e6,
    }
    if strategy != EAGER:
        figures["speedup"] = eager.ms / step.ms
    if step.moved_bytes is not None:
        figures["accesses"] = step.moved_bytes / x.nbytes
    if strategy in (PYTORCH, OURS):
        graph, plans = steps.plans(model, (x,))
        figures["predicted_accesses"] = remat.predict_traffic(graph, plans[strategy]).bytes / x.nbytes
    return figures


def _without_device(strategy: str, shape: Shape) -> Figures:
    model, x = fakes(lambda: (EvoNorm(shape[1], GROUPS), torch.randn(shape, requires_grad=True)))
    graph, plans = steps.plans(model, (x,), device=VIRTUAL)
    eager = operator_by_operator(graph, plans[NOTHING])
    step = eager if strategy == EAGER else scheduled(graph, plans[strategy])
    return {
        "accesses": step.bytes / x.nbytes,
        "predicted_accesses": None
        if step is eager
        else remat.predict_traffic(graph, plans[strategy], backend="triton").bytes / x.nbytes,
        "saved_mb": step.saved_bytes / 1e6,
        "peak_mb": step.peak_bytes / 1e6,
        "speedup": None if step is eager else eager.time.ns / step.time.ns,
        **step.figures,
    }


def _cases(shape: Shape, published: dict[str, float]) -> list[TableCase]:
    """Lists cases in the order of the post, then those it lacks; `published` gives a step's time by strategy."""
    eager_us = published[EAGER]
    measures = {name: partial(measure, name, shape) for name in (EAGER, EVERYTHING, OURS)}
    measures |= {"TorchScript": steps.torchscript, NOTHING: partial(measure, NOTHING, shape)}
    measures[PYTORCH] = partial(measure, PYTORCH, shape)
    return [
        TableCase(
            f"{shape}: {name}",
            measured,
            {"step_us": published[name], **({} if name == EAGER else {"speedup": round(eager_us / published[name], 2)})}
            if name in published
            else {},
        )
        for name, measured in measures.items()
    ]


NOTES = """
- The post prints times without a unit and without the device; read as microseconds they fit the bytes that are moved.
  The published speed-ups are its own times divided. It prints neither which EvoNorm nor how many groups: ours is
  EvoNorm-S0, written out in plain PyTorch, with 32 groups, in float32.
- "everything recomputed" is `torch.utils.checkpoint` around the module, compiled; the post's compiler was NVFuser, ours
  is TorchInductor.
- Accesses: bytes that Inductor's scheduler counts, over those of x (the prediction is `remat.predict_traffic`).
- Time of a step: wall time with the launches; kernels alone by torch's profiler, on a GPU. Nothing is computed for
  the loss: the gradient of the output is given. Gradients, those of the parameters included, are compared with
  eager's. Every row is measured in turns with eager mode, which its speed-up is relative to.
- Without a device "eager" is the plan that saves everything, each operator by itself, and its peak is simulated.
- Memory: what autograd keeps, x and parameters apart; the peak is above what was held before the step, gradients
  included (on a CPU: summed from the events of torch's allocator, without what libraries hold).
- Small sizes: (8, 32, 64, 64) and (8, 2048, 8, 8). Times on a CPU are the CPU's.
"""

TABLE = PaperTable(
    name="evonorm",
    title="EvoNorm, forward and backward",
    source="the post, EvoNorm results; a GPU that is not named",
    figures={
        "step_us": "time of a step (us)",
        "kernels_us": "time of its kernels (us)",
        **FIGURES,
        "speedup": "times as fast as eager",
        "accesses": "memory accesses",
        "predicted_accesses": "memory accesses, predicted",
        "saved_mb": "activations, x apart (MB)",
        "peak_mb": "peak memory of a step (MB)",
    },
    cases=[
        *_cases(
            WIDE,
            {
                EAGER: 6617.910861968994,
                EVERYTHING: 2145.9293365478516,
                OURS: 1474,
                "TorchScript": 3630.642890930176,
            },
        ),
        *_cases(
            DEEP,
            {
                EAGER: 1932.8975677490234,
                EVERYTHING: 874.9675750732422,
                OURS: 545,
                "TorchScript": 1140.0103569030762,
            },
        ),
    ],
    notes=NOTES,
)

if __name__ == "__main__":
    typer.run(command(TABLE))
