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
import torch
from torch import fx
from torch.fx.node import map_arg

from remat.answer.plan import Plan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.kernels.host_copies import Copy, HostCopies
from remat.pytorch.seam.offloading import FETCH, FETCHED, SEND, SENT, TO_DEVICE, TO_HOST


def add_copies(
    graph: Graph,
    plan: Plan,
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    num_fwd_outputs: int,
    *,
    beside: bool = False,
) -> None:
    """Has the forward pass hand over handles of what is offloaded, and the backward pass copy back what it is handed.

    What the backward pass does not read, nobody hands over, and nothing is copied.

    Args:
        graph: the joint graph.
        plan: a legal plan for it.
        forward, backward: the graphs of the passes, which are changed.
        num_fwd_outputs: how many outputs of the forward graph are the model's; the others are handed over.
        beside: copies are made beside the kernels.
    """
    outputs: Any = forward.graph.output_node().args[0]
    handed = {node.name: node for node in outputs[num_fwd_outputs:] if isinstance(node, fx.Node)}
    offloaded = {name: handed[name] for name in plan.offloaded if name in handed}
    if not offloaded:
        return
    hosted = np.isin(graph.names, [*offloaded])
    # A pass may write over its inputs, and Inductor may take an input for its clone: so all is copied before.
    copies = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    end: fx.Node = next(iter(copies), forward.graph.output_node())
    handles: dict[int, fx.Node] = {}
    for copy, place in _places(graph, forward, hosted, backward=False, beside=beside):
        v, value = copy.value, offloaded[graph.names[copy.value]]
        others = [] if copy.behind is None else [handles[copy.behind]]
        ends = copy.step == "copy to the host ends"
        if end < place and (handles[v] if ends else value) < end:
            others, before = [node for node in others if node < end], end
        else:
            before = place
        with forward.graph.inserting_before(before):
            if ends:
                handles[v] = _call(forward, SENT, handles[v], value, others)
            else:
                handles[v] = _call(forward, SEND if beside else TO_HOST, value)
    moved = {offloaded[graph.names[v]]: handle for v, handle in handles.items()}
    new = [moved.get(node, node) for node in outputs[num_fwd_outputs:]]
    forward.graph.output_node().args = ((*outputs[:num_fwd_outputs], *new),)
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    values: dict[int, fx.Node] = {}
    readers: dict[int, list[fx.Node]] = {}
    for copy, place in _places(graph, backward, hosted, backward=True, beside=beside):
        v, handle = copy.value, inputs[graph.names[copy.value]]
        others = [] if copy.behind is None else [values[copy.behind]]
        with backward.graph.inserting_before(place):
            if copy.step == "copy back ends":
                value = _call(backward, FETCHED, values[v])
            else:
                device, readers[v] = handle.meta["val"].device, list(handle.users)
                handle.meta = {"val": handles[v].meta["val"]}
                value = (
                    _call(backward, FETCH, handle, device, others)
                    if beside
                    else _call(backward, TO_DEVICE, handle, device)
                )
        values[v] = value
        if copy.step != "copy back begins":
            for reader in readers[v]:
                reader.replace_input_with(handle, value)
    for module in (forward, backward):
        module.recompile()


def _places(
    graph: Graph, module: fx.GraphModule, hosted: BoolArray, *, backward: bool, beside: bool
) -> Iterator[tuple[Copy, fx.Node]]:
    """Yields the copies of a pass, in order, each with the node before which it is made."""
    nodes = {
        graph.index[node.name]: node
        for node in module.graph.nodes
        if node.op == "call_function" and node.name in graph.index
    }
    copies = HostCopies(graph, np.array([*nodes], np.int64), hosted, backward=backward, beside=beside)
    for v, node in nodes.items():
        for copy in copies.before(v):
            yield copy, node
    for copy in copies.left():
        yield copy, module.graph.output_node()


def _call(module: fx.GraphModule, operator: Any, *args: Any) -> fx.Node:
    node = module.graph.call_function(operator, args)
    node.meta["val"] = operator(*map_arg(args, _value))
    return node


def _value(node: fx.Node) -> Any:
    return node.meta["val"]
