"""Converts the inputs of FX nodes into positions, and finds which values of a joint graph share a storage."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import fx

from remat.facts.columns import IntArray, frozen
from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.torch_names import HigherOrderOperator, inputs_of, storage_number


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
