"""Builds joint graphs by hand, without PyTorch: for examples, tests and studies of small networks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.errors import InvalidGraph
from remat.facts.argument_checks import checked_list
from remat.facts.bans import Bans
from remat.facts.columns import FLAGS, mask_of
from remat.facts.graph import Graph, Region


@dataclass(frozen=True)
class _Value:
    op: str
    bytes: int
    operands: tuple[int, ...] = ()
    view: bool = False
    flops: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    call: str = ""


class GraphBuilder:
    """Builds a `Graph` value by value; regions, storages and views follow from the calls.

    Every method raises `InvalidGraph` for a name that is taken or unknown.

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
        self._numbers: Counter[str] = Counter()  # operator -> a lower bound on how often its name is taken
        self._values: list[_Value] = []
        self._marks: dict[str, set[int]] = {mark: set() for mark in (*FLAGS, "tangent")}
        self._cannot_save: dict[int, str] = {}
        self._cannot_recompute: dict[int, str] = {}

    def input(
        self, name: str, *, bytes: int = 1, parameter: bool = False, dtype: str = "", shape: tuple[int, ...] = ()
    ) -> str:
        """Adds an input of the forward pass and returns its name."""
        marks = {"input", "parameter"} if parameter else {"input"}
        return self._add(name, _Value("placeholder", bytes, dtype=dtype, shape=_shape(shape)), marks)

    def tangent(self, name: str, *, bytes: int = 1) -> str:
        """Adds an input of the backward pass: the gradient of an output."""
        return self._add(name, _Value("placeholder", bytes), {"tangent"})

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
            op: the operator; also the name of the value, with a number if that is taken.
            arguments: names of its operands.
            name: the name of the value, if not that of the operator.
            bytes: size in bytes; that of the first operand by default.
            fusible, random: as the columns of `Graph`.
            view: whether the value shares the storage of its first operand.
            compute_bound: whether it is, for example, a matrix multiplication, and so not fusible.
            must_save, must_recompute: strict annotations.
            prefer_save, prefer_recompute: annotations that apply where it is possible.
            cannot_save, cannot_recompute: why it can never be saved, or computed twice; None if it can.
            flops: floating-point operations.
            dtype, shape: of a tensor; they must agree with `bytes`.
            call: its entry in `Graph.arguments`.
        """
        operands = tuple(dict.fromkeys(self._find(argument) for argument in arguments))
        if bytes is None:
            if not operands:
                raise InvalidGraph(f"GraphBuilder.op({op!r}): give bytes=, there is no argument to take a size from")
            bytes = self._values[operands[0]].bytes
        if view and not operands:
            raise InvalidGraph(f"GraphBuilder.op({op!r}): a view needs an argument, whose storage it lives in")
        flags = {
            "random": random,
            "view": view,
            "compute_bound": compute_bound,
            "fusible": fusible and not compute_bound,
            "must_save": must_save,
            "must_recompute": must_recompute,
            "prefer_save": prefer_save,
            "prefer_recompute": prefer_recompute,
        }
        marks = {mark for mark, on in flags.items() if on}
        value = _Value(op, bytes, operands, view, flops, dtype, _shape(shape), call)
        label = self._add(name or self._fresh(op), value, marks)
        i = len(self._position) - 1
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
        """Returns the finished graph; raises `InvalidGraph` if it breaks a rule of `Graph`."""
        n, values = len(self._position), self._values
        uses = [(u, v) for v, value in enumerate(values) for u in value.operands]
        storage: list[int] = []
        for v, value in enumerate(values):
            storage.append(storage[value.operands[0]] if value.view else v)
        flags: dict[str, Any] = {flag: mask_of([*self._marks[flag]], n) for flag in FLAGS}
        fusible = flags["fusible"]
        producers = np.array([u for u, _ in uses], np.int64)
        consumers = np.array([v for _, v in uses], np.int64)
        return Graph(
            names=tuple(self._position),
            ops=tuple(value.op for value in values),
            dtypes=tuple(value.dtype for value in values),
            shapes=tuple(value.shape for value in values),
            bytes=np.array([value.bytes for value in values]),  # of unchecked type: Graph checks them
            storage=np.array(storage, np.int64),
            flops=np.array([value.flops for value in values]),
            region=np.array(self._regions(), np.int64),
            **flags,
            producers=producers,
            consumers=consumers,
            fusible_uses=fusible[producers] & fusible[consumers],
            cannot_save=Bans.of(n, self._cannot_save),
            cannot_recompute=Bans.of(n, self._cannot_recompute),
            arguments=tuple(value.call for value in values),
        )

    def _regions(self) -> list[Region]:
        n = len(self._position)
        region = [Region.EITHER] * n
        for i, value in enumerate(self._values):
            if i in self._marks["tangent"] or any(region[u] is Region.TANGENTS for u in value.operands):
                region[i] = Region.TANGENTS
        forward = self._marks["output"] | self._marks["input"]
        for i in reversed(range(n)):
            if i in forward:
                region[i] = Region.FORWARD
                forward.update(self._values[i].operands)
        return region

    def _add(self, name: str, value: _Value, marks: set[str]) -> str:
        if not isinstance(name, str) or not isinstance(value.op, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidGraph(f"GraphBuilder: names and operators are text, got {name!r} and {value.op!r}")
        if name in self._position:
            raise InvalidGraph(f"GraphBuilder: the name {name!r} is taken; give another with name=")
        i = self._position[name] = len(self._position)
        self._values.append(value)
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
            names = ", ".join(self._position) or "none yet"
            raise InvalidGraph(f"GraphBuilder: no value named {name!r}; there are: {names}") from None


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(checked_list("shape", shape, InvalidGraph))
