"""Reads a live FX joint graph into a `Graph`: every fact that a cost model may ask for, once."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from remat.facts.bans import Bans
from remat.facts.columns import BoolArray, IntArray, frozen
from remat.facts.graph import Graph, Region
from remat.pytorch.read.call_text import call_texts
from remat.pytorch.read.mutated_inputs import backward_targets, overwritten_inputs, values_in_their_memory
from remat.pytorch.read.operators import COLLECTIVE, GROUPED, Operator, grouped_flops, is_dropout_free
from remat.pytorch.read.places import places_of
from remat.pytorch.read.sharing import bases
from remat.pytorch.seam.fakes import hint
from remat.pytorch.seam.torch_names import formula_over_shapes

_SYMBOL_BYTES = 8
"""A symbolic integer crosses to the backward pass as a Python number."""


def extract(
    joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int, meta: Mapping[str, str] | None = None
) -> Graph:
    """Reads the facts about a joint graph.

    Args:
        joint_graph: forward and backward in one graph, with fake tensors in `meta["val"]`.
        node_info: torch's classification of its nodes.
        num_fwd_outputs: how many of the outputs belong to the forward pass.
        meta: where the graph comes from, besides from which torch.
    """
    return _Reader(joint_graph, node_info, num_fwd_outputs).graph({"torch": torch.__version__, **(meta or {})})


class _Reader:
    """Goes over the nodes once for each kind of fact."""

    def __init__(self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        *self.nodes, self.end = joint_graph.nodes
        self.joint_graph = joint_graph
        self.sources = [node.all_input_nodes for node in self.nodes]
        self.info = node_info
        self.num_fwd_outputs = num_fwd_outputs
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.known_flops: dict[tuple[Any, ...], int] = {}
        self.ops = [Operator.of(node) for node in self.nodes]
        self.op_of = dict(zip(self.nodes, self.ops, strict=True))

    def graph(self, meta: dict[str, str]) -> Graph:
        """Puts all the columns together."""
        nodes, ops = self.nodes, self.ops
        values = [node.meta.get("val") for node in nodes]
        marked = _marks(nodes, ops)
        shapes = [_shape(value) for value in values]
        region = self._regions()
        base = bases(nodes, self.op_of)
        storage = _ints([self.position[base[node]] for node in nodes])
        producers, consumers, fusible, fusible_uses = self._uses()
        view = np.zeros(len(nodes), np.bool_)
        view[consumers[storage[producers] == storage[consumers]]] = True
        parameters = self.info.static_lifetime_input_nodes
        outputs = set(self.end.args[0][: self.num_fwd_outputs])
        gradients = set(self.end.args[0][self.num_fwd_outputs :])
        cannot_save, cannot_recompute = self._rules(base)
        places = places_of(self.position)
        dtypes = tuple(map(_dtype, values))
        symbolic = {nodes[i] for i, dtype in enumerate(dtypes) if dtype == "symint"} if "symint" in dtypes else ()
        return Graph(
            names=tuple(node.name for node in nodes),
            ops=tuple(op.name for op in ops),
            dtypes=dtypes,
            shapes=tuple(shapes),
            bytes=_ints(list(map(_bytes, values, shapes))),
            storage=storage,
            flops=_ints(list(map(self._flops, nodes, shapes))),
            region=region,
            input=frozen(_flags([node.op == "placeholder" for node in nodes]) & (region != int(Region.TANGENTS))),
            parameter=_flags([node in parameters for node in nodes]),
            output=_flags([node in outputs for node in nodes]),
            gradient=_flags([node in gradients for node in nodes]),
            fusible=fusible,
            random=_flags([op.random and not is_dropout_free(node) for node, op in zip(nodes, ops, strict=True)]),
            view=frozen(view),
            compute_bound=_flags([op.compute_bound for op in ops]),
            must_save=marked[CheckpointPolicy.MUST_SAVE],
            must_recompute=marked[CheckpointPolicy.MUST_RECOMPUTE],
            prefer_save=marked[CheckpointPolicy.PREFER_SAVE],
            prefer_recompute=marked[CheckpointPolicy.PREFER_RECOMPUTE],
            producers=producers,
            consumers=consumers,
            fusible_uses=fusible_uses,
            cannot_save=cannot_save,
            cannot_recompute=cannot_recompute,
            meta=meta,
            arguments=call_texts(nodes, self.sources, frozenset(symbolic)),
            modules=tuple(module for module, _ in places),
            sources=tuple(line for _, line in places),
        )

    def _flops(self, node: fx.Node, shape: tuple[int, ...]) -> int:
        """Counts by torch's formula where it has one; one operation an element otherwise."""
        if node.op != "call_function":
            return 0
        value = node.meta.get("val")
        if node.target in _LEFT_FACTOR:
            left: Any = node.args[_LEFT_FACTOR[node.target]]
            return 2 * math.prod(shape) * _shape(left.meta["val"])[-1]
        formula = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
        if formula is None:
            if GROUPED in self.op_of[node].name:
                return grouped_flops(*(_shape(factor.meta["val"]) for factor in node.args[:2]))  # type: ignore[union-attr]
            return math.prod(shape) if isinstance(value, torch.Tensor) else 0
        # A formula takes 50 us, and models repeat their layers.
        settings = [str(given) for given in (*node.args, *node.kwargs.items()) if not isinstance(given, fx.Node)]
        call = (node.target, shape, *settings, *(_shape(source.meta.get("val")) for source in node.all_input_nodes))
        if call not in self.known_flops:
            self.known_flops[call] = hint(_by_formula(formula, node, value))
        return self.known_flops[call]

    def _regions(self) -> IntArray:
        forward, tangents = self.info.required_fw_nodes, self.info.tangents_closure
        either = int(Region.EITHER)  # an enumeration's members are slow to compare and to store
        region = np.array([either] * len(self.nodes), np.int64)
        region[[self.position[node] for node in forward]] = int(Region.FORWARD)
        region[[self.position[node] for node in tangents if node is not self.end]] = int(Region.TANGENTS)
        return frozen(region)

    def _uses(self) -> tuple[IntArray, IntArray, BoolArray, BoolArray]:
        """Lists producers and consumers, and says which values are fusible, and which uses."""
        uses = [(self.position[argument], i) for i, sources in enumerate(self.sources) for argument in sources]
        producers, consumers = (_ints([use[end] for use in uses]) for end in (0, 1))
        fusible = _flags([self.op_of[_maker(node)].fusible for node in self.nodes])
        takes_any = _flags([op.takes_any for op in self.ops])
        gives = _flags([op.gives for op in self.ops])
        fusible_uses = takes_any[consumers] | (fusible[producers] & gives[producers] & fusible[consumers])
        return producers, consumers, fusible, frozen(fusible_uses)

    def _rules(self, base: Mapping[fx.Node, fx.Node]) -> tuple[Bans, Bans]:
        """Says what can never be saved, and never be recomputed, whatever it costs."""
        cannot_save: dict[int, str] = {}
        cannot_recompute: dict[int, str] = {}
        for i, (node, op) in enumerate(zip(self.nodes, self.ops, strict=True)):
            unsaveable = _unsaveable(node.meta.get("val"))
            if unsaveable:
                cannot_save[i] = unsaveable
            if op.seeded and not is_dropout_free(node) and not _restores_its_state(node):
                cannot_recompute[i] = "draws from the random number generator, which moves on"
            elif op.unrepeatable and not (op.unrepeatable == COLLECTIVE and _is_to_run_twice(node)):
                cannot_recompute[i] = op.unrepeatable
            elif _drawn_by_shape_of_kernel(node, op):
                cannot_recompute[i] = "a GPU's kernels draw other numbers from the seed where they have other loops"
        n = len(self.nodes)
        tangents = self.info.tangents_closure
        inputs = overwritten_inputs(self.joint_graph, self.op_of, tangents)
        if not inputs:
            return Bans.of(n, cannot_save), Bans.of(n, cannot_recompute)
        theirs = inputs | values_in_their_memory(self.joint_graph, self.op_of, tangents)
        overwritten = _flags([base[node] in theirs for node in self.nodes])
        # The backward gets what it writes to as a handle: the value behind it is not the one that the forward read.
        handles = inputs & backward_targets(self.joint_graph, self.op_of, tangents)
        readers = {reader for node in handles for reader in node.users if reader not in tangents}
        handle, stale = (_flags([node in these for node in self.nodes]) for these in (handles, readers))
        why = "the forward pass overwrites its memory"
        return (
            Bans.of(n, cannot_save).also(overwritten & ~handle, why),
            Bans.of(n, cannot_recompute).also(overwritten, why).also(stale, "reads what the forward pass overwrites"),
        )


_aten: Any = torch.ops.aten
_LEFT_FACTOR: dict[Any, int] = {
    _aten.mm.default: 0,
    _aten.bmm.default: 0,
    _aten.addmm.default: 1,
    _aten.baddbmm.default: 1,
}
"""Matrix products, and which argument is the left factor. What torch's formula takes 20 us for is one line here."""


class _Shape(tuple[Any, ...]):
    """A shape that torch's formulas read as any other, but that their wrappers need not take apart and rebuild."""


_OVER_SHAPES = getattr(formula_over_shapes(math.prod), "__code__", None)
"""Of the wrapper that torch puts around a formula over shapes: it maps trees, which takes 50 us a matrix product."""


def _by_formula(formula: Any, node: fx.Node, value: object) -> Any:
    """Counts the floating-point operations of a call by torch's formula."""

    def shape(argument: fx.Node) -> Any:
        given = argument.meta["val"]
        return _Shape(given.shape) if isinstance(given, torch.Tensor) else given

    if getattr(formula, "__code__", formula) is _OVER_SHAPES and isinstance(value, torch.Tensor):
        args, kwargs = map_arg((node.args, node.kwargs), shape)
        return formula.__wrapped__(*args, **kwargs, out_shape=_Shape(value.shape))
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    try:
        return formula(*args, **kwargs, out_val=value)
    except AssertionError:  # torch 2.11 has no formula for attention of grouped queries: repeat keys and values
        args, kwargs = map_arg((node.args, node.kwargs), shape)
        return formula.__wrapped__(*_repeated_heads(args), **kwargs)


def _repeated_heads(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gives queries, keys and values, of (batch, heads, length, width), as many heads each as the queries have."""
    heads = max((shape[1] for shape in args if isinstance(shape, _Shape) and len(shape) == 4), default=0)
    return tuple(
        _Shape((shape[0], heads, *shape[2:])) if isinstance(shape, _Shape) and len(shape) == 4 else shape
        for shape in args
    )


def _flags(facts: list[bool]) -> BoolArray:
    return frozen(np.array(facts, np.bool_))


def _ints(numbers: list[int]) -> IntArray:
    return frozen(np.array(numbers, np.int64))


def _marks(nodes: list[fx.Node], ops: list[Operator]) -> dict[CheckpointPolicy, BoolArray]:
    """Says which nodes carry each of torch's marks: none, as a rule.

    MUST_SAVE on a collective is of torch's partitioner itself, lest it run twice: that is among the bans.
    """
    marks = [node.meta.get("recompute") for node in nodes]
    if (save := CheckpointPolicy.MUST_SAVE) in marks:
        marks = [
            None if mark is save and op.unrepeatable == COLLECTIVE else mark
            for mark, op in zip(marks, ops, strict=True)
        ]
    nowhere = _flags([False] * len(nodes))
    return {
        policy: _flags([mark is policy for mark in marks]) if policy in marks else nowhere
        for policy in CheckpointPolicy
    }


def _restores_its_state(node: fx.Node) -> bool:
    """Whether torch will draw the same random numbers again where the operator is recomputed.

    It does so for what was marked before the partitioner (`must_recompute`, `functionalize_rng_ops`): the forward
    pass keeps the state of the global generator, and the backward pass sets it. Plain `torch.utils.checkpoint` marks
    all that it contains as preferred, which counts. Inductor's own seeds need no such thing, and a generator of
    the user's own has another state.
    """
    aten = getattr(node.target, "namespace", "") == "aten"
    return _is_to_run_twice(node) and aten and node.kwargs.get("generator") is None


def _is_to_run_twice(node: fx.Node) -> bool:
    """Whether the model marks it: in a checkpointed region of the user's, torch runs even a collective again."""
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def _drawn_by_shape_of_kernel(node: fx.Node, op: Operator) -> bool:
    """Whether a kernel of the backward pass may draw other numbers than that of the forward pass, from one seed.

    On GPUs Inductor draws four numbers at a time in kernels over one index, and one at a time in others, a reduction
    for one: these are not the same numbers (torch 2.13). What the model says must be recomputed is left to torch.
    """
    value = node.meta.get("val")
    marked = node.meta.get("recompute") == CheckpointPolicy.MUST_RECOMPUTE
    on_gpu = isinstance(value, torch.Tensor) and value.device.type == "cuda"
    return on_gpu and op.name.startswith("prims.inductor_random") and not marked


def _maker(node: fx.Node) -> fx.Node:
    """Finds what writes, or fuses, a value: of an element of a tuple, the operator that makes the tuple."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]  # the tuple
    return node


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else hint(size) for size in value.shape)


def _dtype(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _dtype_name(value.dtype)
    return "symint" if isinstance(value, torch.SymInt) else ""


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(value: object, shape: tuple[int, ...]) -> int:
    if isinstance(value, torch.Tensor):
        return math.prod(shape) * value.itemsize
    return _SYMBOL_BYTES if isinstance(value, torch.SymInt) else 0


def _unsaveable(value: object) -> str | None:
    """Says why a value cannot cross from the forward to the backward pass, or None."""
    if isinstance(value, (tuple, list)):
        return "a tuple: its elements can be saved"
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return f"a {type(value).__name__}"
    return "not a tensor" if value is None else None
