"""Finds which values of a joint graph share a storage."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
from torch import fx

from remat.pytorch.read.node_inputs import Inputs
from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.torch_names import HigherOrderOperator, storage_number


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
