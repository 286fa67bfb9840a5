"""Parses the call of each operator that a graph records: its name, arguments, shape and element size.

`Graph.arguments` holds calls as JSON. `remat.pytorch.read.call_text` defines the format, and makes calls that torch can
run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, cast

from remat.errors import InvalidGraph
from remat.facts.graph import Graph
from remat.predict.kernels.index import Shape

MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What `parsed_call` raises if the text is not a call."""


class Ref(NamedTuple):
    """Represents an argument that is another value of the graph."""

    position: int


class Slice(NamedTuple):
    """Represents an argument that is no value, number, text or list, such as a dtype, a layout or a slice."""

    kind: str
    content: Any


@dataclass(frozen=True)
class Call:
    """Holds the call that computes a value, as the graph records it."""

    position: int
    op: str  # the operator without its overload, e.g. "aten.add".
    # args, kwargs: with a `Ref` for each value.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: tuple[int, ...]  # the values that it uses, each once
    shape: Shape  # of the result; one dimension of all bytes, if the graph has no shape that fits the bytes
    itemsize: int
    dtype: str  # "float32", or "" if the result is not a tensor
    is_tuple: bool  # whether the result is several tensors, which `getitem` extracts

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)

    @cached_property
    def refs(self) -> tuple[int, ...]:
        """Returns the values among the arguments, in order, with repetitions."""
        return (*_refs(self.args), *_refs(list(self.kwargs.values())))


def calls_of(graph: Graph) -> list[Call]:
    taken = {u for v, of in enumerate(graph.operands) if graph.ops[v] == "getitem" for u in of}
    return [_call(graph, v, of, v in taken) for v, of in enumerate(graph.operands)]


def _call(graph: Graph, v: int, sources: tuple[int, ...], is_tuple: bool) -> Call:
    op = graph.ops[v].rpartition(".")[0]
    if op in ("", "_operator"):
        op = graph.ops[v]
    args, kwargs = _arguments(graph.arguments[v], sources, graph.names[v])
    shape, size = graph.shapes[v], int(graph.bytes[v])
    count = prod(shape)
    itemsize, rest = divmod(size, count) if count else (0, size)
    if rest or (not graph.dtypes[v] and size):
        shape, itemsize = (size,), 1
    distinct = tuple(dict.fromkeys(sources))
    return Call(v, op, args, kwargs, distinct, shape, itemsize, graph.dtypes[v], is_tuple)


def _arguments(text: str, sources: tuple[int, ...], name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not text:
        return tuple(map(Ref, sources)), {}
    try:
        args, kwargs = parsed_call(text, [*map(Ref, sources)], Slice)
        return tuple(args), kwargs
    except MALFORMED as error:
        raise InvalidGraph(
            f"Graph.arguments[{name!r}] is not a call of {len(sources)} producers: {text!r} ({error!r}); "
            f"leave it out, or write it as remat.capture does"
        ) from None


def parsed_call(
    text: str, producers: Sequence[Any], special: Callable[[str, Any], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Parses the positional and keyword arguments of a call. If the text is malformed, one of `MALFORMED` is raised.

    Args:
        producers: the objects to put in the places of the producers, in the order of the uses.
        special: makes an argument that JSON cannot hold, such as a dtype or a slice, from its kind and content.
    """

    def read(argument: Any) -> Any:
        if isinstance(argument, list):
            return [*map(read, cast(list[Any], argument))]
        if not isinstance(argument, dict):
            return argument
        entry = cast(dict[str, Any], argument)
        if "v" in entry:
            return entry["hint"] if "hint" in entry else producers[entry["v"]]
        ((kind, content),) = entry.items()
        return {name: read(item) for name, item in content.items()} if kind == "dict" else special(kind, content)

    parsed = json.loads(text)
    call: dict[str, Any] = {"args": parsed, "kwargs": {}} if isinstance(parsed, list) else parsed
    return [*map(read, call["args"])], {key: read(argument) for key, argument in call["kwargs"].items()}


def _refs(arguments: Any) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument.position
        elif isinstance(argument, list):
            yield from _refs(argument)
        elif isinstance(argument, dict):
            yield from _refs(cast(dict[str, Any], argument).values())
