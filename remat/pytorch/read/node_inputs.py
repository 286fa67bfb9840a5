"""Converts the inputs of FX nodes into positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from torch import fx

from remat.facts.columns import IntArray, frozen
from remat.pytorch.seam.torch_names import inputs_of


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
