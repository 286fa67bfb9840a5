"""Reads a training step that is a single graph of forward pass, loss and backward pass, as `make_fx` traces it."""

from __future__ import annotations

import datetime
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import fx

from remat.errors import CaptureError
from remat.facts.graph import Graph
from remat.pytorch.read.capture import device_facts
from remat.pytorch.read.extract import extract
from remat.pytorch.read.mutated_inputs import split_joint_graph
from remat.pytorch.seam.torch_partitioner import partition
from remat.pytorch.seam.torch_settings import partitioner_settings

# The first operator of autograd's backward pass from a loss.
_SEED = torch.ops.aten.ones_like.default

_HOW = (
    "return (loss, *gradients), with the gradients of torch.autograd.grad(loss, parameters), and leave "
    "torch.ops.aten.ones_like.default out of make_fx's decomposition_table"
)


def read_step(traced: fx.GraphModule, parameters: int = 0, name: str = "step", *, as_is: bool = False) -> Graph:
    """Converts a graph that has the forward pass, the loss and the backward pass.

    Graph-based trainers get such graphs from `make_fx` over a function that calls `torch.autograd.grad`. The gradient
    of the loss begins with a constant 1 (`ones_like`), which becomes the tangent of the joint graph. The nodes that
    depend on it are the backward pass. Then the graph is read like a joint graph of `remat.capture`. Nothing runs.

    Args:
        traced: a graph whose outputs are the loss and the gradients, as tensors; it is not changed.
        parameters: how many of its first inputs are as long-lived as the model.
        name: the name of the model, for `Graph.meta`.
        as_is: whether the graph itself will run, node by node: then equal nodes are not merged, overwritten inputs are
            not copied, and what nodes say about their recomputation (`node.meta["recompute"]`) is not read.

    Raises:
        CaptureError: the first output is no loss, or its gradient does not begin with `ones_like`.
        UnsupportedTorch: the installed torch lacks a function that this uses.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph, {}))
    graph.output_node().meta = dict(traced.graph.output_node().meta)
    for node in graph.nodes if as_is else ():
        node.meta.pop("recompute", None)
    _give_tangent(graph)
    joint = fx.GraphModule(traced, graph)
    graphs: list[Graph] = []
    meta = {"model": name, "captured": datetime.datetime.now(datetime.UTC).date().isoformat()}

    def chooser(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        graphs.append(extract(joint_graph, node_info, num_fwd_outputs, meta | device_facts(joint_graph)))
        raise _IsRead

    split = partition if as_is else split_joint_graph
    with suppress(_IsRead), partitioner_settings(cse=False) if as_is else nullcontext():
        split(joint, (), chooser, num_fwd_outputs=1, static_lifetime_input_indices=list(range(parameters)))
    return graphs[0]


class _IsRead(Exception):
    """Ends torch's partitioner once the graph is read, because it cannot split the graph of every step."""


def seed_of(graph: fx.Graph) -> fx.Node:
    """Returns the constant 1 with which the gradient of the loss begins; raises `CaptureError` without it."""
    (outputs,) = graph.output_node().args
    loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    seeds = [user for user in loss.users if user.target is _SEED] if isinstance(loss, fx.Node) else []
    if len(seeds) != 1:
        raise CaptureError(
            f"the first output of a step must be its loss, of which gradients are taken once, got {loss!r}, with "
            f"{len(seeds)} calls of aten.ones_like, where autograd begins: {_HOW}"
        )
    return seeds[0]


# Replaces the one with which the gradient of the loss begins by a tangent.
def _give_tangent(graph: fx.Graph) -> None:
    seed = seed_of(graph)
    *_, last = graph.find_nodes(op="placeholder")
    with graph.inserting_after(last):
        tangent = graph.placeholder("tangents_1")
    tangent.meta = dict(seed.meta)
    seed.replace_all_uses_with(tangent)
    graph.erase_node(seed)
