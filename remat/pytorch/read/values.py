"""Reads what a joint graph's values are: element types, sizes, and whether they can cross between the passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from remat.facts.columns import IntArray, frozen
from remat.pytorch.seam.fakes import hint
from remat.pytorch.seam.torch_names import has_symbolic_shape, torch_functions_disabled

_SYMBOL_BYTES = 8
"""A symbolic integer crosses to the backward pass as a Python number."""


@dataclass(frozen=True, eq=False)
class Values:
    """What n values are.

    Attributes:
        dtypes, shapes, bytes: as in `remat.Graph`.
        elements: (n,) how many a tensor has; 0 for what is none.
        unsaveable: why a value cannot cross from the forward to the backward pass, or None.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: IntArray
    elements: IntArray
    unsaveable: Sequence[str | None]

    @classmethod
    def of(cls, values: Iterable[object]) -> Values:
        """Reads values, fake tensors most of them; models repeat their layers, so few are of a kind of their own."""
        known: dict[tuple[torch.Size, torch.dtype], _Kind] = {}
        kinds: list[_Kind] = []
        with torch_functions_disabled():
            for value in values:
                if not isinstance(value, torch.Tensor):
                    kinds.append(_other(value))
                    continue
                key = value.shape, value.dtype
                if has_symbolic_shape(value):  # and so has no hash
                    kind = _tensor(value)
                elif (kind := known.get(key)) is None:
                    kind = known[key] = _tensor(value)
                kinds.append(kind)
        dtypes, shapes, sizes, elements, unsaveable = zip(*kinds, strict=True) if kinds else [()] * 5
        ints = [frozen(np.array(column, np.int64)) for column in (sizes, elements)]
        return cls(dtypes, shapes, ints[0], ints[1], unsaveable)


class _Kind(NamedTuple):
    dtype: str = ""
    shape: tuple[int, ...] = ()
    bytes: int = 0
    elements: int = 0
    unsaveable: str | None = None


def _tensor(value: torch.Tensor) -> _Kind:
    shape = shape_of(value)
    elements = math.prod(shape)
    return _Kind(str(value.dtype).removeprefix("torch."), shape, elements * value.itemsize, elements)


def _other(value: object) -> _Kind:
    if isinstance(value, torch.SymInt):
        return _Kind("symint", bytes=_SYMBOL_BYTES)
    if isinstance(value, (tuple, list)):
        return _Kind(unsaveable="a tuple: its elements can be saved")
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return _Kind(unsaveable=f"a {type(value).__name__}")
    return _Kind(unsaveable="not a tensor" if value is None else None)


def shape_of(value: object) -> tuple[int, ...]:
    """Reads the sizes of a tensor, with numbers for symbols; () for anything else."""
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else hint(size) for size in value.shape)
