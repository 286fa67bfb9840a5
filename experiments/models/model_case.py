"""Describes the small models that tests train, and makes them of module classes or functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class ModelCase:
    """Describes a small model and its inputs.

    Attributes:
        name: what the case is about.
        build: makes the model; random weights come from the caller's seed.
        inputs: makes a batch.
        dynamic: compile with symbolic sizes.
        tolerance: relative and absolute, against eager; float32 rounding unless there is a reason.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: bool | None = None
    tolerance: float = 1e-4


def case_in(
    cases: dict[str, ModelCase], name: str, *shape: int, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a decorator that adds a module class, or a function of a linear layer's output, to the cases.

    Args:
        cases: where the case is added, by its name.
        name: what the case is about.
        shape: of the batch, unless `inputs` is among the options; the last number is the width of the linear layer.
        options: other attributes of `ModelCase`.
    """

    def register(subject: Callable[..., Any]) -> Callable[..., Any]:
        build = subject if isinstance(subject, type) else functools.partial(_Function, subject, shape[-1])
        inputs = options.pop("inputs", None) or functools.partial(_floats, shape)
        cases[name] = ModelCase(name, build, inputs, **options)
        return subject

    return register


class _Function(nn.Module):
    """Applies a function after a linear layer, so that there are parameters to train."""

    def __init__(self, function: Callable[[Tensor], Any], width: int) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def _floats(shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (torch.randn(shape),)
