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

    graph: fx.Graph  # a placeholder for each tensor that the call took, in order
    results: tuple[Any, ...]  # the node of each result; not a node where the result is not a tensor


def expand(calls: Sequence[EagerCall]) -> list[Expansion | None]:
    """Expands each call; None for views and for what is not looked into.

    That is higher-order operators, and those whose result has a shape that depends on contents (`nonzero`).
    """
    known: dict[str, Expansion | None] = {}
    expansions: list[Expansion | None] = []
    for call in calls:
        if not is_overload(call.op) or not (call.created or call.written):
            expansions.append(None)
            continue
        leaves, structure = tree_flatten((call.args, dict(call.kwargs)))
        # Models repeat their layers, and a trace takes about 10 ms.
        same = f"{call.op} {structure} {[_meta(leaf) if isinstance(leaf, Operand) else leaf for leaf in leaves]}"
        if same not in known:
            known[same] = _expansion(call)
        expansions.append(known[same])
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
        given = iter(tensors)
        leaves, structure = tree_flatten((call.args, dict(call.kwargs)))
        args, kwargs = tree_unflatten(
            [next(given) if isinstance(leaf, Operand) else leaf for leaf in leaves], structure
        )
        return call.op(*args, **kwargs)

    with FakeTensorMode():  # also for what a decomposition makes from nothing
        fakes = [
            torch.empty_strided(shape, stride, dtype=dtype, device=device)
            for shape, stride, dtype, device in map(_meta, call.operands)
        ]
        return make_fx(functionalize(run), decomposition_table=decompositions())(*fakes).graph
