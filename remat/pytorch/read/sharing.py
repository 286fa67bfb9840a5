"""Finds which values of a joint graph share memory."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from torch import fx

from remat.pytorch.read.operators import Operator
from remat.pytorch.seam.torch_names import HigherOrderOperator, storage_number


def bases(nodes: Sequence[fx.Node], ops: Iterable[Operator]) -> dict[fx.Node, fx.Node]:
    """Finds, for each value, the first value of the storage that it lives in: itself, unless it is a view.

    Schemas come first: the passes over joint graphs leave views whose fake tensors have a storage of
    their own (torch 2.13: the no-op `expand` between a softmax and its matmul). What a schema leaves open, the
    storages of the fake tensors tell.

    Args:
        nodes: in order, each after what it uses.
        ops: their operators.
    """
    base: dict[fx.Node, fx.Node] = {}
    owners: dict[int, fx.Node] = {}
    for node, op in zip(nodes, ops, strict=True):
        base[node] = node
        if op.fresh:
            continue
        sources = node.all_input_nodes
        if op.views or node.target is operator.getitem:
            source = sources[0] if sources else node
            if op.views or base[source] is not source:
                base[node] = base[source]
                continue
            if isinstance(source.target, HigherOrderOperator):
                continue  # calls of one body (`nested_compile_region`) share their fake results, and no memory
        for source in sources:  # which the operator may hand on, or view
            _owner(base[source], owners)
        base[node] = _owner(node, owners)
    return base


def _owner(node: fx.Node, owners: dict[int, fx.Node]) -> fx.Node:
    """Finds the first value that was met in the storage of a fake tensor."""
    storage = storage_number(node.meta.get("val"))
    return node if storage is None else owners.setdefault(storage, node)
