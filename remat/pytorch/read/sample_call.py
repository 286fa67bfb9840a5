"""Rebuilds a value's operator and arguments from a `Graph` alone, to run the operator by itself.

Arguments have the shapes and dtypes of the graph. The graph does not record the rest: contents are random, indices are
valid, and every tensor is contiguous, even where the model passes a transposed view (then a matrix product may take
slightly longer or shorter).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from remat.errors import CannotRebuild
from remat.facts.graph import Graph
from remat.pytorch.read.call_text import call_of
from remat.pytorch.read.values import in_memory
from remat.pytorch.seam.inductor_lowering import register_inductors_operators

# Operators with the arguments (input, dim, index, ...).
_SELECTS = ("aten.gather", "aten.index_select", "aten.scatter", "aten.scatter_add", "aten.index_add")


def rebuild(graph: Graph, value: int, device: torch.device) -> Callable[[], Any]:
    """Returns a function that computes one value, on arguments that are made here."""
    operator = operator_named(graph.ops[value])
    producers: list[int] = graph.producers[graph.consumers == value].tolist()
    stands = [_Stand(graph.names[u], graph.dtypes[u], graph.shapes[u]) for u in producers]
    args, kwargs = call_of(graph.arguments[value], stands, device)
    bounds = _index_bounds(graph.ops[value].rpartition(".")[0], args)
    smallest = min((size for stand in stands for size in stand.shape if size > 0), default=1)
    made = [_tensor(stand, device, bounds.get(id(stand), smallest)) for stand in stands]
    args, kwargs = call_of(graph.arguments[value], made, device)
    return lambda: operator(*args, **kwargs)


def result_mismatch(graph: Graph, value: int, result: Any) -> str:
    """Describes how a result differs from the graph's value in shape and dtype; "" if it does not."""
    if graph.dtypes[value]:
        return _tensor_mismatch(graph, value, result)
    elements: list[int] = graph.consumers[graph.producers == value].tolist()
    for element in elements:
        if graph.ops[element] == "getitem":
            position = json.loads(graph.arguments[element])[1]
            wrong = _tensor_mismatch(graph, element, result[position])
            if wrong:
                return wrong
    return ""


def _tensor_mismatch(graph: Graph, value: int, result: Any) -> str:
    expected = f"{graph.dtypes[value]}{list(graph.shapes[value])}"
    if not isinstance(result, torch.Tensor):
        return "" if graph.dtypes[value] == "symint" else f"{type(result).__name__} instead of {expected}"
    result = in_memory(result)
    got = f"{str(result.dtype).removeprefix('torch.')}{list(result.shape)}"
    return "" if got == expected else f"{got} instead of {expected}"


@dataclass(frozen=True, eq=False)
class _Stand:
    # A placeholder of an argument, until its use is known.
    name: str
    dtype: str
    shape: tuple[int, ...]


def operator_named(name: str) -> Callable[..., Any]:
    parts = name.split(".")
    if len(parts) != 3:
        raise CannotRebuild(f"{name} is not an operator of torch.ops")
    target: Any = torch.ops
    if parts[0] == "prims":
        register_inductors_operators()
    for part in parts:
        target = getattr(target, part, None)
        if target is None:
            raise CannotRebuild(f"torch.ops.{name} does not exist here; import the package that defines it")
    return target


# Upper bounds of the indices of an operator, by the id of the argument. For other operators, the smallest size of any
# argument is a safe bound.
def _index_bounds(packet: str, args: Sequence[Any]) -> dict[int, int]:
    if packet == "aten.embedding":
        return {id(args[1]): args[0].shape[0]}
    if packet in _SELECTS and args[0].shape:
        return {id(args[2]): args[0].shape[args[1]]}
    if packet in ("aten.index", "aten.index_put", "aten._unsafe_index", "aten._unsafe_index_put"):
        return {id(index): size for index, size in zip(args[1], args[0].shape, strict=False) if index is not None}
    return {}


def _tensor(stand: _Stand, device: torch.device, bound: int) -> torch.Tensor | None:
    if stand.dtype == "symint":
        return None  # the call has its hint
    dtype = getattr(torch, stand.dtype, None) if stand.dtype else None
    if not isinstance(dtype, torch.dtype):
        raise CannotRebuild(f"its argument {stand.name} is not a tensor")
    if dtype is torch.bool:
        return torch.rand(stand.shape, device=device) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        bound = int(np.clip(bound, 1, torch.iinfo(dtype).max))
        return torch.randint(bound, stand.shape, device=device).to(dtype)
    return torch.rand(stand.shape, device=device).to(dtype)
