"""Joint graphs by hand, without PyTorch: for examples, tests and studies of small networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.errors import InvalidGraph
from remat.facts.argument_checks import checked_list
from remat.facts.bans import Bans
from remat.facts.columns import FLAGS
from remat.facts.graph import Graph, Region


@dataclass(frozen=True)
class _Facts:
    flops: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    call: str = ""


class GraphBuilder:
    """Builds a `Graph` value by value; regions, storages and views follow from what is said.

    >>> g = GraphBuilder()
    >>> x = g.input("x", bytes=4)
    >>> y = g.op("tanh", x)
    >>> g.output(y)
    >>> dy = g.tangent("dy", bytes=4)
    >>> g.gradient(g.op("tanh_backward", dy, y))
    >>> g.build()
    <Graph: 4 values (2 forward, 2 tangents, 0 either), 3 uses>
    """

    def __init__(self) -> None:
        self._position: dict[str, int] = {}
        self._numbers: Counter[str] = Counter()
        """How often an operator's name is taken, at least."""
        self._ops: list[str] = []
        self._bytes: list[int] = []
        self._flops: list[int] = []
        self._dtypes: list[str] = []
        self._shapes: list[tuple[int, ...]] = []
        self._calls: list[str] = []
        self._storage: list[int] = []
        self._arguments: list[tuple[int, ...]] = []
        self._marks: dict[str, set[int]] = {mark: set() for mark in (*FLAGS, "tangent")}
        self._cannot_save: dict[int, str] = {}
        self._cannot_recompute: dict[int, str] = {}

    def input(
        self, name: str, *, bytes: int = 1, parameter: bool = False, dtype: str = "", shape: tuple[int, ...] = ()
    ) -> str:
        """Adds an input of the forward pass and returns its name."""
        marks = {"input", "parameter"} if parameter else {"input"}
        return self._add(name, "placeholder", bytes, (), marks, _Facts(dtype=dtype, shape=shape))

    def tangent(self, name: str, *, bytes: int = 1) -> str:
        """Adds an input of the backward pass: the gradient of an output."""
        return self._add(name, "placeholder", bytes, (), {"tangent"}, _Facts())

    def op(  # noqa: PLR0913  # one keyword a fact
        self,
        op: str,
        *arguments: str,
        name: str | None = None,
        bytes: int | None = None,
        fusible: bool = True,
        random: bool = False,
        view: bool = False,
        compute_bound: bool = False,
        must_save: bool = False,
        must_recompute: bool = False,
        prefer_save: bool = False,
        prefer_recompute: bool = False,
        cannot_save: str | None = None,
        cannot_recompute: str | None = None,
        flops: int = 0,
        dtype: str = "",
        shape: tuple[int, ...] = (),
        call: str = "",
    ) -> str:
        """Adds a value and returns its name.

        Args:
            op: operator; also the name, numbered when taken.
            arguments: names of the values it uses.
            name: a name of its own.
            bytes: size; that of the first argument when left out.
            view: the value lives in the storage of its first argument.
            compute_bound: a matrix multiplication or the like; not fusible then.
            must_save, must_recompute: demanded by an annotation.
            prefer_save, prefer_recompute: asked for by an annotation.
            cannot_save, cannot_recompute: why it can never be saved, or computed twice.
            flops: floating-point operations.
            dtype, shape: of a tensor; bytes do not follow from them.
            call: its entry in `Graph.arguments`.
        """
        used = tuple(dict.fromkeys(self._find(argument) for argument in arguments))
        if bytes is None:
            if not used:
                raise InvalidGraph(f"GraphBuilder.op({op!r}): give bytes=, there is no argument to take a size from")
            bytes = self._bytes[used[0]]
        if view and not used:
            raise InvalidGraph(f"GraphBuilder.op({op!r}): a view needs an argument, whose storage it lives in")
        told = {
            "random": random,
            "view": view,
            "compute_bound": compute_bound,
            "fusible": fusible and not compute_bound,
            "must_save": must_save,
            "must_recompute": must_recompute,
            "prefer_save": prefer_save,
            "prefer_recompute": prefer_recompute,
        }
        marks = {mark for mark, on in told.items() if on}
        label = self._add(name or self._fresh(op), op, bytes, used, marks, _Facts(flops, dtype, shape, call))
        i = len(self._position) - 1
        if view:
            self._storage[i] = self._storage[used[0]]
        if cannot_save is not None:
            self._cannot_save[i] = cannot_save
        if cannot_recompute is not None:
            self._cannot_recompute[i] = cannot_recompute
        return label

    def output(self, *names: str) -> None:
        """Marks outputs of the forward pass."""
        self._marks["output"].update(map(self._find, names))

    def gradient(self, *names: str) -> None:
        """Marks outputs of the backward pass."""
        self._marks["gradient"].update(map(self._find, names))

    def build(self) -> Graph:
        """The finished graph."""
        n = len(self._position)
        uses = [(u, v) for v, arguments in enumerate(self._arguments) for u in arguments]
        flags: dict[str, Any] = {flag: self._flag(flag) for flag in FLAGS}
        fusible = flags["fusible"]
        producers = np.array([u for u, _ in uses], np.int64)
        consumers = np.array([v for _, v in uses], np.int64)
        return Graph(
            names=tuple(self._position),
            ops=tuple(self._ops),
            dtypes=tuple(self._dtypes),
            shapes=tuple(self._shapes),
            bytes=np.array(self._bytes),  # whatever was given: Graph checks that it is whole and fits
            storage=np.array(self._storage, np.int64),
            flops=np.array(self._flops),
            region=np.array(self._regions(), np.int64),
            **flags,
            producers=producers,
            consumers=consumers,
            fusible_uses=fusible[producers] & fusible[consumers],
            cannot_save=Bans.of(n, self._cannot_save),
            cannot_recompute=Bans.of(n, self._cannot_recompute),
            arguments=tuple(self._calls),
        )

    def _regions(self) -> list[Region]:
        n = len(self._position)
        region = [Region.EITHER] * n
        for i, arguments in enumerate(self._arguments):
            if i in self._marks["tangent"] or any(region[u] is Region.TANGENTS for u in arguments):
                region[i] = Region.TANGENTS
        forward = self._marks["output"] | self._marks["input"]
        for i in reversed(range(n)):
            if i in forward:
                region[i] = Region.FORWARD
                forward.update(self._arguments[i])
        return region

    def _add(self, name: str, op: str, bytes: int, arguments: tuple[int, ...], marks: set[str], facts: _Facts) -> str:
        if not isinstance(name, str) or not isinstance(op, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidGraph(f"GraphBuilder: names and operators are text, got {name!r} and {op!r}")
        if name in self._position:
            raise InvalidGraph(f"GraphBuilder: the name {name!r} is taken; give another with name=")
        i = self._position[name] = len(self._position)
        self._ops.append(op)
        self._bytes.append(bytes)
        self._flops.append(facts.flops)
        self._dtypes.append(facts.dtype)
        self._shapes.append(tuple(checked_list("shape", facts.shape, InvalidGraph)))
        self._calls.append(facts.call)
        self._storage.append(i)
        self._arguments.append(arguments)
        for mark in marks:
            self._marks[mark].add(i)
        return name

    def _fresh(self, op: str) -> str:
        while (name := f"{op}_{k}" if (k := self._numbers[op]) else op) in self._position:
            self._numbers[op] += 1
        return name

    def _find(self, name: str) -> int:
        try:
            return self._position[name]
        except (KeyError, TypeError):
            known = ", ".join(self._position) or "none yet"
            raise InvalidGraph(f"GraphBuilder: no value named {name!r}; there are: {known}") from None

    def _flag(self, mark: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        flags = np.zeros(len(self._position), np.bool_)
        flags[list(self._marks[mark])] = True
        return flags
