"""Finds the symbolic sizes of a graph, their bounds, and what follows from assumed ones; sets guards.

A guard is a condition that Dynamo checks before each call: where it does not hold, it compiles another graph.
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

# Where torch knows of no bound, it has one of its own, past all sizes that there are.
_UNBOUNDED = 2**31
_assumed: ContextVar[Mapping[str, int]] = ContextVar("_assumed", default=MappingProxyType({}))


@dataclass(frozen=True)
class Symbol:
    """Describes a size that differs from call to call."""

    name: str  # torch's: the same whenever the same dimension of the same argument is traced
    value: int  # what it is in the call that the graph is compiled for
    minimum: int  # what it is at least, as torch sees it; not below 0
    # what it is at most, by what the user or the model says (`torch._dynamo.mark_dynamic(x, 0, min=2, max=512)`,
    # `torch._check`); None if nothing is said.
    maximum: int | None
    size: Any


def symbols(graph: fx.Graph) -> list[Symbol]:
    """Lists the sizes of a graph's inputs that are symbols by themselves, and have a value in this call.

    The size by which a jagged tensor says which offsets it has is no number, and varies by being another one.
    """
    found: dict[str, Symbol] = {}
    for size in _sizes_of_inputs(graph):
        node: Any = size.node
        if not node.expr.is_Symbol or node.hint is None or node.is_nested_int():
            continue
        bounds = node.shape_env.var_to_range[node.expr]
        maximum = int(bounds.upper) if bounds.upper.is_number and bounds.upper < _UNBOUNDED else None
        found.setdefault(
            str(node.expr), Symbol(str(node.expr), int(node.hint), int(max(bounds.lower, 0)), maximum, size)
        )
    return list(found.values())


def _sizes_of_inputs(graph: fx.Graph) -> list[Any]:
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def has_jagged_sizes(graph: fx.Graph) -> bool:
    """Returns whether an input is a jagged tensor, whose sizes torch can guard only by luck (the order of hashes)."""
    return any(size.node.is_nested_int() for size in _sizes_of_inputs(graph))


@contextmanager
def assumed(sizes: Mapping[str, int]) -> Generator[None]:
    """Makes `remat.pytorch.seam.fakes.hint` take other sizes, by the names of symbols, than those of this call."""
    token = _assumed.set(sizes)
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed_size(size: Any) -> int | None:
    """Returns the value of a symbolic size under what is assumed; None if that says too little."""
    sizes = _assumed.get()
    if not sizes:
        return None
    expression = size.node.expr
    number: Any = import_module("sympy").Integer  # which ships no types
    known = {symbol: number(sizes[str(symbol)]) for symbol in expression.free_symbols if str(symbol) in sizes}
    return int(expression.xreplace(known)) if len(known) == len(expression.free_symbols) else None


def keep_at_most(sizes: Iterable[Any], limit: int) -> bool:
    """Makes Dynamo compile another graph for calls in which some sizes add up to more than `limit`.

    Returns:
        True if the sizes of this call add up to at most `limit`. If False, this graph is only for calls above it.
    """
    return bool(sum(sizes) <= limit)  # of symbols, this is a guard
