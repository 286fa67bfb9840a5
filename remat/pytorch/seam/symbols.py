"""Finds the symbolic sizes of a graph, their bounds, and the sizes that follow from assumed ones; adds guards.

A guard is a condition that Dynamo checks before each call; if it is false, Dynamo compiles another graph.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

# torch's own bound of sizes without a bound is larger than this.
_UNBOUNDED = 2**31
_assumed: ContextVar[Mapping[str, int]] = ContextVar("_assumed", default=MappingProxyType({}))


@dataclass(frozen=True)
class Symbol:
    """Describes a size that differs from call to call."""

    name: str  # torch's name: the same whenever the same dimension of the same argument is traced
    value: int  # its value in the call for which the graph is compiled
    minimum: int  # torch's lower bound; not below 0
    # the upper bound that the user or the model declares (`torch._dynamo.mark_dynamic(x, 0, min=2, max=512)`,
    # `torch._check`); None without one.
    maximum: int | None
    size: Any


def symbols(graph: fx.Graph) -> list[Symbol]:
    """Returns the sizes of a graph's inputs that are single symbols with a value in this call.

    The size by which a jagged tensor identifies its offsets is no number, and is left out.
    """
    symbol_of: dict[str, Symbol] = {}
    for size in _sizes_of_inputs(graph):
        node: Any = size.node
        if not node.expr.is_Symbol or node.hint is None or node.is_nested_int():
            continue
        bounds = node.shape_env.var_to_range[node.expr]
        maximum = int(bounds.upper) if bounds.upper.is_number and bounds.upper < _UNBOUNDED else None
        symbol_of.setdefault(
            str(node.expr), Symbol(str(node.expr), int(node.hint), int(max(bounds.lower, 0)), maximum, size)
        )
    return list(symbol_of.values())


def _sizes_of_inputs(graph: fx.Graph) -> list[Any]:
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def has_jagged_sizes(graph: fx.Graph) -> bool:
    """Returns whether an input is a jagged tensor, whose sizes torch can guard only by chance (the order of hashes)."""
    return any(size.node.is_nested_int() for size in _sizes_of_inputs(graph))


@contextmanager
def assumed(sizes: Mapping[str, int]) -> Generator[None]:
    """Makes `remat.pytorch.seam.fakes.hint` use these sizes, by the names of symbols, instead of those of this call."""
    token = _assumed.set(sizes)
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed_size(size: Any) -> int | None:
    """Returns the value of a symbolic size under the assumed sizes; None if they do not determine it."""
    sizes = _assumed.get()
    if not sizes:
        return None
    expression = size.node.expr
    number: Any = import_module("sympy").Integer  # which ships no types
    values = {symbol: number(sizes[str(symbol)]) for symbol in expression.free_symbols if str(symbol) in sizes}
    return int(expression.xreplace(values)) if len(values) == len(expression.free_symbols) else None


def keep_at_most(sizes: Iterable[Any], limit: int) -> bool:
    """Makes Dynamo compile another graph for calls in which the sum of some sizes is greater than `limit`.

    Returns:
        whether the sum in this call is at most `limit`. If not, this graph is only for calls above the limit.
    """
    return bool(sum(sizes) <= limit)  # a comparison of symbols adds a guard
