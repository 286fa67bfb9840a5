"""From a live FX joint graph to a `Graph`: every fact that a cost model may ask for, once."""

# FX nodes carry untyped metadata, and some of it is private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from remat.arrays import BoolArray, IntArray
from remat.bans import Bans
from remat.graph import Graph, Region
from remat.pytorch import seam
from remat.pytorch.operators import Operator, is_dropout_free
from remat.pytorch.overwritten import overwritten_inputs
from remat.pytorch.storages import bases

_SYMBOL_BYTES = 8
"""A symbolic integer crosses to the backward pass as a Python number."""


def extract(
    joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int, meta: Mapping[str, str] | None = None
) -> Graph:
    """The facts about a joint graph.

    Args:
        joint_graph: forward and backward in one graph, with fake tensors in `meta["val"]`.
        node_info: torch's classification of its nodes.
        num_fwd_outputs: how many of the outputs belong to the forward pass.
        meta: where the graph comes from.
    """
    return _Reader(joint_graph, node_info, num_fwd_outputs).graph(dict(meta or {}))


class _Reader:
    """One pass over the nodes for each kind of fact."""

    def __init__(self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        *self.nodes, self.end = joint_graph.nodes
        self.joint_graph = joint_graph
        self.info = node_info
        self.num_fwd_outputs = num_fwd_outputs
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.known_flops: dict[tuple[Any, ...], int] = {}
        known: dict[Any, Operator] = {}
        self.ops = [known.get(node.target) or known.setdefault(node.target, Operator.of(node)) for node in self.nodes]
        self.op_of = dict(zip(self.nodes, self.ops, strict=True))

    def graph(self, meta: dict[str, str]) -> Graph:
        """All the columns together."""
        nodes, ops = self.nodes, self.ops
        shapes = [_shape(node.meta.get("val")) for node in nodes]
        region = self._regions()
        base = bases(nodes, self.op_of)
        storage = np.array([self.position[base[node]] for node in nodes], np.int64)
        producers, consumers, fusible, fusible_uses = self._uses()
        view = np.zeros(len(nodes), np.bool_)
        view[consumers[storage[producers] == storage[consumers]]] = True
        outputs = set(self.end.args[0][: self.num_fwd_outputs])
        gradients = set(self.end.args[0][self.num_fwd_outputs :])
        cannot_save, cannot_recompute = self._rules(base)
        return Graph(
            names=tuple(node.name for node in nodes),
            ops=tuple(op.name for op in ops),
            dtypes=tuple(_dtype(node.meta.get("val")) for node in nodes),
            shapes=tuple(shapes),
            bytes=np.array([_bytes(node.meta.get("val"), shape) for node, shape in zip(nodes, shapes, strict=True)]),
            storage=storage,
            flops=np.array([self._flops(node, shape) for node, shape in zip(nodes, shapes, strict=True)]),
            region=region,
            input=self._flags(lambda node, _: node.op == "placeholder") & (region != Region.TANGENTS),
            parameter=self._flags(lambda node, _: node in self.info.static_lifetime_input_nodes),
            output=self._flags(lambda node, _: node in outputs),
            gradient=self._flags(lambda node, _: node in gradients),
            fusible=fusible,
            random=self._flags(lambda node, op: op.random and not is_dropout_free(node)),
            view=view,
            compute_bound=self._flags(lambda _, op: op.compute_bound),
            must_save=self._marked(CheckpointPolicy.MUST_SAVE),
            must_recompute=self._marked(CheckpointPolicy.MUST_RECOMPUTE),
            prefer_save=self._marked(CheckpointPolicy.PREFER_SAVE),
            prefer_recompute=self._marked(CheckpointPolicy.PREFER_RECOMPUTE),
            producers=producers,
            consumers=consumers,
            fusible_uses=fusible_uses,
            cannot_save=cannot_save,
            cannot_recompute=cannot_recompute,
            meta=meta,
        )

    def _flags(self, fact: Callable[[fx.Node, Operator], bool]) -> BoolArray:
        return np.fromiter(map(fact, self.nodes, self.ops), np.bool_, len(self.nodes))

    def _marked(self, policy: CheckpointPolicy) -> BoolArray:
        return self._flags(lambda node, _: node.meta.get("recompute") == policy)

    def _flops(self, node: fx.Node, shape: tuple[int, ...]) -> int:
        """By torch's formula where it has one; one operation an element otherwise."""
        if node.op != "call_function":
            return 0
        value = node.meta.get("val")
        formula = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
        if formula is None:
            return math.prod(shape) if isinstance(value, torch.Tensor) else 0
        # A formula takes 50 us, and models repeat their layers.
        settings = [str(argument) for argument in node.args if not isinstance(argument, fx.Node)]
        call = (node.target, shape, *settings, *(_shape(source.meta.get("val")) for source in node.all_input_nodes))
        if call not in self.known_flops:
            args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
            self.known_flops[call] = seam.hint(formula(*args, **kwargs, out_val=value))
        return self.known_flops[call]

    def _regions(self) -> IntArray:
        region = np.full(len(self.nodes), Region.EITHER, np.int64)
        region[[self.position[node] for node in self.info._required_fw_nodes]] = Region.FORWARD
        region[[self.position[node] for node in self.info.tangents_closure if node is not self.end]] = Region.TANGENTS
        return region

    def _uses(self) -> tuple[IntArray, IntArray, BoolArray, BoolArray]:
        """Producers, consumers, which values are fusible, and which uses."""
        uses = [(self.position[argument], i) for i, node in enumerate(self.nodes) for argument in node.all_input_nodes]
        producers, consumers = np.array(uses, np.int64).reshape(-1, 2).T
        fusible = self._flags(lambda node, _: self.ops[self.position[_maker(node)]].fusible)
        takes_any = self._flags(lambda _, op: op.takes_any)
        gives = self._flags(lambda _, op: op.gives)
        fusible_uses = takes_any[consumers] | (fusible[producers] & gives[producers] & fusible[consumers])
        return producers, consumers, fusible, fusible_uses

    def _rules(self, base: Mapping[fx.Node, fx.Node]) -> tuple[Bans, Bans]:
        """What can never be saved, and never be recomputed, whatever it costs."""
        cannot_save: dict[int, str] = {}
        cannot_recompute: dict[int, str] = {}
        for i, (node, op) in enumerate(zip(self.nodes, self.ops, strict=True)):
            unsaveable = _unsaveable(node.meta.get("val"))
            if unsaveable:
                cannot_save[i] = unsaveable
            if op.seeded and not is_dropout_free(node):
                cannot_recompute[i] = "draws from the random number generator, which moves on"
            elif op.unrepeatable:
                cannot_recompute[i] = op.unrepeatable
        n = len(self.nodes)
        inputs = overwritten_inputs(self.joint_graph, self.op_of, self.info.tangents_closure)
        overwritten = self._flags(lambda node, _: base[node] in inputs)
        why = "the forward pass overwrites its memory"
        return (
            Bans.of(n, cannot_save).also(overwritten, why),
            Bans.of(n, cannot_recompute).also(overwritten, why),
        )


def _maker(node: fx.Node) -> fx.Node:
    """An element of a tuple is written, or fused, by the operator that makes the tuple."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]  # the tuple
    return node


def _shape(value: object) -> tuple[int, ...]:
    if not isinstance(value, torch.Tensor):
        return ()
    return tuple(size if type(size) is int else seam.hint(size) for size in value.shape)


def _dtype(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    return "symint" if isinstance(value, torch.SymInt) else ""


def _bytes(value: object, shape: tuple[int, ...]) -> int:
    if isinstance(value, torch.Tensor):
        return math.prod(shape) * value.itemsize
    return _SYMBOL_BYTES if isinstance(value, torch.SymInt) else 0


def _unsaveable(value: object) -> str | None:
    """Why a value cannot cross from the forward to the backward pass, or None."""
    if isinstance(value, (tuple, list)):
        return "a tuple: its elements can be saved"
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return f"a {type(value).__name__}"
    return "not a tensor" if value is None else None
