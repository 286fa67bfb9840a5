"""Adds the copies of offloaded values to both graphs of a plan, where `remat.predict.kernels.host_copies` puts them.

Torch can add copies, too (`torch._functorch.config.enable_activation_offloading`, for nodes whose
`meta["should_offload"]` is true). They are not used, for three reasons. They pass the tensor on the host to the
backward pass, and not a handle (see `remat.pytorch.seam.offload_operators`). Torch does not offload elements of tuples.
And with copies in a separate stream (`activation_offload_separate_stream`), the operator that waits for a copy frees
the value on the device, but does not declare this as a write, so that Inductor puts it before operators that read the
value (torch 2.13, in the code for an H100).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg

from remat.answer.plan import Plan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.kernels.host_copies import Copy, CopyStep, HostCopies, early_places
from remat.pytorch.seam.offload_operators import FETCH, FETCHED, SEND, SENT, TO_DEVICE, TO_HOST

# The step of a copy, the name of its value, the value whose copy must come before (or None), and the node that follows.
_Place: TypeAlias = tuple[CopyStep, str, str | None, fx.Node]


def add_copies(
    graph: Graph,
    plan: Plan,
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    num_fwd_outputs: int,
    *,
    copy_stream: bool = False,
) -> None:
    """Makes the forward pass copy offloaded values to the host, and the backward pass copy them back.

    Values that the backward pass does not read are not copied.

    Args:
        forward, backward: the graphs of both passes, which are changed.
        num_fwd_outputs: how many outputs of the forward graph belong to the model; the others go to the backward pass.
        copy_stream: whether copies run in a separate stream, at the same time as kernels.
    """
    outputs: Any = forward.graph.output_node().args[0]
    handed = {node.name: node for node in outputs[num_fwd_outputs:] if isinstance(node, fx.Node)}
    offloaded = {name: handed[name] for name in plan.offloaded if name in handed}
    if not offloaded:
        return
    on_host = np.isin(graph.names, [*offloaded])
    if copy_stream:
        _compute_early(graph, forward)
    handles = _copied_to_host(
        forward, offloaded, _places(graph, forward, on_host, backward=False, copy_stream=copy_stream)
    )
    moved = {offloaded[name]: handle for name, handle in handles.items()}
    new = [moved.get(node, node) for node in outputs[num_fwd_outputs:]]
    forward.graph.output_node().args = ((*outputs[:num_fwd_outputs], *new),)
    _copy_back(backward, handles, [*_places(graph, backward, on_host, backward=True, copy_stream=copy_stream)])
    for module in (forward, backward):
        module.recompile()


# Moves each operator that only the backward pass needs to the place directly after the values that it reads.
def _compute_early(graph: Graph, forward: fx.GraphModule) -> None:
    nodes = _calls(graph, forward)
    calls = [*nodes.values()]
    last = [*calls]  # for each call, the last operator that was moved behind it
    places: list[int] = early_places(graph, np.array([*nodes], np.int64)).tolist()
    for place, node in zip(places, calls, strict=True):
        if node is not calls[place]:
            last[place].append(node)
            last[place] = node


# Copies come before an input is overwritten, because Inductor may use the input in place of its clone.
def _copied_to_host(
    forward: fx.GraphModule, offloaded: Mapping[str, fx.Node], places: Iterable[_Place]
) -> dict[str, fx.Node]:
    overwrites = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    end: fx.Node = next(iter(overwrites), forward.graph.output_node())
    handles: dict[str, fx.Node] = {}
    for step, name, predecessor, place in places:
        value, ends = offloaded[name], step == "copy to the host ends"
        others = [] if predecessor is None else [handles[predecessor]]
        is_late = end < place and (handles[name] if ends else value) < end
        if is_late:
            others = [node for node in others if node < end]
        with forward.graph.inserting_before(end if is_late else place):
            if ends:
                handles[name] = _call(forward, SENT, handles[name], value, others)
            else:
                copies = TO_HOST if step == "copied to the host" else SEND
                handles[name] = _call(forward, copies, value)
    return handles


# Torch replaces random operators that run again by its own operators. Nothing is known about the order of these, so
# what they read is copied back directly before them, between the kernels.
def _copy_back(backward: fx.GraphModule, handles: Mapping[str, fx.Node], places: Sequence[_Place]) -> None:
    inputs = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    readers = {name: [*inputs[name].users] for name in handles}
    devices = {name: inputs[name].meta["val"].device for name in handles}
    values: dict[str, fx.Node] = {}
    for name, handle in handles.items():
        inputs[name].meta = {"val": handle.meta["val"]}
    due = {name: place for step, name, _, place in places if step != "copy back begins"}
    first = {name: min(found) for name, found in readers.items() if found}
    unknown = {name: reader for name, reader in first.items() if name not in due or reader < due[name]}
    early: list[_Place] = [("copied back", name, None, reader) for name, reader in unknown.items()]
    for step, name, predecessor, place in (*early, *(place for place in places if place[1] not in unknown)):
        others = [] if predecessor is None else [values[predecessor]]
        with backward.graph.inserting_before(place):
            if step == "copy back ends":
                values[name] = _call(backward, FETCHED, values[name])
            elif step == "copy back begins":
                values[name] = _call(backward, FETCH, inputs[name], devices[name], others)
            else:
                values[name] = _call(backward, TO_DEVICE, inputs[name], devices[name])
    for name, value in values.items():
        for reader in readers[name]:
            reader.replace_input_with(inputs[name], value)


def _places(
    graph: Graph, module: fx.GraphModule, on_host: BoolArray, *, backward: bool, copy_stream: bool
) -> Iterator[_Place]:
    nodes = _calls(graph, module)
    copies = HostCopies(graph, np.array([*nodes], np.int64), on_host, backward=backward, copy_stream=copy_stream)

    def placed_before(copy: Copy, place: fx.Node) -> _Place:
        predecessor = None if copy.predecessor is None else graph.names[copy.predecessor]
        return copy.step, graph.names[copy.value], predecessor, place

    for v, node in nodes.items():
        for copy in copies.due_before(v):
            yield placed_before(copy, node)
    for copy in copies.remaining():
        yield placed_before(copy, module.graph.output_node())


def _calls(graph: Graph, module: fx.GraphModule) -> dict[int, fx.Node]:
    calls = (node for node in module.graph.nodes if node.op == "call_function")
    return {graph.index[node.name]: node for node in calls if node.name in graph.index}


def _call(module: fx.GraphModule, operator: Any, *args: Any) -> fx.Node:
    node = module.graph.call_function(operator, args)
    node.meta["val"] = operator(*map_arg(args, lambda one: one.meta["val"]))
    return node
