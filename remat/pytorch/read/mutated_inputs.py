"""Finds the inputs that the forward pass overwrites, and saves copies of them for the backward pass.

The backward pass would read the new value, so it must read neither these inputs nor views of them. torch's own
partitioner ignores this, up to 2.15 at least: `h = x.sin() + y*2; y.add_(1); return (h.exp()*y).cos()` gets gradients
that are wrong by a factor of ten.

The new value is not safe either if Inductor computes it in the memory of the input: the backward pass would find the
last value that was written there and, because it may overwrite saved values, could overwrite the user's tensor. An
input that the backward pass writes to must be passed to it, as a write target only.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from remat.pytorch.read.operators import Operator, Operators
from remat.pytorch.read.values import Inputs, bases
from remat.pytorch.seam.torch_names import HigherOrderOperator
from remat.pytorch.seam.torch_partitioner import Chooser, partition

# Inductor makes these operators in-place, and those that wrap custom operators (`fx_passes.reinplace`).
_IN_PLACE = ("_scatter", "index_put", "_c10d_functional")


def overwritten_inputs(joint_graph: fx.Graph, writers: Iterable[fx.Node], tangents: Container[fx.Node]) -> set[fx.Node]:
    """Returns the placeholders that the forward pass writes to, inside the graph or right after it.

    Args:
        writers: the nodes that write to an argument.
        tangents: the nodes of the tangents' closure, whose writes belong to the backward pass.
    """
    *nodes, end = joint_graph.nodes
    written = {target for node in writers if node not in tangents for target in _target(node)}
    by_epilogue = [
        description.mutated_input
        for description in end.meta.get("desc", ())
        if type(description).__name__ == "InputMutationAOTOutput"
    ]
    if not by_epilogue:
        return written
    return written | {node for node in nodes if node.op == "placeholder" and node.meta.get("desc") in by_epilogue}


def values_in_their_memory(joint_graph: fx.Graph, tangents: Container[fx.Node]) -> set[fx.Node]:
    """Returns the values that Inductor may compute in the memory of an overwritten input.

    These are the values that are finally copied into an input and, from there backwards, the first operand of each
    view and of each operator that has an in-place form. Each step of such a chain may be overwritten by the next,
    although it is saved (torch 2.13).
    """
    values: set[fx.Node] = set()
    copies = joint_graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    stack = [node.args[1] for node in copies if node not in tangents]
    while stack:
        node = stack.pop()
        if not isinstance(node, fx.Node) or node.op != "call_function" or node in values:
            continue
        if node.target is operator.getitem or isinstance(node.target, HigherOrderOperator):
            values.add(node)
            stack += node.all_input_nodes
        elif (op := Operator.of(node)).views or any(name in op.name for name in _IN_PLACE):
            values.add(node)
            stack += node.all_input_nodes[:1]
    return values


def backward_targets(writers: Iterable[fx.Node], tangents: Container[fx.Node]) -> set[fx.Node]:
    """Returns the values that the backward pass writes to. Args are those of `overwritten_inputs`."""
    return {target for node in writers if node in tangents for target in _target(node)}


def _target(node: fx.Node) -> list[fx.Node]:
    return node.all_input_nodes[:1] if Operator.of(node).mutates else []


def split_joint_graph(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], chooser: Chooser, **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Splits a joint graph with torch's partitioner and our choice of saved values; changes the graph in place."""
    keep_old_values(joint_module)
    return partition(joint_module, joint_inputs, chooser, **kwargs)


def keep_old_values(joint_module: fx.GraphModule) -> None:
    """Copies the overwritten inputs that the backward pass reads, so that a legal plan exists.

    If the tangents' closure reads an overwritten input, a value in its memory, or a view of one, that is cloned
    where the forward pass computes it, and the closure reads the clone. Values of the forward pass that the backward
    pass could compute *from* such an input need no copy: because the input is banned, every solver saves the first of
    them.
    """
    graph = joint_module.graph
    *nodes, end = graph.nodes
    ops = Operators.of(nodes)
    tangents = _tangents_closure(nodes)
    writers = [node for node, op in zip(nodes, ops, strict=True) if op.mutates]
    overwritten = overwritten_inputs(graph, writers, tangents)
    if not overwritten:
        return
    theirs = values_in_their_memory(graph, tangents)
    base = bases(nodes, Inputs.of(nodes), ops)
    for node, first in zip(nodes, map(nodes.__getitem__, base), strict=True):
        if first not in overwritten | theirs or node in tangents:
            continue
        readers = [user for user in node.users if user in tangents and user is not end and node not in _target(user)]
        if not readers:
            continue
        with graph.inserting_after(node):
            # Inductor drops a clone of a value that is not an input.
            copies = torch.ops.aten.lift_fresh_copy if first in theirs else torch.ops.aten.clone
            copy = graph.call_function(copies.default, (node,))
        copy.meta["val"] = node.meta["val"].clone()
        for reader in readers:
            reader.replace_input_with(node, copy)
    joint_module.recompile()


# As in torch's partitioner: the nodes that depend on a tangent, and the writes of the backward pass.
def _tangents_closure(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    closure: set[fx.Node] = set()
    for node in nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        tag = node.meta.get("partitioner_tag")
        is_write = tag == "must_be_in_backward" or (tag == "is_backward" and Operator.of(node).mutates)
        if is_tangent or is_write or any(argument in closure for argument in node.all_input_nodes):
            closure.add(node)
    return closure
