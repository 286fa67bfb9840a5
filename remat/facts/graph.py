"""Defines the joint graph of a training step's forward and backward pass, as plain columns.

A graph holds facts: what each value is (size, operator, storage, where it is needed), which uses a compiler can fuse,
and what can never be saved or recomputed. The *cost* of saving or recomputing comes from a cost model
(`remat.CostModel`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from remat.errors import InvalidGraph, InvalidOption
from remat.facts.argument_checks import checked_path
from remat.facts.bans import Bans
from remat.facts.columns import (
    FLAGS,
    INTS,
    LARGEST_TOTAL,
    LATER_FLAGS,
    TEXTS,
    BoolArray,
    FrozenColumns,
    IntArray,
    any_set,
    bool_column,
    frozen,
    int_column,
    mask_of,
    name_column,
)
from remat.facts.graph_file import read_columns, write_columns
from remat.facts.lazy_field import LazyField, is_deferred
from remat.facts.tensors import check_storages, check_tensors
from remat.facts.uses import check_uses, operands_of

_T = TypeVar("_T")
_Scalar = TypeVar("_Scalar", bound=np.generic)

_LEAF_OPS = ("placeholder", "get_attr")


class Region(IntEnum):
    """Lists where a value can, or must, be computed."""

    FORWARD = 0
    """Needed by an output of the forward pass."""
    TANGENTS = 1
    """In the tangents' closure: depends on a gradient, so only the backward pass can compute it."""
    EITHER = 2
    """Needed only by the backward pass, but computable from the inputs: either pass may compute it."""


@dataclass(frozen=True, eq=False)
class Graph(FrozenColumns):
    """Holds the joint graph of a training step: n values in topological order, and m uses of one by another.

    Build one with `remat.capture` (a PyTorch model), `remat.GraphBuilder` (by hand) or `Graph.load` (a file). The
    constructor checks every rule below and raises `InvalidGraph`. Columns with a default may be left out.

    Attributes:
        names: the unique name of each value.
        ops: the operator that computes it, e.g. "aten.mm.default", or "placeholder".
        dtypes: element type, e.g. "float32"; "" for values that are no tensors.
        shapes: sizes of the tensor; () for scalars, for values that are no tensors, and if unknown.
        bytes: (n,) size of the value: elements x bytes of an element; below 2**50 if type and shape are known.
        storage: (n,) non-negative number of its storage; a view has the number of its base.
        flops: (n,) floating-point operations to compute it once.
        region: (n,) a `Region` each.
        input: (n,) primal inputs of the forward pass (with parameters, buffers and RNG state).
        parameter: (n,) inputs that are as long-lived as the model, so that saving them costs no memory.
        output: (n,) outputs of the forward pass.
        gradient: (n,) outputs of the backward pass.
        fusible: (n,) operators that PyTorch's partitioner fuses with their neighbours; an input has no kernel, so it is
            not fusible. Prices and rules need this meaning; docs/fusion.md lists others.
        random: (n,) operators that draw, or expand, random numbers.
        view: (n,) values that share the storage of one of their operands.
        compute_bound: (n,) matrix multiplications, convolutions, attention.
        must_save, must_recompute: (n,) strict annotations of the user (torch's `CheckpointPolicy`).
        prefer_save, prefer_recompute: (n,) annotations of the user that apply where it is possible.
        producers, consumers: (m,) the two ends of each use; producer < consumer.
        fusible_uses: (m,) uses whose ends PyTorch's partitioner puts into one kernel.
        cannot_save: values that cannot be passed from forward to backward (for example tuples), with reasons.
        cannot_recompute: values that must not be computed twice (effects, seeds, collectives), with reasons.
        meta: the origin of the graph: model, versions, date.
        arguments: how each operator was called, as JSON (`remat.pytorch.read.call_text`); "" if its operands are all
            its arguments, in the order of its uses. "" by default.
        modules: path of the module that computes each value, such as "encoder.layers.3.fc1"; "" for the model itself,
            or if unknown. A value that autograd adds has the module of its forward value; an input has the first module
            that reads it. "" by default. Equality ignores this column, `sources` and `noncontiguous`.
        sources: the line of the model that computes each value, such as "model.py:57"; "" if unknown, and by default.
        noncontiguous: (n,) tensors whose elements are not in memory in the order of their indices, such as
            channels-last images. None by default.
    """

    names: tuple[str, ...]
    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    bytes: IntArray
    storage: IntArray
    flops: IntArray
    region: IntArray
    input: BoolArray
    parameter: BoolArray
    output: BoolArray
    gradient: BoolArray
    fusible: BoolArray
    random: BoolArray
    view: BoolArray
    compute_bound: BoolArray
    must_save: BoolArray
    must_recompute: BoolArray
    prefer_save: BoolArray
    prefer_recompute: BoolArray
    producers: IntArray
    consumers: IntArray
    fusible_uses: BoolArray
    cannot_save: Bans
    cannot_recompute: Bans
    meta: Mapping[str, str] = field(default_factory=dict[str, str])
    arguments: LazyField[tuple[str, ...]] = field(default=LazyField(()))
    modules: LazyField[tuple[str, ...]] = field(default=LazyField(()), compare=False)
    sources: LazyField[tuple[str, ...]] = field(default=LazyField(()), compare=False)
    noncontiguous: BoolArray = field(default=None, compare=False)  # type: ignore[assignment]  # after __post_init__ n flags

    def __post_init__(self) -> None:
        for name in ("names", "ops", "dtypes"):
            object.__setattr__(self, name, name_column(f"Graph.{name}", getattr(self, name), InvalidGraph))
        n, m = len(self.names), len(self.producers)
        for name in INTS:
            object.__setattr__(self, name, int_column(f"Graph.{name}", getattr(self, name), n, InvalidGraph))
        for name in ("producers", "consumers"):
            object.__setattr__(self, name, int_column(f"Graph.{name}", getattr(self, name), m, InvalidGraph))
        if self.noncontiguous is None:  # pyright: ignore[reportUnnecessaryComparison]
            object.__setattr__(self, "noncontiguous", np.zeros(n, np.bool_))
        for name in (*FLAGS, *LATER_FLAGS):
            object.__setattr__(self, name, bool_column(f"Graph.{name}", getattr(self, name), n, InvalidGraph))
        uses = bool_column("Graph.fusible_uses", self.fusible_uses, m, InvalidGraph)
        object.__setattr__(self, "fusible_uses", uses)
        for name in TEXTS:
            if not is_deferred(self, name):
                object.__setattr__(self, name, tuple(getattr(self, name)) or ("",) * n)
        _check(self)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        origin = f" of {self.meta['model']}" if "model" in self.meta else ""
        counts = ", ".join(f"{int((self.region == r).sum())} {r.name.lower()}" for r in Region)
        return f"<Graph{origin}: {len(self)} values ({counts}), {len(self.producers)} uses>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.compare)

    __hash__ = None  # type: ignore[assignment]  # arrays inside: equal, but not hashable

    @cached_property
    def index(self) -> dict[str, int]:
        """Returns the position of each name."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """Returns, for each value, the positions of its operands, in the order of its uses."""
        return operands_of(len(self), self.producers, self.consumers)

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Returns the module and line that compute each value: "layers.0.fc1, model.py:57", or "" if unknown.

        The text begins with "input of" for an input, and with "backward of" for a value that only the backward pass
        needs.
        """
        roles = np.select([self.input, ~self.in_forward], ["input of ", "backward of "], "").tolist()
        places = (", ".join(filter(None, place)) for place in zip(self.modules, self.sources, strict=True))
        return tuple([f"{role}{place}" if place else "" for role, place in zip(roles, places, strict=True)])

    @cached_property
    def in_forward(self) -> BoolArray:
        """Returns a mask (n,) of the values of the region FORWARD."""
        return frozen(self.region == int(Region.FORWARD))

    @cached_property
    def in_tangents(self) -> BoolArray:
        """Returns a mask (n,) of the values of the region TANGENTS."""
        return frozen(self.region == int(Region.TANGENTS))

    @cached_property
    def plannable(self) -> IntArray:
        """Returns the positions (k,) of the values about which a plan decides: all that the forward pass can compute.

        Value i of a `remat.Problem` about this graph is `plannable[i]` here.
        """
        return frozen(np.flatnonzero(~self.in_tangents))

    def for_all_values(self, column: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Extends a mask or prices (k,) of the values of a problem to all values of this graph (n,), filled with 0."""
        wide = np.zeros(len(self), column.dtype)
        wide[self.plannable] = column
        return frozen(wide)

    @cached_property
    def base(self) -> IntArray:
        """Returns an array (n,): for each value, the position of the value that owns its storage."""
        order = self.storage.argsort(kind="stable")
        grouped = self.storage[order]
        starts = np.empty(len(self), np.bool_)
        starts[:1] = True
        starts[1:] = grouped[1:] != grouped[:-1]
        base = np.empty(len(self), np.int64)
        base[order] = order[starts][starts.cumsum() - 1]
        return frozen(base)

    @cached_property
    def tuple_element(self) -> BoolArray:
        """Returns a mask (n,) of the elements of tuples that operators with several results return."""
        return frozen(np.fromiter((op == "getitem" for op in self.ops), np.bool_, len(self)))

    @cached_property
    def leaf(self) -> BoolArray:
        """Returns a mask (n,) of the values without an operator: inputs of the forward pass, tangents, constants."""
        return frozen(self.input | np.fromiter((op in _LEAF_OPS for op in self.ops), np.bool_, len(self)))

    @cached_property
    def storage_bytes(self) -> IntArray:
        """Returns an array (n,) of the bytes of each value's storage; a view keeps the whole storage alive."""
        return frozen(self.bytes[self.base])

    @cached_property
    def activation_bytes(self) -> IntArray:
        """Returns an array (n,) of the memory that saving each value takes: its storage, or 0 if an input owns that.

        Each view of a storage counts separately: a plan that saves two views is priced as if it kept the storage twice.
        `remat.plugin.PlanFacts` counts each storage once.
        """
        return frozen(np.where(self.input[self.base], 0, self.storage_bytes))

    @cached_property
    def moved_bytes(self) -> IntArray:
        """Returns an array (n,) of the bytes that a read of each value moves: an expanded view reads only its base."""
        return frozen(np.minimum(self.bytes, self.storage_bytes))

    @cached_property
    def needed(self) -> BoolArray:
        """Returns a mask (n,) of the values that the backward pass reads or returns and that depend on no tangent."""
        tangents = self.in_tangents
        needed = self.gradient & ~tangents
        needed[self.producers[tangents[self.consumers] & ~tangents[self.producers]]] = True
        return frozen(needed)

    @cached_property
    def materialized(self) -> BoolArray:
        """Returns a mask (n,) of the values whose storage is written to memory whatever is saved (paper, Algorithm 2).

        These are inputs, outputs, and values with a use that cannot be fused. A view is written if and only if its base
        is, so whole storages are marked.
        """
        written = self.input | self.output
        written[self.producers[~self.fusible_uses]] = True
        return frozen(self.owners(written)[self.base])

    @cached_property
    def save_traffic(self) -> IntArray:
        """Returns an array (n,) of the bytes that saving each value moves (paper, Algorithm 2).

        The backward pass reads a saved value once. It is also written, unless it is in memory anyway.
        """
        return frozen(np.where(self.materialized, self.moved_bytes, 2 * self.moved_bytes))

    def owners(self, values: BoolArray) -> BoolArray:
        """Returns a mask (n,) of the owners of the storages of some values (n,)."""
        return mask_of(self.base[values], len(self))

    def with_elements(self, values: BoolArray) -> BoolArray:
        """Returns a mask (n,) of some values (n,) and, for each tuple among them, of its elements.

        An operator that runs computes its whole tuple, even elements that only the backward pass reads, such as the
        sums of exponentials of attention.
        """
        whole = values.copy()
        whole[self.consumers[self.tuple_element[self.consumers] & values[self.producers]]] = True
        return whole

    @cached_property
    def signature(self) -> tuple[str, ...]:
        """Returns a line for each value that the forward pass can compute; plans for this graph depend on these lines.

        >>> from remat import GraphBuilder
        >>> g = GraphBuilder()
        >>> g.output(g.op("sin", g.input("x", bytes=4)))
        >>> g.build().signature
        ('x: placeholder, 4 bytes', 'sin: sin, 4 bytes, of x')
        """
        lines: list[str] = []
        plannable: list[int] = self.plannable.tolist()
        names, sizes = self.names, self.bytes.tolist()
        for i in plannable:
            kind = f" {self.dtypes[i]}{list(self.shapes[i])}" if self.dtypes[i] else ""
            operands = ", ".join([names[u] for u in self.operands[i]])
            of = f", of {operands}" if operands else ""
            lines.append(f"{names[i]}: {self.ops[i]}{kind}, {sizes[i]} bytes{of}")
        return tuple(lines)

    def derived(self, derive: Callable[[Graph], _T]) -> _T:
        """Returns `derive(self)`; the function is called once, and its result is cached with the graph."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return self._derived[derive]

    @cached_property
    def _derived(self) -> dict[Callable[[Graph], Any], Any]:
        return {}

    def save(self, path: str | Path) -> None:
        """Writes the graph as JSON, gzipped if the name ends in ".gz" (see `remat.facts.graph_file`)."""
        write_columns({field.name: getattr(self, field.name) for field in fields(self)}, checked_path(path))

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Reads and checks a file that `save` wrote.

        Raises:
            InvalidGraph: the file is truncated, not JSON, of a newer version, or breaks a rule.
        """
        columns = read_columns(checked_path(path))
        try:
            return cls(**columns)
        except InvalidGraph as error:
            raise InvalidGraph(f"{path}: {error}") from None


def checked_graph(graph: object) -> Graph:
    """Returns the same graph; raises `InvalidOption` for anything else."""
    if not isinstance(graph, Graph):
        raise InvalidOption(f"graph must be a remat.Graph (Graph.load reads a file), got {graph!r}")
    return graph


def _same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return np.array_equal(np.asarray(left), np.asarray(right))
    return left == right


def _check(graph: Graph) -> None:
    n = len(graph)
    for label in ("ops", "dtypes", "shapes", *TEXTS, "cannot_save", "cannot_recompute"):
        if not is_deferred(graph, label) and len(getattr(graph, label)) != n:
            raise InvalidGraph(f"Graph.{label} must have one entry a name ({n}), got {len(getattr(graph, label))}")
    if len(set(graph.names)) != n:
        name = next(name for i, name in enumerate(graph.names) if graph.index[name] != i)
        raise InvalidGraph(f"Graph.names must be unique, got {name!r} twice")
    for label in ("bytes", "flops"):
        column: IntArray = getattr(graph, label)
        if any_set(column < 0):
            i = int(column.argmin())
            raise InvalidGraph(f"Graph.{label}[{graph.names[i]!r}] must not be negative, got {int(column[i])}")
    # The columns are summed as int64; a sum of doubles is exact enough to refuse sums that could overflow.
    if float(graph.bytes.sum(dtype=np.float64)) >= LARGEST_TOTAL:
        raise InvalidGraph("Graph.bytes must add up to less than 2**62")
    unknown = (graph.region < 0) | (graph.region >= len(Region))
    if any_set(unknown):
        bad = int(graph.region[unknown][0])
        raise InvalidGraph(f"Graph.region must hold {[int(r) for r in Region]} (see remat.plugin.Region), got {bad}")
    _check_flags(graph)
    check_uses(graph.names, graph.producers, graph.consumers, "Graph", InvalidGraph)
    check_tensors(graph.names, graph.dtypes, graph.shapes, graph.bytes)
    check_storages(graph.names, graph.storage, graph.base, graph.view, graph.leaf, graph.producers, graph.consumers)
    _check_regions(graph)


def _check_flags(graph: Graph) -> None:
    contradictions = {
        "a parameter, but not an input": graph.parameter & ~graph.input,
        "both must_save and must_recompute": graph.must_save & graph.must_recompute,
        "both prefer_save and prefer_recompute": graph.prefer_save & graph.prefer_recompute,
    }
    for what, where in contradictions.items():
        if any_set(where):
            raise InvalidGraph(f"Graph: {graph.names[int(np.flatnonzero(where)[0])]!r} is {what}")


def _check_regions(graph: Graph) -> None:
    u, v = graph.producers, graph.consumers
    forward, tangents = graph.in_forward, graph.in_tangents
    bad_uses = {
        "depends on a tangent, so its region must be TANGENTS": tangents[u] & ~tangents[v],
        "is FORWARD, so what it uses must be FORWARD too": forward[v] & ~forward[u],
        "is an input, so it cannot use another value": graph.input[v],
    }
    for because, bad in bad_uses.items():
        if any_set(bad):
            producer, consumer = graph.names[int(u[bad][0])], graph.names[int(v[bad][0])]
            raise InvalidGraph(f"Graph: {consumer!r} (which uses {producer!r}) {because}")
    if any_set(wrong := graph.input & tangents):
        raise InvalidGraph(f"Graph.region[{_first(graph, wrong)!r}] must not be TANGENTS: the forward pass reads it")
    if any_set(wrong := graph.output & ~forward):
        raise InvalidGraph(f"Graph.region[{_first(graph, wrong)!r}] must be FORWARD: the forward pass returns it")


def _first(graph: Graph, where: BoolArray) -> str:
    return graph.names[int(where.argmax())]
