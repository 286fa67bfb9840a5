"""Reads dtypes, sizes, inputs and storages of a joint graph's values, and which of them cannot be saved."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import fx

from remat.facts.columns import BoolArray, IntArray, frozen
from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.fakes import hint
from remat.pytorch.seam.torch_names import (
    FakeTensor,
    HigherOrderOperator,
    has_symbolic_shape,
    inputs_of,
    storage_number,
    stored_parts,
    torch_functions_disabled,
)

# A symbolic integer is passed to the backward pass as a Python number.
_SYMBOL_BYTES = 8


@dataclass(frozen=True, eq=False)
class Values:
    """Holds the dtypes, shapes and sizes of n values."""

    # the first four are as in `remat.Graph`.
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: IntArray
    noncontiguous: BoolArray
    elements: IntArray  # (n,) number of elements; 0 for values that are no tensors
    # position -> why the value cannot be passed from the forward to the backward pass.
    unsaveable: Mapping[int, str]

    @classmethod
    def of(cls, values: Iterable[object]) -> Values:
        """Reads values, mostly fake tensors; equal kinds are read once, because models repeat their layers."""
        kind_of: dict[object, int] = {}
        different: list[_Kind] = []
        number: list[int] = []  # position in `different` of each value's kind
        with torch_functions_disabled():
            for value in values:
                # A comparison of types takes a quarter of the time of `isinstance`, which calls torch's metaclass.
                tensor = in_memory(value) if type(value) is FakeTensor or isinstance(value, torch.Tensor) else None
                if tensor is None or has_symbolic_shape(tensor):  # a symbolic shape has no hash
                    number.append(len(different))
                    different.append(_other(value) if tensor is None else _tensor(tensor, _is_noncontiguous(tensor)))
                    continue
                try:
                    noncontiguous = not tensor.is_contiguous() and tensor.layout is torch.strided
                except RuntimeError:  # raised for compressed sparse tensors
                    noncontiguous = False
                key = tensor.shape, tensor.dtype, noncontiguous
                kind = kind_of.get(key)
                if kind is None:
                    kind = kind_of[key] = len(different)
                    different.append(_tensor(tensor, noncontiguous))
                number.append(kind)
        dtypes, shapes, sizes, noncontiguous, elements, unsaveable = (
            zip(*different, strict=True) if different else [()] * 6
        )
        kinds = np.array(number, np.int64)
        banned: list[int] = np.flatnonzero(np.array(unsaveable, np.bool_)[kinds]).tolist()
        return cls(
            tuple([dtypes[i] for i in number]),
            tuple([shapes[i] for i in number]),
            frozen(np.array(sizes, np.int64)[kinds]),
            frozen(np.array(noncontiguous, np.bool_)[kinds]),
            frozen(np.array(elements, np.int64)[kinds]),
            {i: unsaveable[number[i]] for i in banned},
        )


class _Kind(NamedTuple):
    dtype: str = ""
    shape: tuple[int, ...] = ()
    bytes: int = 0
    noncontiguous: bool = False
    elements: int = 0
    unsaveable: str | None = None


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what a tensor takes in memory: itself, or, if it is sparse, its values; its indices take far less."""
    return stored_parts(tensor)[-1]


def _tensor(value: torch.Tensor, noncontiguous: bool) -> _Kind:
    shape = shape_of(value)
    elements = math.prod(shape)
    dtype = str(value.dtype).removeprefix("torch.")
    return _Kind(dtype, shape, elements * value.itemsize, noncontiguous, elements)


# On symbolic sizes, torch would add a guard for its answer; so this uses concrete sizes.
def _is_noncontiguous(value: torch.Tensor) -> bool:
    strides = [hint(stride) for stride in value.stride()]
    return not torch.empty_strided(shape_of(value), strides, device="meta").is_contiguous()


def _other(value: object) -> _Kind:
    if isinstance(value, torch.SymInt):
        return _Kind("symint", bytes=_SYMBOL_BYTES)
    if isinstance(value, (tuple, list, dict)):  # a Triton kernel returns a dictionary
        return _Kind(unsaveable="a tuple: its elements can be saved")
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return _Kind(unsaveable=f"a {type(value).__name__}")
    return _Kind(unsaveable="not a tensor" if value is None else None)


def shape_of(value: object) -> tuple[int, ...]:
    """Returns the sizes of a tensor, with numbers for symbols; () for other values."""
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else hint(size) for size in value.shape)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Holds the uses between n nodes: which node reads which."""

    position: Mapping[fx.Node, int]  # of each node
    sources: Sequence[Collection[fx.Node]]  # the nodes that each node uses, each once and in order
    # the uses, as in `remat.Graph`.
    producers: IntArray
    consumers: IntArray

    @classmethod
    def of(cls, nodes: Sequence[fx.Node]) -> Inputs:
        """Reads the inputs of nodes, which must be in order and include all that they use."""
        position = dict(zip(nodes, range(len(nodes)), strict=True))
        sources = [*map(inputs_of, nodes)]
        uses = np.fromiter(map(len, sources), np.int64, len(nodes))
        producers = np.fromiter(map(position.__getitem__, chain.from_iterable(sources)), np.int64, uses.sum())
        return cls(position, sources, frozen(producers), frozen(np.repeat(np.arange(len(nodes)), uses)))

    def first(self) -> IntArray:
        """Returns an array (n,): the first node that each node uses, or the node itself if it uses none."""
        first = np.arange(len(self.sources))
        first[self.consumers[::-1]] = self.producers[::-1]  # the last one written is the first use
        return first


def bases(nodes: Sequence[fx.Node], inputs: Inputs, ops: Operators) -> list[int]:
    """Returns, for each value, the position of the first value of its storage: its own, unless it is a view.

    Schemas decide first: passes over joint graphs leave views whose fake tensors have a separate storage (torch 2.13:
    the no-op `expand` between a softmax and its matmul). Where a schema does not decide, the storages of the fake
    tensors do.
    """
    base = [*range(len(nodes))]
    first: list[int] = inputs.first().tolist()
    looks: list[bool] = ops.are([op.views for op in ops.different]).tolist()
    open_: list[int] = np.flatnonzero(~ops.are([op.fresh for op in ops.different])).tolist()
    owners: dict[int, int] = {}

    # The first value in the storage of a fake tensor.
    def owner(value: int) -> int:
        storage = storage_number(nodes[value].meta.get("val"))
        return value if storage is None else owners.setdefault(storage, value)

    for value in open_:
        source = first[value]
        if looks[value]:
            base[value] = base[source]
            continue
        if nodes[value].target is operator.getitem:
            if base[source] != source:
                base[value] = base[source]
                continue
            if isinstance(nodes[source].target, HigherOrderOperator):
                continue  # calls of one body (`nested_compile_region`) share fake results, but no memory
        handed = [base[inputs.position[source]] for source in inputs.sources[value]]  # possibly returned, or viewed
        for source in handed:
            owner(source)
        first_value = owner(value)
        if first_value in handed or nodes[value].op != "call_function":
            base[value] = first_value
    return base
