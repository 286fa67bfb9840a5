"""Decomposes an eager operator into the pieces that the compiler would make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from remat.pytorch.eager.recording import EagerCall, Operand
from remat.pytorch.seam.inductor_lowering import decompositions
from remat.pytorch.seam.torch_names import (
    DynamicOutputShapeException,
    FakeTensorMode,
    is_overload,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)


@dataclass(frozen=True)
class Expansion:
    """Holds the decomposition of one call, without writes, with fake tensors in `meta["val"]`."""

    graph: fx.Graph  # with one placeholder per tensor argument, in order
    results: tuple[Any, ...]  # the node of each tensor result; other objects for other results


def expand(calls: Sequence[EagerCall]) -> list[Expansion | None]:
    """Decomposes each call; the result is None for views and for calls that are not decomposed.

    Higher-order operators, and operators whose result has a data-dependent shape (`nonzero`), are not decomposed.
    """
    expansion_of: dict[str, Expansion | None] = {}
    expansions: list[Expansion | None] = []
    for call in calls:
        if not is_overload(call.op) or not (call.created or call.written):
            expansions.append(None)
            continue
        leaves, structure = tree_flatten((call.args, dict(call.kwargs)))
        # Cached: models repeat their layers, and a trace takes about 10 ms.
        same = f"{call.op} {structure} {[_meta(leaf) if isinstance(leaf, Operand) else leaf for leaf in leaves]}"
        if same not in expansion_of:
            expansion_of[same] = _expansion(call)
        expansions.append(expansion_of[same])
    return expansions


def _expansion(call: EagerCall) -> Expansion | None:
    try:
        graph = _trace(call)
    except DynamicOutputShapeException:
        return None
    return Expansion(graph, tuple(tree_leaves(graph.output_node().args[0])))


def _meta(operand: Operand) -> tuple[Any, ...]:
    return operand.shape, operand.stride, operand.dtype, operand.device


def _trace(call: EagerCall) -> fx.Graph:
    def run(*tensors: Tensor) -> Any:
        arguments = iter(tensors)
        leaves, structure = tree_flatten((call.args, dict(call.kwargs)))
        args, kwargs = tree_unflatten(
            [next(arguments) if isinstance(leaf, Operand) else leaf for leaf in leaves], structure
        )
        return call.op(*args, **kwargs)

    with FakeTensorMode():  # also for tensors that a decomposition creates
        fakes = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)
            for shape, stride, dtype, device in map(_meta, call.operands)
        ]
        return make_fx(functionalize(run), decomposition_table=decompositions())(*fakes).graph
