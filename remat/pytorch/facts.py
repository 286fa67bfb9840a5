"""From a live FX joint graph to a `Graph`: every fact that a cost model may ask for, once."""

# FX nodes carry untyped metadata.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from remat.bans import Bans
from remat.graph import Graph, Region
from remat.pytorch import seam

_SYMBOL_BYTES = 8
"""A symbolic integer crosses to the backward pass as a Python number."""


@dataclass(frozen=True)
class _Op:
    """What depends on the operator alone."""

    name: str
    fusible: bool
    takes_any: bool
    """Fuses with any producer as a consumer (torch: "memory fusion into a cat")."""
    gives: bool
    """Can be fused into its consumers."""
    random: bool
    seeded: bool
    compute_bound: bool
    unrepeatable: str | None


class _Columns:
    """The columns of a graph while it is read, one entry a node."""

    def __init__(self, length: int) -> None:
        self.dtypes: list[str] = [""] * length
        self.shapes: list[tuple[int, ...]] = [()] * length
        self.bytes: list[int] = [0] * length
        self.storage: list[int] = [-1 - i for i in range(length)]  # a storage of its own, unless told
        self.flops: list[int] = [0] * length
        self.cannot_save: dict[int, str] = {}
        self.cannot_recompute: dict[int, str] = {}


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
    nodes = [node for node in joint_graph.nodes if node.op != "output"]
    position = {node: i for i, node in enumerate(nodes)}
    known: dict[Any, _Op] = {}
    ops = [known.get(node.target) or known.setdefault(node.target, _describe(node)) for node in nodes]
    columns = _Columns(len(nodes))
    region = _regions(nodes, node_info)
    for i, (node, op) in enumerate(zip(nodes, ops, strict=True)):
        _read_value(columns, i, node)
        _read_rules(columns, i, node, op)

    def flags(values: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.fromiter(values, np.bool_, len(nodes))

    fusible = flags(_is_fusible(node, op, position, ops) for node, op in zip(nodes, ops, strict=True))
    uses = [(position[argument], i) for i, node in enumerate(nodes) for argument in node.all_input_nodes]
    producers, consumers = np.array(uses, np.int64).reshape(-1, 2).T
    takes_any, gives = flags(op.takes_any for op in ops), flags(op.gives for op in ops)
    storage = np.unique(np.array(columns.storage, np.int64), return_inverse=True)[1]
    view = np.zeros(len(nodes), np.bool_)
    view[consumers[storage[producers] == storage[consumers]]] = True

    ends = _output_nodes(joint_graph)
    outputs, gradients = set(ends[:num_fwd_outputs]), set(ends[num_fwd_outputs:])
    inputs = {node for node in nodes if node.op == "placeholder" and region[position[node]] != Region.TANGENTS}
    policies = [node.meta.get("recompute") for node in nodes]
    return Graph(
        names=tuple(node.name for node in nodes),
        ops=tuple(op.name for op in ops),
        dtypes=tuple(columns.dtypes),
        shapes=tuple(columns.shapes),
        bytes=np.array(columns.bytes, np.int64),
        storage=storage.astype(np.int64),
        flops=np.array(columns.flops, np.int64),
        region=region,
        input=flags(node in inputs for node in nodes),
        parameter=flags(node in node_info.static_lifetime_input_nodes for node in nodes),
        output=flags(node in outputs for node in nodes),
        gradient=flags(node in gradients for node in nodes),
        fusible=fusible,
        random=flags(op.random and not _is_dropout_free(node) for node, op in zip(nodes, ops, strict=True)),
        view=view,
        compute_bound=flags(op.compute_bound for op in ops),
        # torch acts on "prefer" as on "must" when it recomputes, and ignores it when it saves.
        must_save=flags(policy == CheckpointPolicy.MUST_SAVE for policy in policies),
        must_recompute=flags(
            policy in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE) for policy in policies
        ),
        producers=producers,
        consumers=consumers,
        fusible_uses=takes_any[consumers] | (fusible[producers] & gives[producers] & fusible[consumers]),
        cannot_save=Bans.of(len(nodes), columns.cannot_save),
        cannot_recompute=Bans.of(len(nodes), columns.cannot_recompute),
        meta=dict(meta or {}),
    )


def _describe(node: fx.Node) -> _Op:
    target = node.target
    if node.op != "call_function":
        return _Op(node.op, True, False, True, False, False, False, None)
    types = seam.op_types()
    packet = getattr(target, "overloadpacket", target)
    name = str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    # Inductor turns these into pointwise kernels that expand a seed; torch's lists do not know them.
    expands_seed = name.startswith("prims.inductor_")
    custom = isinstance(target, torch._ops.OpOverload) and not torch._library.utils.is_builtin(target)
    return _Op(
        name=name,
        fusible=types.is_fusible(node) or expands_seed,
        takes_any=packet is torch.ops.aten.cat,
        gives=packet is not torch.ops.aten.cat,
        random=seeded or types.is_random(node) or (expands_seed and "seed" not in name),
        seeded=seeded,
        # What a custom operator costs is unknown, so it is taken for expensive, as torch does.
        compute_bound=types.is_compute_intensive(node) or packet in flop_registry or "attention" in name or custom,
        unrepeatable=_unrepeatable(target),
    )


def _unrepeatable(target: Any) -> str | None:
    """Why an operator must not run twice, or None."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "a higher-order operator: its body may draw random numbers or have effects"
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in ("_c10d_functional", "c10d_functional"):
            return "a collective"
        if target._schema.is_mutable:
            return "mutates its arguments"
    return None


def _is_dropout_free(node: fx.Node) -> bool:
    """Attention that could drop out, but was told not to, draws no random numbers."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return given == 0
    return False


def _is_fusible(node: fx.Node, op: _Op, position: Mapping[fx.Node, int], ops: list[_Op]) -> bool:
    """An element of a tuple is written, or fused, by the operator that makes the tuple."""
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]  # the tuple
        op = ops[position[node]]
    return op.fusible


def _regions(nodes: list[fx.Node], node_info: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    tangents, forward = node_info.tangents_closure, node_info._required_fw_nodes
    region = np.full(len(nodes), Region.EITHER, np.int64)
    for i, node in enumerate(nodes):
        if node in tangents:
            region[i] = Region.TANGENTS
        elif node in forward:
            region[i] = Region.FORWARD
    return region


def _read_value(columns: _Columns, i: int, node: fx.Node) -> None:
    """Size, type, storage and work of the value of one node."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        shape = tuple(map(seam.hint, value.shape))
        columns.shapes[i] = shape
        columns.dtypes[i] = str(value.dtype).removeprefix("torch.")
        columns.bytes[i] = math.prod(shape) * value.itemsize
        if value.layout is torch.strided:
            columns.storage[i] = value.untyped_storage()._cdata
    elif isinstance(value, torch.SymInt):
        columns.dtypes[i], columns.bytes[i] = "symint", _SYMBOL_BYTES
    elif isinstance(value, (torch.SymFloat, torch.SymBool)):
        columns.cannot_save[i] = f"a {type(value).__name__}"
    elif isinstance(value, (tuple, list)):
        columns.cannot_save[i] = "a tuple: its elements can be saved"
    elif value is None:
        columns.cannot_save[i] = "not a tensor"
    if node.op == "call_function":
        columns.flops[i] = _flops(node, value)


def _flops(node: fx.Node, value: object) -> int:
    """By torch's formula where it has one; one operation an element otherwise."""
    formula = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
    if formula is None:
        return math.prod(map(seam.hint, value.shape)) if isinstance(value, torch.Tensor) else 0
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return seam.hint(formula(*args, **kwargs, out_val=value))


def _read_rules(columns: _Columns, i: int, node: fx.Node, op: _Op) -> None:
    """What can never be recomputed, whatever it costs."""
    if op.seeded and not _is_dropout_free(node):
        columns.cannot_recompute[i] = "draws from the random number generator, which moves on"
    elif op.unrepeatable:
        columns.cannot_recompute[i] = op.unrepeatable


def _output_nodes(joint_graph: fx.Graph) -> list[fx.Node | None]:
    (output,) = joint_graph.find_nodes(op="output")
    return list(torch.utils._pytree.tree_leaves(output.args[0], is_leaf=lambda leaf: leaf is None))
