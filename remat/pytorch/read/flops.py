"""Counts the operations of each call of a joint graph: by torch's formula for it, or else one per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from remat.facts.columns import IntArray, frozen
from remat.improve.torch_knapsack import UNCOUNTED_PRODUCTS
from remat.pytorch.read.operators import GROUPED, Operators, grouped_flops
from remat.pytorch.read.values import Values, shape_of
from remat.pytorch.seam.fakes import hint

_aten: Any = torch.ops.aten
# Matrix products, with the position of the left factor.
_LEFT_FACTOR: dict[Any, int] = {
    _aten.mm.default: 0,
    _aten.bmm.default: 0,
    _aten.addmm.default: 1,
    _aten.baddbmm.default: 1,
}


def flops_of(nodes: Sequence[fx.Node], position: Mapping[fx.Node, int], ops: Operators, values: Values) -> IntArray:
    """Counts the operations (n,) of each call by torch's formula; without a formula, one per element."""
    calls = ops.are([target is not None for target in ops.targets])
    factors = [
        0 if op.name in UNCOUNTED_PRODUCTS else _LEFT_FACTOR.get(target)
        for target, op in zip(ops.targets, ops.different, strict=True)
    ]
    counted = ops.are(
        [
            factor is not None or _formula(target) is not None or GROUPED in op.name
            for factor, target, op in zip(factors, ops.targets, ops.different, strict=True)
        ]
    )
    flops = np.where(calls, values.elements, 0)
    cache: dict[tuple[Any, ...], int] = {}
    numbers: list[int] = ops.number.tolist()
    positions: list[int] = np.flatnonzero(counted).tolist()
    for i in positions:
        # torch's formula of a matrix product takes 20 us; this is one line.
        if (factor := factors[numbers[i]]) is None:
            flops[i] = _flops(nodes[i], values.shapes[i], cache)
        else:
            left: Any = nodes[i].args[factor]
            flops[i] *= 2 * values.shapes[position[left]][-1]
    return frozen(flops)


def _formula(target: Any) -> Any:
    return flop_registry.get(getattr(target, "overloadpacket", target))


def _flops(node: fx.Node, shape: tuple[int, ...], cache: dict[tuple[Any, ...], int]) -> int:
    target: Any = node.target
    if (formula := _formula(target)) is None:
        left, right = (shape_of(factor.meta["val"]) for factor in node.args[:2])  # type: ignore[union-attr]
        return grouped_flops(left, right)
    # Cached: a formula takes 50 us, and models repeat their layers.
    settings = [str(value) for value in (*node.args, *node.kwargs.items()) if not isinstance(value, fx.Node)]
    call = (target, shape, *settings, *(shape_of(source.meta.get("val")) for source in node.all_input_nodes))
    if call not in cache:
        cache[call] = hint(_by_formula(formula, node, node.meta.get("val")))
    return cache[call]


def _by_formula(formula: Any, node: fx.Node, value: object) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val"))  # a body has none
    try:
        return formula(*args, **kwargs, out_val=value)
    except AssertionError:  # torch 2.11 has no formula for grouped-query attention: repeat keys and values
        shapes = [value.shape if isinstance(value, torch.Tensor) else value for value in args]
        return formula.__wrapped__(*_repeated_heads(shapes), **kwargs)


# Gives queries, keys and values, of (batch, heads, length, width), the number of heads of the queries.
def _repeated_heads(args: Sequence[Any]) -> list[Any]:
    are_shapes = [isinstance(shape, torch.Size) and len(shape) == 4 for shape in args]
    heads = max((shape[1] for shape, is_shape in zip(args, are_shapes, strict=True) if is_shape), default=0)
    return [
        (shape[0], heads, *shape[2:]) if is_shape else shape for shape, is_shape in zip(args, are_shapes, strict=True)
    ]
