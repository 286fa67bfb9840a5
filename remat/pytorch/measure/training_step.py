"""Measures a training step: bytes moved, kernels, memory saved and held, time."""

# pandas ships partial types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, fx

from remat.answer.option_text import label
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.answer.solver import Solver
from remat.errors import InvalidOption, UnsupportedTorch
from remat.problem.costmodel import CostModel
from remat.pytorch.inductor.scheduled import InductorKernel, counting_kernels
from remat.pytorch.measure.saved import Saved, peak_bytes, saved_activations
from remat.pytorch.measure.step_values import Outcome, first_line, outcome, verdicts
from remat.pytorch.run.compile import compile
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.reachable import put_back
from remat.pytorch.seam.torch_names import CustomPartitionerFn, torch_compile, tree_leaves
from remat.pytorch.seam.torch_partitioner import SplitBy, default_partition, torchs_partition
from remat.pytorch.seam.torch_settings import fresh_compilation, nothing_donated, partitioner_settings

if TYPE_CHECKING:
    import pandas as pd

Strategy: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Converts a model to a step that is called like the model."""

NOTHING_RECOMPUTED = "autograd's own saves"
"""The compiled strategy that runs every operator of the forward pass once."""

_OTHER_SETTINGS = {
    "PyTorch, aggressive_recomputation=True": {"aggressive_recomputation": True},
    "PyTorch, activation_memory_budget=0.5": {"activation_memory_budget": 0.5},
}

Loss = Callable[[Any], Tensor]
"""Converts the output of a model to the scalar that is differentiated."""

# The columns of a comparison of strategies.
_DTYPES = {
    "strategy": "str",
    **dict.fromkeys(("moved_bytes", "forward_bytes", "backward_bytes", "kernels"), "Int64"),
    **dict.fromkeys(("saved_tensors", "saved_bytes", "peak_bytes"), "Int64"),
    **dict.fromkeys(("median_s", "fastest_s", "slowest_s", "first_s", "relative_error"), "float64"),
    "compared_with": "str",
    "error": "str",
}


def usual_strategies(
    cost_models: str | CostModel | Iterable[str | CostModel] = (DEFAULT_STEP_MODEL,),
    solver: str | Solver | None = None,
    **torch_compile_kwargs: Any,
) -> dict[str, Strategy]:
    """Returns the strategies to compare by name: eager, autograd's own saves, PyTorch in three settings, and ours.

    All but eager are compiled by TorchInductor, so they differ only in what is saved.
    """
    listed = [cost_models] if isinstance(cost_models, (str, CostModel)) else list(cost_models)
    models = [find_costmodel(model) if isinstance(model, str) else model for model in listed]
    with_partitioner = partial(_compile_with, torch_compile_kwargs)
    return {
        "eager": lambda model: model,
        NOTHING_RECOMPUTED: partial(with_partitioner, SplitBy(default_partition, f"remat: {NOTHING_RECOMPUTED}")),
        "PyTorch": partial(torch_compile, **torch_compile_kwargs),
        **{
            name: partial(with_partitioner, SplitBy(partial(_partition_with, settings), f"remat: {name}"))
            for name, settings in _OTHER_SETTINGS.items()
        },
        **{
            f"remat: {label(model)}": partial(compile, cost_model=model, solver=solver, **torch_compile_kwargs)
            for model in models
        },
    }


def _compile_with(
    kwargs: dict[str, Any], partitioner: CustomPartitionerFn, model: Callable[..., Any]
) -> Callable[..., Any]:
    options = {**kwargs.get("options", {}), "custom_partitioner_fn": partitioner}
    return torch_compile(model, **{**kwargs, "options": options})


# The settings of `torch._functorch.config` apply only while the partitioner runs.
def _partition_with(
    settings: Mapping[str, Any], gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    with partitioner_settings(**settings):
        return torchs_partition(gm, joint_inputs, **kwargs)


@dataclass(frozen=True)
class Measured:
    """Holds the measurements of one training step, forward and backward, under one strategy."""

    # Inductor's launches, in order; empty without compilation, as in eager.
    kernels: tuple[InductorKernel, ...]
    saved: Saved
    peak_bytes: int  # above the memory before the step, with gradients: see `remat.pytorch.measure.saved`
    first_s: float  # wall time of the first step, which compiles
    times_s: tuple[float, ...] = ()  # wall times of the later steps, until the device has finished

    def row(self) -> dict[str, Any]:
        """Returns this step's cells of the table of `measure`, by column; only those that were measured."""
        row: dict[str, Any] = {"saved_tensors": self.saved.tensors, "saved_bytes": self.saved.bytes}
        row |= {"peak_bytes": self.peak_bytes, "first_s": self.first_s}
        if self.kernels:
            row["kernels"] = len(self.kernels)
            row["forward_bytes"] = sum(kernel.bytes for kernel in self.kernels if not kernel.backward)
            row["moved_bytes"] = sum(kernel.bytes for kernel in self.kernels)
            row["backward_bytes"] = row["moved_bytes"] - row["forward_bytes"]
        if self.times_s:
            row["median_s"] = statistics.median(self.times_s)
            row["fastest_s"], row["slowest_s"] = min(self.times_s), max(self.times_s)
        return row


def mean_square(output: Any) -> Tensor:
    """Returns a loss: a single scalar output, or else the sum of the mean squares of all outputs with gradients."""
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not outputs:
        raise InvalidOption("nothing that the model returns requires a gradient: there is no step to measure")
    if len(outputs) == 1 and not outputs[0].dim() and outputs[0].is_floating_point():
        return outputs[0]
    real = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    return torch.stack([output.float().square().mean() for output in real]).sum()


def measure_step(
    step: Callable[..., Any], model: Callable[..., Any], /, *args: Any, loss: Loss = mean_square, repeats: int = 5
) -> Measured:
    """Compiles a step from scratch and measures it.

    Args:
        model: the module of the step, or the function. Parameters, their gradients, buffers, arguments and random
            number generators are restored.
    """
    torch.compiler.reset()
    run = _TrainingRun(step, model, args, loss)
    with _step_put_back(model, args):
        return replace(run.first(), times_s=tuple(run.seconds() for _ in range(repeats)))


def measure(
    model: Callable[..., Any],
    /,
    *args: Any,
    strategies: Mapping[str, Strategy] | None = None,
    loss: Loss = mean_square,
    repeats: int = 5,
    tolerance: float = 1e-2,
) -> pd.DataFrame:
    """Measures one training step of a model under each strategy, in one run.

    Each strategy compiles, with caches off. Then the strategies take turns, `repeats` times, so that other load on the
    machine affects all of them. Outputs, loss, gradients and buffers of a step must be equal to eager's. Only if the
    model draws random numbers may they differ, because TorchInductor draws other ones: then they must be equal to those
    of a compiled step without recomputation, from the same seed.

    Args:
        model: a module, or a function of tensors that require gradients; it is restored.
        args: its arguments.
        strategies: the strategies by name; the default is `usual_strategies()`, which also takes cost models.
        loss: converts the output to the scalar that is differentiated.
        repeats: the number of timed steps.
        tolerance: the largest allowed difference of a value, relative to its largest element. The default allows half
            precision and sums in another order; a wrong gradient differs by more.

    Returns:
        one row per strategy, in the given order:

        - strategy: the name.
        - moved_bytes, forward_bytes, backward_bytes: bytes that all kernels read and write by Inductor's count, not by
          hardware counters.
        - kernels: generated kernels, and library calls; on a CPU one function may contain several kernels.
        - saved_tensors, saved_bytes: saved between the passes, without parameters, buffers and arguments.
        - peak_bytes: the peak of memory during the step above the memory before it.
        - median_s, fastest_s, slowest_s: times of a step, until the device has finished.
        - first_s: time of the first step, which compiles.
        - relative_error: the largest relative error of all results of the step.
        - compared_with: the reference of this error.
        - error: why there is no measurement, or which result is wrong; otherwise "".

    Raises:
        UnsupportedTorch: the installed torch lacks a function that measuring uses.
    """
    if not 0 < tolerance < float("inf"):
        raise InvalidOption(f"tolerance must be a positive number, as a share of a value's size, got {tolerance!r}")
    torch.compiler.reset()
    chosen = usual_strategies() if strategies is None else strategies
    runs = {name: _TrainingRun(strategy(model), model, args, loss) for name, strategy in chosen.items()}
    measured: dict[str, Measured] = {}
    outcomes: dict[str, Outcome] = {}
    errors: dict[str, str] = {}
    with _step_put_back(model, args):
        for name, run in runs.items():
            try:
                with _step_put_back(model, args):
                    measured[name] = run.first()
                outcomes[name] = run.outcome()
            except UnsupportedTorch:
                raise
            except Exception as error:  # a failure is a result, too: PyTorch's own strategies fail on some models
                measured.pop(name, None)
                errors[name] = first_line(error)
        judged = _judged(_TrainingRun(model, model, args, loss), outcomes, tolerance)
        times: dict[str, list[float]] = {name: [] for name in measured}
        for _ in range(repeats):
            for name, seconds in times.items():
                seconds.append(runs[name].seconds())
    rows = [
        {"strategy": name, "error": errors[name]}
        if name in errors
        else {"strategy": name, **replace(measured[name], times_s=tuple(times[name])).row(), **judged[name]}
        for name in runs
    ]
    import pandas as pd

    return pd.DataFrame(rows, columns=list(_DTYPES)).astype(_DTYPES)


def _judged(eager: _TrainingRun, outcomes: Mapping[str, Outcome], tolerance: float) -> dict[str, dict[str, Any]]:
    def nothing_recomputed() -> Outcome:
        step = usual_strategies()[NOTHING_RECOMPUTED](eager.model)
        with nothing_donated():
            return replace(eager, step=step).outcome()

    return verdicts(outcomes, eager.outcome, (NOTHING_RECOMPUTED, nothing_recomputed), tolerance)


@dataclass(frozen=True)
class _TrainingRun:
    step: Callable[..., Any]
    model: Callable[..., Any]
    args: tuple[Any, ...]
    loss: Loss

    # The caller restores what the steps change.
    def first(self) -> Measured:
        start = time.perf_counter()
        with counting_kernels() as kernels, fresh_compilation(), torch.enable_grad():
            self._train()
        first_s = time.perf_counter() - start
        # Without the step's result, which would keep its graph alive.
        saved = saved_activations(self.step, self.model, *self.args)[1]
        if self._device().type == "cuda":
            self._train()  # cuBLAS keeps what it allocates in the first steps; later steps do not allocate it
        self._forget_gradients()
        return Measured(tuple(kernels), saved, peak_bytes(self._train, self._device()), first_s)

    # Restores all state.
    def outcome(self) -> Outcome:
        with _step_put_back(self.model, self.args), fresh_compilation():
            return outcome(self.step, self.model, self.args, self.loss)

    def seconds(self) -> float:
        self._forget_gradients()
        self._wait()
        start = time.perf_counter()
        self._train()
        self._wait()
        return time.perf_counter() - start

    def _train(self) -> None:
        with torch.enable_grad():
            self._forget_gradients()
            self.loss(self.step(*self.args)).backward()

    def _forget_gradients(self) -> None:
        for tensor in owned(self.model, self.args):
            if tensor.is_leaf:
                tensor.grad = None

    def _device(self) -> torch.device:
        devices = [tensor.device for tensor in owned(self.model, self.args)]
        return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))

    def _wait(self) -> None:
        if self._device().type == "cuda":
            torch.cuda.synchronize(self._device())


# Restores contents, gradients, and random number generators.
@contextmanager
def _step_put_back(model: Callable[..., Any], args: tuple[Any, ...]) -> Generator[None]:
    gradients = [(tensor, tensor.grad) for tensor in owned(model, args) if tensor.is_leaf]
    try:
        with put_back(model, args, {}):
            yield
    finally:
        for tensor, gradient in gradients:
            tensor.grad = gradient
