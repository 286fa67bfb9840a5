"""Finds which values of a joint graph share memory."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from remat.pytorch.read.operators import Operator
from remat.pytorch.seam.torch_names import HigherOrderOperator, storage_of


def bases(nodes: Sequence[fx.Node], ops: Mapping[fx.Node, Operator]) -> dict[fx.Node, fx.Node]:
    """Finds, for each value, the first value of the storage that it lives in: itself, unless it is a view.

    Schemas come first: the passes over joint graphs leave views whose fake tensors have a storage of
    their own (torch 2.13: the no-op `expand` between a softmax and its matmul).
    """
    base: dict[fx.Node, fx.Node] = {}
    owners: dict[int, fx.Node] = {}
    for node in nodes:
        base[node] = node
        if ops[node].views or node.target is operator.getitem:
            source = next(iter(node.all_input_nodes), node)
            if ops[node].views or base[source] is not source:
                base[node] = base[source]
                continue
            if isinstance(source.target, HigherOrderOperator):
                continue  # calls of one body (`nested_compile_region`) share their fake results, and no memory
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            base[node] = owners.setdefault(storage_of(value), node)
    return base
