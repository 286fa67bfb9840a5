"""Encodes the call of an operator as text for `Graph.arguments`, and decodes such text.

A call whose arguments are its producers, each once and in order, is "". Any other call is JSON:

    [...]                               the positional arguments
    {"args": [...], "kwargs": {...}}    with keyword arguments

Numbers, texts, booleans, null and lists are themselves (Infinity and NaN included); all others are objects:

    {"v": k}                            the k-th producer: the k-th use of the value in `Graph.producers`
    {"v": k, "hint": 7}                 the same, a symbolic integer that was 7 at the capture
    {"dtype": "float32"}                and "device", "layout" and "memory_format" in the same way
    {"complex": [re, im]}
    {"slice": [start, stop, step]}
    {"dict": {"key": ...}}              a dictionary whose keys are texts, such as the arguments of a Triton kernel
    {"unknown": "Generator"}            an argument that cannot be rebuilt; only its type is kept

Strides are not recorded: see `remat.pytorch.read.sample_call`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from remat.errors import CannotRebuild, InvalidGraph
from remat.facts.lazy_field import Deferred
from remat.predict.kernels.recorded_calls import MALFORMED, parsed_call
from remat.pytorch.read.operators import Operators
from remat.pytorch.seam.fakes import hint
from remat.pytorch.seam.torch_names import call_of_node, with_triton_kernel_name

_NAMED: dict[type, str] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    torch.device: "device",
}
_FIRST = {"v": 0}
_NUMBERS = (float, int)


def call_texts(
    nodes: Sequence[fx.Node], sources: Sequence[Collection[fx.Node]], ops: Operators, symbolic: AbstractSet[fx.Node]
) -> Deferred[tuple[str, ...]]:
    """Encodes every node's call as text on first use, because a plan needs none of them.

    Until then, the result holds no node, only a template of each call, mostly a tuple of the constants after the first
    argument. Models repeat their layers: calls with the same repr (which no two different constants share) are encoded
    once.

    Args:
        sources: the nodes that each node uses, each once and in order.
        symbolic: the nodes that are symbolic integers.
    """
    calls: list[Any] = []
    unary = ops.are([op.unary for op in ops.different]).tolist()
    written: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]] = map(call_of_node, nodes)
    for (args, kwargs), of, is_unary in zip(written, sources, unary, strict=True):
        if symbolic and not symbolic.isdisjoint(of):  # a list of sizes may hold one
            calls.append(_without_nodes(args, kwargs, of))
        elif len(of) == 1 and args and (is_unary or (not kwargs and _is_value_and_number(args))):  # all else: constants
            rest = args[1:]
            calls.append({"args": (_FIRST, *rest), "kwargs": kwargs} if kwargs else rest)
        else:
            calls.append(() if args == (*of,) and not kwargs else _without_nodes(args, kwargs, of))
    return Deferred(lambda: _texts(calls))


def _is_value_and_number(args: Sequence[Any]) -> bool:
    return len(args) == 2 and type(args[0]) is fx.Node and type(args[1]) in _NUMBERS


def _texts(calls: Sequence[Any]) -> tuple[str, ...]:
    texts = {"()": ""}
    keys = [*map(repr, calls)]
    for key, call in zip(keys, calls, strict=True):
        if key not in texts:
            whole: Any = (_FIRST, *call) if type(call) is tuple else call
            texts[key] = json.dumps(whole, separators=(",", ":"), default=_special)
    return tuple([texts[key] for key in keys])


def _without_nodes(args: Sequence[Any], kwargs: Mapping[str, Any], sources: Iterable[fx.Node]) -> Any:
    producers = {node: _producer(node, k) for k, node in enumerate(sources)}
    if any(isinstance(argument, Mapping) for argument in (*args, *kwargs.values())):
        args = [*map(_tagged, args)]
        kwargs = {name: _tagged(argument) for name, argument in with_triton_kernel_name(kwargs).items()}
    return map_arg({"args": args, "kwargs": kwargs} if kwargs else [*args], producers.__getitem__)


def _tagged(argument: Any) -> Any:
    if isinstance(argument, Mapping):
        entries = cast("Mapping[str, Any]", argument)
        return {"dict": {name: _tagged(entry) for name, entry in entries.items()}}
    return [*map(_tagged, argument)] if isinstance(argument, list | tuple) else argument  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]


def _producer(node: fx.Node, position: int) -> dict[str, int]:
    if isinstance(node.meta.get("val"), torch.SymInt):
        return {"v": position, "hint": hint(node.meta["val"])}
    return {"v": position}


def _special(argument: Any) -> dict[str, Any]:
    if type(argument) in _NAMED:
        return {_NAMED[type(argument)]: str(argument).removeprefix("torch.")}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    if isinstance(argument, slice):
        bounds = cast("slice[Any, Any, Any]", argument)
        return {"slice": [bounds.start, bounds.stop, bounds.step]}
    return {"unknown": type(argument).__name__}


def call_of(text: str, producers: Sequence[Any], device: torch.device) -> tuple[list[Any], dict[str, Any]]:
    """Decodes the positional and keyword arguments of a call.

    Args:
        producers: the objects to pass in the places of the producers, in the order of the uses.
        device: the device to pass in the place of the device of the capture.
    """
    if not text:
        return list(producers), {}
    try:
        return parsed_call(
            text, producers, lambda kind, content: device if kind == "device" else _READERS[kind](content)
        )
    except MALFORMED as error:
        raise InvalidGraph(
            f"Graph.arguments: {text!r} is not a call of {len(producers)} producers ({error!r})"
        ) from None


def _cannot_rebuild(kind: str) -> NoReturn:
    raise CannotRebuild(f"an argument of type {kind}")


_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("dtype", "layout", "memory_format"), lambda name: getattr(torch, name)),
    "complex": lambda parts: complex(*parts),
    "slice": lambda parts: slice(*parts),
    "unknown": _cannot_rebuild,
}
