"""Runs a model without side effects."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remat.pytorch.seam.fakes import is_fake, owned
from remat.pytorch.seam.torch_names import fork_rng, is_traceable_wrapper_subclass


@contextmanager
def put_back(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[None]:
    """Restores what forward passes change, also after an error.

    It restores the contents of the module's parameters and buffers and of the arguments, and the random number
    generators of torch, numpy and Python.

    Args:
        model_or_fn: a module, a method of one, or a function (whose closure is not searched).
    """
    tensors = [part for tensor in owned(model_or_fn, (args, kwargs)) for part in _parts(tensor)]
    tracked = [tensor for tensor in tensors if not tensor.is_inference() and not is_fake(tensor)]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tracked]
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with fork_rng():
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        with torch.no_grad():
            for tensor, version, content in before:
                # Batch normalisation updates its statistics without counting a version.
                if tensor._version != version or not _equal(tensor, content):
                    tensor.copy_(content)


# A jagged tensor has values and offsets in separate storages.
def _parts(tensor: Tensor) -> list[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _equal(tensor: Tensor, content: Tensor) -> bool:
    try:
        return torch.equal(tensor, content)
    except NotImplementedError:  # for example for sparse tensors, which are then always restored
        return False
