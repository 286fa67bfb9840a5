"""Adds to both graphs of a plan the copies of what it offloads, each where `remat.predict.kernels.host_copies` says.

Torch can add copies of its own (`torch._functorch.config.enable_activation_offloading`, of nodes whose
`meta["should_offload"]` is true). They are not used: they hand over the tensor on the host (see
`remat.pytorch.seam.offloading`), torch refuses elements of tuples, and with copies beside the kernels
(`activation_offload_separate_stream`) the operator that waits for one frees the value on the device, and does not
declare that it writes to it, so Inductor puts it before operators that read the value (torch 2.13, in the code that it
writes for an H100).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import fx

from remat.answer.plan import Plan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.kernels.host_copies import HostCopies
from remat.pytorch.seam.offloading import TO_DEVICE, TO_HOST


def add_copies(
    graph: Graph, plan: Plan, forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int
) -> None:
    """Has the forward pass hand over handles of what is offloaded, and the backward pass copy back what it is handed.

    What the backward pass does not read, nobody hands over, and nothing is copied.

    Args:
        graph: the joint graph.
        plan: a legal plan for it.
        forward, backward: the graphs of the passes, which are changed.
        num_fwd_outputs: how many outputs of the forward graph are the model's; the others are handed over.
    """
    outputs: Any = forward.graph.output_node().args[0]
    handed = {node.name: node for node in outputs[num_fwd_outputs:] if isinstance(node, fx.Node)}
    offloaded = {name: handed[name] for name in plan.offloaded if name in handed}
    if not offloaded:
        return
    hosted = np.isin(graph.names, [*offloaded])
    handles: dict[str, fx.Node] = {}
    for name, place in _places(graph, forward, hosted, backward=False):
        with forward.graph.inserting_before(place):
            handles[name] = _call(forward, TO_HOST, offloaded[name])
    new = [handles.get(getattr(node, "name", ""), node) for node in outputs[num_fwd_outputs:]]
    forward.graph.output_node().args = ((*outputs[:num_fwd_outputs], *new),)
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    for name, place in _places(graph, backward, hosted, backward=True):
        handle, readers = inputs[name], list(inputs[name].users)
        device = handle.meta["val"].device
        handle.meta = {"val": handles[name].meta["val"]}
        with backward.graph.inserting_before(place):
            value = _call(backward, TO_DEVICE, handle, device)
        for reader in readers:
            reader.replace_input_with(handle, value)
    for module in (forward, backward):
        module.recompile()


def _places(
    graph: Graph, module: fx.GraphModule, hosted: BoolArray, *, backward: bool
) -> Iterator[tuple[str, fx.Node]]:
    """Yields the values that a pass copies, in order, each with the node before which it does."""
    nodes = {
        graph.index[node.name]: node
        for node in module.graph.nodes
        if node.op == "call_function" and node.name in graph.index
    }
    copies = HostCopies(graph, np.array([*nodes]), hosted, backward=backward)
    for v, node in nodes.items():
        for u in copies.before(v):
            yield graph.names[u], node
    for u in copies.left():
        yield graph.names[u], module.graph.output_node()


def _call(module: fx.GraphModule, operator: Any, *args: Any) -> fx.Node:
    node = module.graph.call_function(operator, args)
    node.meta["val"] = operator(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
    return node
