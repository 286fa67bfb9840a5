"""Finds which values of a joint graph share memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from torch import fx

from remat.pytorch.read.node_inputs import Inputs
from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.torch_names import HigherOrderOperator, storage_number


def bases(nodes: Sequence[fx.Node], inputs: Inputs, ops: Operators) -> list[int]:
    """Finds, for each value, the first value of the storage that it lives in: itself, unless it is a view.

    Schemas come first: the passes over joint graphs leave views whose fake tensors have a storage of
    their own (torch 2.13: the no-op `expand` between a softmax and its matmul). What a schema leaves open, the
    storages of the fake tensors tell.

    Returns:
        The position of that value, of each node.
    """
    base = [*range(len(nodes))]
    first: list[int] = inputs.first().tolist()
    looks: list[bool] = ops.are([op.views for op in ops.different]).tolist()
    open_: list[int] = np.flatnonzero(~ops.are([op.fresh for op in ops.different])).tolist()
    owners: dict[int, int] = {}

    # The first value that was met in the storage of a fake tensor.
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
                continue  # calls of one body (`nested_compile_region`) share their fake results, and no memory
        handed = [base[inputs.position[source]] for source in inputs.sources[value]]  # on, or viewed, perhaps
        for source in handed:
            owner(source)
        found = owner(value)
        if found in handed or nodes[value].op != "call_function":
            base[value] = found
    return base
