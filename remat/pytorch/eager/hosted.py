"""Keeps values of a checkpointed region on the host between its two runs.

Torch keeps a policy's saved values in a store of its own, which hooks on saved tensors do not see. So this module keeps
the offloaded values: a mode below torch's copies the results of some operators to the host when they run, and back
where they would run again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor

from remat.pytorch.seam.torch_names import TorchDispatchMode, never_asked_about, tree_flatten, tree_unflatten


class Hosted:
    """Holds the values of one checkpointed call that are on the host.

    Args:
        results: position of an operator in the region -> its offloaded results. Its other results are kept.
        kept_positions: positions of the operators whose results torch keeps: they do not run again.
    """

    def __init__(self, results: Mapping[int, Container[int]], kept_positions: Container[int]) -> None:
        self._results, self._kept = results, kept_positions
        self._contents: dict[int, tuple[list[tuple[Any, torch.device | None]], Any]] = {}

    def forward(self) -> TorchDispatchMode:
        return _Mode(self)

    def recomputation(self) -> TorchDispatchMode:
        return _Mode(self, self._kept)

    def result(self, position: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator, or copies the result that it had in the forward pass back from the host."""
        if position in self._contents:
            leaves, structure = self._contents[position]
            return tree_unflatten([_to_device(leaf, device) for leaf, device in leaves], structure)
        result = func(*args, **kwargs)
        if position in self._results:
            leaves, structure = tree_flatten(result)
            hosted = self._results[position]
            self._contents[position] = [_to_host(leaf, i in hosted) for i, leaf in enumerate(leaves)], structure
        return result


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, hosted: Hosted, skipped: Container[int] = ()) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # an argument without a type
        self._hosted = hosted
        self._positions = (position for position in count() if position not in skipped)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in never_asked_about:
            return func(*args, **(kwargs or {}))
        return self._hosted.result(next(self._positions), func, args, kwargs or {})


# Returns the copy, in pinned memory, and its original device.
def _to_host(leaf: Any, hosted: bool) -> tuple[Any, torch.device | None]:
    if not isinstance(leaf, Tensor):
        return leaf, None
    if not hosted:
        return leaf.detach(), None
    copy = torch.empty_like(leaf, device="cpu", pin_memory=leaf.is_cuda)
    return copy.copy_(leaf, non_blocking=True), leaf.device


def _to_device(copy: Any, device: torch.device | None) -> Any:
    if device is None:
        return copy.detach() if isinstance(copy, Tensor) else copy
    return torch.empty_like(copy, device=device, pin_memory=False).copy_(copy, non_blocking=True)
