"""What a training step really keeps between its forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Saved:
    """Memory that one forward pass keeps for the backward pass.

    Attributes:
        tensors: distinct storages, those of parameters, buffers and arguments not counted.
        bytes: their total size.
    """

    tensors: int
    bytes: int


def saved_activations(step: Callable[..., Any], model: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[Any, Saved]:
    """Runs `step(*args, **kwargs)` and counts what autograd packs away.

    Args:
        step: the model, compiled or not.
        model: the module behind it, whose parameters and buffers do not count.
        args, kwargs: what to call it with; their storages do not count either.

    Returns:
        the result of the step, and the count.
    """
    owned = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    alive = {_address(tensor) for tensor in owned if isinstance(tensor, Tensor)}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if _address(tensor) not in alive:
            kept[_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, _unchanged), torch.enable_grad():
        result = step(*args, **kwargs)
    return result, Saved(len(kept), sum(kept.values()))


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
