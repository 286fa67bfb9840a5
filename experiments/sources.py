"""Counts, models and times the small functions of which the sources print figures: `python -m experiments.sources`.

`counted` rows have the published size (2^25 elements a tensor) and an A100 of 40 GB, without a GPU: TorchInductor
schedules Triton kernels for tensors without contents, and nothing runs. `accesses` are the bytes that kernels read and
write, divided by the bytes of the argument. `saved` is what is kept between the passes besides the arguments, and
`held` includes argument and output; both are divided in the same way. A modelled time
(`remat.predict.time.modelled_time`) adds up kernels: each takes the time of its bytes at the reached bandwidth or of
its arithmetic at the reached rate, whichever is longer, and a launch.

`timed` rows are of 2^22 elements on this machine; for EvoNorm, whose post does not name its GPU, of shape (8, 32, 64,
64). They are medians of steps; all strategies take turns, and their outputs and gradients are compared with eager
mode's.

GeLU: the paper, Table 1. There, the activations of the rows with and without checkpointing are exchanged, as section
2.2 shows. The paper does not print its GeLU, and ours has fewer operators. Cosines: the paper's f1 (section 2.3), and
the post. Mask: the paper's f2; the random numbers are saved by a plan made by hand, as autograd keeps the mask.
EvoNorm: the post, which does not say which; ours is EvoNorm-S0 of 32 groups. "Everything recomputed" saves nothing but
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import remat
from costmodels import ByteTraffic
from experiments.cover import cosines
from experiments.models.save_everything import SaveEverything, SaveLeast, plan_of
from experiments.models.workloads import EvoNorm
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable, Row
from remat.answer.plan_facts import PlanFacts
from remat.predict.time import modelled_time
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.measure.training_step import measure as measured_steps

NOTHING, EVERYTHING, PYTORCH, OURS = "nothing recomputed", "everything recomputed", "PyTorch", "ours"
NUMBERS, EAGER = "random numbers saved", "eager"
GPU = "a100-40gb"


def gelu(x: Tensor) -> Tensor:
    """Computes the tanh GeLU; of its intermediate values autograd keeps x * x, 0.5 * x, the tanh, and that plus one."""
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * (x * x * x))))


def dropout(x: Tensor) -> Tensor:
    """Computes the function `f2` of the paper, section 2.3."""
    mask = torch.rand_like(x) < 0.5
    return x * mask


@dataclass(frozen=True)
class Source:
    """Describes what a source prints of a function.

    Attributes:
        function: makes it.
        arguments: how many; the first one requires a gradient.
        published: figures by strategy, under the names of the rows.
        shape: of an argument when it is timed; when it is counted, arguments have 2^25 elements.
    """

    function: Callable[[], Callable[..., Any]]
    arguments: int
    published: Mapping[str, Mapping[str, float]]
    shape: tuple[int, ...] = (2**22,)
    strategies: Sequence[str] = field(default=(NOTHING, EVERYTHING, PYTORCH, OURS))


SOURCES = {
    "GeLU": Source(lambda: gelu, 1, {NOTHING: {"accesses": 13, "ms": 1.33}, EVERYTHING: {"accesses": 5, "ms": 0.5}}),
    "cosines": Source(
        lambda: cosines, 4, {NOTHING: {"accesses": 11}, EVERYTHING: {"accesses": 11}, OURS: {"accesses": 9}}
    ),
    "mask": Source(
        lambda: dropout, 1, {NUMBERS: {"held": 3.0}, OURS: {"held": 2.25}}, strategies=(NUMBERS, NOTHING, PYTORCH, OURS)
    ),
    "EvoNorm": Source(
        lambda: EvoNorm(32, 32),
        1,
        {EAGER: {"ms": 6.618}, EVERYTHING: {"ms": 2.146}, OURS: {"ms": 1.474}},
        (8, 32, 64, 64),
        (EAGER, NOTHING, EVERYTHING, PYTORCH, OURS),
    ),
}


def plans_of(
    function: Callable[..., Any], args: Sequence[Tensor], device: str | None
) -> tuple[remat.Graph, dict[str, remat.Plan]]:
    """Captures the joint graph of a function, and finds the plans of the strategies."""
    ((graph, torchs),) = torchs_plans(function, *args, budgets=(1.0,), device=device)
    drawn = [graph.names[v] for v in np.flatnonzero(graph.random) if graph.dtypes[v] == "float32" and graph.shapes[v]]
    plans = {
        NOTHING: plan_of(graph, SaveEverything()),
        EVERYTHING: plan_of(graph, SaveLeast()),
        PYTORCH: torchs[1.0],
        OURS: plan_of(graph, ByteTraffic()),
    }
    if drawn:
        plans[NUMBERS] = remat.Choice.from_saved(graph, np.isin(graph.names, drawn[-1:])).plan(graph)
    return graph, plans


def counted(source: Source, elements: int = 2**25, device: str | None = GPU) -> Iterator[Row]:
    """Has Inductor schedule each plan for the GPU, from tensors without contents; or for this CPU."""
    with FakeTensorMode():
        args = [torch.randn(elements, requires_grad=i == 0) for i in range(source.arguments)]
    graph, plans = plans_of(source.function(), args, device)
    schedule, one = Scheduled(graph, device=device), args[0].nbytes
    for name in source.strategies:
        plan = plans[name]
        kernels, saved = schedule.kernels(plan), PlanFacts.of(graph, plan).saved_bytes
        backend = "triton" if device else "cpu"
        predicted = remat.predict_traffic(graph, plan, backend=backend)
        yield {
            "strategy": name,
            "accesses": sum(kernel.bytes for kernel in kernels) / one,
            "predicted_accesses": predicted.bytes / one,
            "saved": saved / one,
            "held": 2 + saved / one,
            "kernels": len(kernels),
            "modelled_ms": modelled_time(graph, predicted.kernels, device or GPU).ns / 1e6,
            "published": source.published.get(name, {}),
        }


def timed(source: Source, repeats: int = 20, shape: tuple[int, ...] = ()) -> Iterator[Row]:
    """Times a step of each strategy on this machine, in turns."""
    torch.manual_seed(0)
    function = source.function()
    args = [torch.randn(shape or source.shape, requires_grad=i == 0) for i in range(source.arguments)]
    _, plans = plans_of(function, args, None)
    ways: dict[str, Callable[..., Any]] = {EAGER: lambda step: step}
    ways |= {
        name: partial(remat.compile, plan=plans[name], dynamic=False) for name in source.strategies if name != EAGER
    }
    gradient = torch.randn(args[0].shape)
    frame = measured_steps(function, *args, strategies=ways, loss=partial(_Handing.apply, gradient), repeats=repeats)
    for row in frame.to_dict("records"):
        if row["error"]:
            raise RuntimeError(f"{row['strategy']}: {row['error']}")
        if row["strategy"] in source.strategies:
            published = source.published.get(row["strategy"], {})
            yield {"strategy": row["strategy"], "ms": 1e3 * row["median_s"], "published": published}


class _Handing(torch.autograd.Function):
    """A loss of which nothing is computed: its gradient is given, so that what is timed are a function's two passes."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, output: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        del gradient
        return None, ctx.gradient


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Puts the figures beside the published ones."""
    lines: list[tuple[object, ...]] = []
    for name in SOURCES:
        own = [row for row in rows if row["case"] == f"{name}, timed"]
        first = own[0]["ms"] if own else 0.0
        lines += [(name, row["strategy"], f"{row['ms']:.2f}", f"{row['ms'] / first:.2f}") for row in own]
    yield table(("timed", "strategy", "ms", "of the first row"), lines)


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    **{f"{name}, counted": partial(counted, source) for name, source in SOURCES.items() if name != "EvoNorm"},
    **{f"{name}, timed": partial(timed, source) for name, source in SOURCES.items()},
}
TABLE = ResultTable(
    "experiments.sources",
    "What the sources print, counted, modelled and timed",
    cases=lambda: MEASUREMENTS,
    measure=lambda name: MEASUREMENTS[name](),
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
