"""Finds which values of a joint graph share memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from torch import fx

from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.torch_names import HigherOrderOperator, inputs_of, storage_number


def bases(nodes: Sequence[fx.Node], ops: Operators) -> dict[fx.Node, fx.Node]:
    """Finds, for each value, the first value of the storage that it lives in: itself, unless it is a view.

    Schemas come first: the passes over joint graphs leave views whose fake tensors have a storage of
    their own (torch 2.13: the no-op `expand` between a softmax and its matmul). What a schema leaves open, the
    storages of the fake tensors tell.

    Args:
        nodes: in order, each after what it uses.
        ops: their operators.
    """
    base = dict(zip(nodes, nodes, strict=True))
    owners: dict[int, fx.Node] = {}
    for node, op in ops.which(nodes, lambda op: not op.fresh):
        if op.views or node.target is operator.getitem:
            source: fx.Node = next(iter(inputs_of(node)), node)
            if op.views or base[source] is not source:
                base[node] = base[source]
                continue
            if isinstance(source.target, HigherOrderOperator):
                continue  # calls of one body (`nested_compile_region`) share their fake results, and no memory
        for source in inputs_of(node):  # which the operator may hand on, or view
            _owner(base[source], owners)
        base[node] = _owner(node, owners)
    return base


def _owner(node: fx.Node, owners: dict[int, fx.Node]) -> fx.Node:
    """Finds the first value that was met in the storage of a fake tensor."""
    storage = storage_number(node.meta.get("val"))
    return node if storage is None else owners.setdefault(storage, node)
