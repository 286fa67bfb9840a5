"""Applies regions of Meta's `torch_remat` to the modules of a model, without a change of its source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from remat.errors import NotInstalled
from remat.pytorch.seam.torch_names import tree_leaves
from remat.words import pip_install

Replace = Callable[[str, Callable[[Any], Any]], None]
"""Replaces the `forward` method of the module with a path by what a function makes of it."""


def apply_with_torch_remat(replace: Replace, layers: Iterable[str], saved: Iterable[str]) -> None:
    """Checkpoints layers with `torch_remat`, and saves regions inside.

    Args:
        replace: changes the model.
        layers: the paths of the layers that run again.
        saved: the paths of the regions to save, none of them inside of another one.

    Raises:
        NotInstalled: `torch_remat` is missing.
    """
    if find_spec("torch_remat") is None:
        raise NotInstalled(f"apply_torch_remat needs torch_remat: {pip_install('torch-remat')}")
    torch_remat: Any = import_module("torch_remat")

    def save(forward: Any, name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = torch_remat.region(forward, name, recompute=False)(*args, **kwargs)
            # The code around the module reads the result, and torch_remat cannot see that.
            torch_remat.recompute_needs_tensor(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)))
            return result

        return run

    def repeat(forward: Any, name: str) -> Any:
        checkpoint = torch_remat.checkpoint(region_name=name, recompute_state_hooks=(_Generators(),))

        def run(*args: Any, **kwargs: Any) -> Any:
            return checkpoint(forward)(*args, **kwargs)

        return run

    for name in saved:
        replace(name, lambda forward, name=name: save(forward, name))
    for name in layers:
        replace(name, lambda forward, name=name: repeat(forward, name))


class _Generators:
    """Restores torch's default generators, so that a recomputed dropout draws the same numbers."""

    def snapshot(self) -> tuple[Tensor, list[Tensor]]:
        on_gpus: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return torch.get_rng_state(), on_gpus

    def restore(self, state: tuple[Tensor, list[Tensor]]) -> None:
        torch.set_rng_state(state[0])
        if state[1]:
            torch.cuda.set_rng_state_all(state[1])
