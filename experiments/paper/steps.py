"""Measures training steps of an operator or a small module under strategies, as everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import remat
from costmodels import ByteTraffic
from experiments.accuracy.peak_error import SaveEverything, solved
from experiments.demo import SaveLeast
from experiments.paper.table import Figures, Setting, Unavailable, WrongStep
from remat.pytorch.measure.step_strategies import NOTHING_RECOMPUTED, Strategy, usual_strategies
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.measure.training_step import Loss, mean_square, measure
from remat.pytorch.seam.fakes import owned

EAGER = "eager"
NOTHING = "nothing recomputed"
EVERYTHING = "everything recomputed"
PYTORCH = "PyTorch's own"
OURS = "ours, minimum cut"


@dataclass(frozen=True)
class MeasuredStep:
    """Holds what a step under one strategy took: see `remat.pytorch.measure.training_step`.

    Attributes:
        ms: the median wall time of forward and backward pass, with what Python takes to launch them.
        kernels_ms: what the device spends in kernels alone, a step; None on the CPU.
        saved_bytes: kept between the passes; parameters, buffers and arguments apart.
        held_bytes: alive when the forward pass is over: what is kept, the output, parameters, buffers, arguments.
        peak_bytes: the most that is held above what was held before the step.
        moved_bytes: by Inductor's own count; None where it compiles nothing.
    """

    ms: float
    kernels_ms: float | None
    saved_bytes: int
    held_bytes: int
    peak_bytes: int
    moved_bytes: int | None


def measured(
    model: Callable[..., Any],
    args: Sequence[Any],
    ways: Mapping[str, Strategy],
    setting: Setting,
    *,
    loss: Loss,
    tolerance: float = 1e-2,
) -> dict[str, MeasuredStep]:
    """Measures steps under each strategy, in one run: they take turns.

    Raises:
        WrongStep: a strategy failed, or its outputs or gradients are not eager's.
    """
    steps: dict[str, Callable[..., Any]] = {}

    def noted(name: str, strategy: Strategy, model: Callable[..., Any]) -> Callable[..., Any]:
        steps[name] = strategy(model)
        return steps[name]

    noting = {name: partial(noted, name, strategy) for name, strategy in ways.items()}
    found: dict[str, MeasuredStep] = {}
    for name, row in measured_rows(model, args, noting, setting, loss=loss, tolerance=tolerance).items():
        step = steps[name]
        found[name] = MeasuredStep(
            ms=1e3 * row["median_s"],
            kernels_ms=_kernels_ms(partial(_train, step, model, args, loss), setting),
            saved_bytes=row["saved_bytes"],
            held_bytes=held_bytes(step, model, args),
            peak_bytes=row["peak_bytes"],
            moved_bytes=row["moved_bytes"],
        )
    return found


def measured_rows(
    model: Callable[..., Any],
    args: Sequence[Any],
    ways: Mapping[str, Strategy],
    setting: Setting,
    *,
    loss: Loss = mean_square,
    tolerance: float = 1e-2,
) -> dict[str, dict[str, Any]]:
    """Measures as `remat.pytorch.measure.training_step`: a row by strategy, None where it has no figure.

    Raises:
        WrongStep: a strategy failed, or its outputs or gradients are not eager's.
    """
    frame = measure(model, *args, strategies=dict(ways), loss=loss, repeats=setting.repeats, tolerance=tolerance)
    wrong = [f"{name}: {error}" for name, error in zip(frame["strategy"], frame["error"], strict=True) if error]
    if wrong:
        raise WrongStep("; ".join(wrong))
    return {row["strategy"]: row for row in frame.astype(object).where(frame.notna(), None).to_dict(orient="records")}


def strategies() -> dict[str, Strategy]:
    """Lists the strategies of the sources' tables, which go through TorchInductor, and eager mode."""
    known = usual_strategies((), dynamic=False)
    return {
        EAGER: known["eager"],
        NOTHING: known[NOTHING_RECOMPUTED],
        EVERYTHING: checkpointed,
        PYTORCH: known["PyTorch"],
        OURS: partial(remat.compile, cost_model=ByteTraffic(), dynamic=False),
    }


def checkpointed(model: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles naive checkpointing: the backward pass runs the whole forward pass again."""

    def step(*args: Any) -> Any:
        return checkpoint(model, *args, use_reentrant=False)

    return torch.compile(step, dynamic=False)


def plans(
    model: Callable[..., Any], args: Sequence[Any], device: str | None = None
) -> tuple[remat.Graph, dict[str, remat.Plan]]:
    """Captures the joint graph, for a device as in `remat.capture`, and finds the plans of the strategies."""
    ((graph, torchs),) = torchs_plans(model, *args, budgets=(1.0,), device=device)
    return graph, {
        NOTHING: solved(graph, SaveEverything()),
        EVERYTHING: solved(graph, SaveLeast()),
        PYTORCH: torchs[1.0],
        OURS: solved(graph, ByteTraffic()),
    }


def handing(tangents: Tensor) -> Loss:
    """Makes a loss of which nothing is computed: its gradient is given.

    What an operator is measured by are its own two passes. A loss such as the mean of squares reads and writes
    its output a dozen times, more than GeLU itself.
    """
    return partial(_Handing.apply, tangents)


class _Handing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tangents: Tensor, output: Tensor) -> Tensor:
        ctx.tangents = tangents
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        del gradient
        return None, ctx.tangents


def held_bytes(step: Callable[..., Any], model: Callable[..., Any], args: Sequence[Any]) -> int:
    """Counts the bytes alive when the forward pass is over, each storage once: the post's measure of memory."""
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
        result = step(*args)
    for tensor in (*owned(model, args), *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))):
        pack(tensor)
    return sum(held.values())


def _train(step: Callable[..., Any], model: Callable[..., Any], args: Sequence[Any], loss: Loss) -> None:
    for tensor in owned(model, args):
        tensor.grad = None
    loss(step(*args)).backward()


def _kernels_ms(run: Callable[[], None], setting: Setting) -> float | None:
    """Measures kernels by torch's profiler; None on the CPU, which has nothing beside the step itself."""
    if setting.device != "cuda":
        return None
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(setting.repeats):
            run()
        torch.cuda.synchronize()
    return kernels_us(profile.key_averages()) / 1e3 / setting.repeats or None


def kernels_us(events: Iterable[Any]) -> float:
    """Sums the time in kernels, copies included, that the events of a profile give for the device.

    A span that torch marks on the device's timeline covers kernels that are counted by themselves; and while the
    host waits for the device, or a stream for an event, nothing of ours runs.
    """
    return sum(
        event.self_device_time_total
        for event in events
        if event.device_type == DeviceType.CUDA
        and not event.is_user_annotation
        and not event.key.endswith((" Sync", " Wait Event"))
    )


def torchscript(setting: Setting) -> Figures:
    """Refuses: TorchScript, which the post compares with, is gone."""
    del setting
    raise Unavailable("TorchScript with NVFuser is no longer a part of PyTorch")
