"""Collects, from a graph alone, the plans that PyTorch's users get by one line of code; no search should find worse.

These are PyTorch's default plan; its budgets (`remat.improve.torch_knapsack`); and `torch.utils.checkpoint` around each
layer, around every second one, and around groups of about the square root of their number (Chen et al. 2016), without
and with the selective policies that save attention, or attention and every second matrix product.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_saved
from remat.improve.repeated_layers import repeated_layers
from remat.improve.torch_knapsack import torch_budget_plans

_LAYER = re.compile(r"^(.*?\.\d+)(?:\.|$)")
_LAYER_OF_ROOT = re.compile(r"^((?:.*?\.)??\d+)(?:\.|$)")
_OUTSIDE = -1
_EVERY_LAYER = "every layer checkpointed"


def one_liners(graph: Graph) -> Iterator[tuple[str, BoolArray]]:
    """Yields pairs: what a user would have typed, and a mask (n,) of the values saved; some masks may be equal.

    Instead of a view, a plan saves the value that owns its storage.
    """
    for name, saved in _plans(graph):
        yield name, graph.owners(saved)


def _plans(graph: Graph) -> Iterator[tuple[str, BoolArray]]:
    if (default := default_saved(graph)) is not None:
        yield "PyTorch's default", default
    for budget, saved in torch_budget_plans(graph):
        yield f"activation_memory_budget = {budget}", saved
    yield from _checkpointed(graph)


def every_layer_checkpointed(graph: Graph) -> BoolArray | None:
    """Returns a mask (n,) of what is saved with every layer in `torch.utils.checkpoint`; None without layers."""
    return next((graph.owners(saved) for name, saved in _checkpointed(graph) if name == _EVERY_LAYER), None)


def layers_of(graph: Graph) -> IntArray:
    """Returns (n,) the number of the layer that computes each value in the forward pass; -1 for all other values.

    See `layer_paths`. In a graph without module paths, the blocks that its forward pass repeats are the layers.
    """
    paths = layer_paths(graph.modules)
    if not any(paths):
        return repeated_layers(graph)
    numbers = {path: number for number, path in enumerate(dict.fromkeys(filter(None, paths)))}
    layers = np.array([numbers.get(path, _OUTSIDE) for path in paths], np.int64)
    return np.where(graph.in_forward & ~graph.input, layers, _OUTSIDE)


def layer_paths(paths: Sequence[str]) -> list[str]:
    """Maps the path of each module to the path of the layer that it is or that contains it; "" outside of layers.

    A layer is a module with a number in its path. The modules of a bare `nn.Sequential` are layers if two of them
    contain the same modules, unless these are themselves sequences of such layers.

    >>> layer_paths(["model.layers.3.mlp.up", "model.head"])
    ['model.layers.3', '']
    >>> layer_paths(["0.mlp.0", "0.mlp.2", "1.mlp.0", "1.mlp.2"]), layer_paths(["0.0", "0.1", "1"])
    (['0', '0', '1', '1'], ['0.0', '0.1', ''])
    >>> layer_paths(["0.0.up", "0.1.up", "1.0.up", "1.1.up"])
    ['0.0', '0.1', '1.0', '1.1']
    """
    pattern = _LAYER_OF_ROOT if _are_alike(paths, 1) and not _are_alike(paths, 2) else _LAYER
    return [match.group(1) if match else "" for match in map(pattern.match, paths)]


def _are_alike(paths: Iterable[str], depth: int) -> bool:
    """Says whether two modules of one parent, whose paths consist of `depth` numbers, contain the same modules."""
    inside: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in dict.fromkeys(paths):
        names = path.split(".")
        if len(names) > depth and all(name.isdigit() for name in names[:depth]):
            inside[tuple(names[:depth])].add(".".join(names[depth:]))
    return len({(path[:-1], frozenset(modules)) for path, modules in inside.items()}) < len(inside)


def _checkpointed(graph: Graph) -> Iterator[tuple[str, BoolArray]]:
    layers = layers_of(graph)
    count = int(layers.max(initial=_OUTSIDE)) + 1
    if count < 2:
        return
    regions = {
        _EVERY_LAYER: layers,
        "every second layer checkpointed": np.where(layers % 2 == 0, layers, _OUTSIDE),
        "groups of layers checkpointed": np.where(layers >= 0, layers // math.isqrt(count), _OUTSIDE),
    }
    attention = np.array(["attention" in op for op in graph.ops], np.bool_)
    products = np.flatnonzero(graph.compute_bound & graph.in_forward & ~attention)
    second = np.zeros(len(graph), np.bool_)
    second[products[1::2]] = True
    for name, region in regions.items():
        if (saved := checkpointed(graph, region, attention & False)) is not None:
            yield name, saved
    for name, stays in {"attention": attention, "attention and every second product": attention | second}.items():
        if stays.any() and (saved := checkpointed(graph, layers, stays)) is not None:
            yield f"every layer checkpointed, saving {name}", saved


def checkpointed(graph: Graph, region: IntArray, stays: BoolArray) -> BoolArray | None:
    """Returns (n,) what is saved if `torch.utils.checkpoint` wraps each region and keeps `stays`; None if illegal."""
    leaves = graph.output.copy()
    crossing = graph.in_forward[graph.consumers] & (region[graph.producers] != region[graph.consumers])
    leaves[graph.producers[crossing]] = True
    recomputed = (region >= 0) & ~leaves & ~graph.with_elements(stays) & ~graph.cannot_recompute.mask & ~graph.must_save
    return default_saved(replace(graph, prefer_recompute=graph.prefer_recompute | recomputed))
