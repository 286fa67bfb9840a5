"""Lets TorchInductor schedule a training step without writing its kernels, which takes most of the time on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from experiments.paper.table import WrongStep
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.measure.step_values import Outcome, outcome
from remat.pytorch.measure.training_step import mean_square
from remat.pytorch.seam.restore import put_back

Step = Callable[..., Any]


@dataclass(frozen=True)
class Unwritten:
    """Says what a step would launch, move and save, and what it computes.

    Attributes:
        kernels: in order, of both passes.
        saved_bytes: kept between the passes.
        outcome: outputs, loss, gradients and buffers.
    """

    kernels: tuple[InductorKernel, ...]
    saved_bytes: int
    outcome: Outcome

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written by all kernels, by Inductor's count."""
        return sum(kernel.bytes for kernel in self.kernels)


def unwritten(step: Step, model: nn.Module, args: tuple[Tensor, ...]) -> Unwritten:
    """Has Inductor schedule a step, and then runs its two graphs operator by operator.

    Args:
        step: compiled, and never called.
        model: the module behind it; left as it was.
        args: what to call it with.
    """
    kernels: list[InductorKernel] = []
    torch.compiler.reset()
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dynamo_pgo force disabled")  # it is one of the caches
        with put_back(model, args, {}):
            _, saved = saved_activations(step, model, *args)
        return Unwritten(tuple(kernels), saved.bytes, computed(step, model, args))


def computed(step: Step, model: nn.Module, args: tuple[Tensor, ...]) -> Outcome:
    """Computes one step from the state that the model is in, and puts that state back."""
    with put_back(model, args, {}):
        return outcome(step, model, args, mean_square)


def compared(seen: Outcome, expected: Outcome, tolerance: float) -> float:
    """Returns the largest relative error of what a step computes.

    Raises:
        WrongStep: it is above the tolerance.
    """
    error, where = seen.difference(expected)
    if not error <= tolerance:
        raise WrongStep(f"{where} is off by {error:.2g} from a step that recomputes nothing, above {tolerance:g}")
    return error
