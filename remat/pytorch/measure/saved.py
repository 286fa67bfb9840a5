"""Measures the memory of a step: what autograd saves between the passes, and the peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from remat.pytorch.seam.allocations import allocations
from remat.pytorch.seam.fakes import owned


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Runs `call()` and returns the peak of tensor bytes on `device`, less those that were allocated before.

    On CUDA, this is the figure of torch's caching allocator for this process. On CPUs, it is the running sum of the
    allocations that torch's CPU allocator reports to the profiler. Neither includes memory that a library keeps for
    itself, nor rounding to pages.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(allocations(call), initial=0))


@dataclass(frozen=True)
class SavedTensor:
    """Describes a tensor that autograd saves."""

    # of the first tensor, if several share a storage.
    shape: tuple[int, ...]
    dtype: str
    bytes: int  # of the storage that it keeps alive, which may be larger than the tensor


@dataclass(frozen=True)
class Saved:
    """Lists the memory that one forward pass saves for the backward pass."""

    # one tensor per distinct storage, in the order in which autograd saves them, without the storages of parameters,
    # buffers and arguments.
    each: tuple[SavedTensor, ...]

    @property
    def tensors(self) -> int:
        return len(self.each)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.each)


def saved_activations(
    step: Callable[..., Any], model: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[Any, Saved]:
    """Runs `step(*args, **kwargs)` and records what autograd saves; returns the result of the step, and the record.

    Args:
        model: the module of the step, whose parameters and buffers do not count; or a function.
        args, kwargs: arguments of the step; their storages do not count either.
    """
    alive = {_address(tensor) for tensor in owned(model, (args, kwargs))}
    kept: dict[int, SavedTensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        address, size = _address(tensor), tensor.untyped_storage().nbytes()
        if address not in alive:
            kept.setdefault(address, SavedTensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), size))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
        result = step(*args, **kwargs)
    return result, Saved(tuple(kept.values()))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
