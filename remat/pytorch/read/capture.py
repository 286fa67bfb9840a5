"""Captures the joint graph of a model's training step that the compiler would partition, or reads a traced step."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import fx

from remat.errors import CaptureError
from remat.facts.graph import Graph
from remat.pytorch.read.extract import extract
from remat.pytorch.read.mutated_inputs import split_joint_graph
from remat.pytorch.read.other_device import arguments_on
from remat.pytorch.seam.compilations import DYNAMO_SKIPS, name_of, without_log_of_errors
from remat.pytorch.seam.fakes import in_their_mode
from remat.pytorch.seam.inductor_lowering import run_uncompiled
from remat.pytorch.seam.reachable import put_back
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_partitioner import SplitBy, partition
from remat.pytorch.seam.torch_settings import fresh_compilation, partitioner_settings

JointVisitor = Callable[[fx.Graph, Any, int], None]
"""Receives a joint graph, torch's `NodeInfo` and the number of forward outputs, while torch partitions the graph."""

# The first operator of autograd's backward pass from a loss.
_SEED = torch.ops.aten.ones_like.default

# How to make a graph that `read_step` can read.
_HOW = (
    "return (loss, *gradients), with the gradients of torch.autograd.grad(loss, parameters), and leave "
    "torch.ops.aten.ones_like.default out of make_fx's decomposition_table"
)


def capture(model_or_fn: Callable[..., Any], /, *args: Any, device: Any = None, **kwargs: Any) -> Graph:
    """Captures the joint forward and backward graph of `model_or_fn(*args, **kwargs)`.

    The result is the graph that TorchInductor would partition: traced by Dynamo and AOTAutograd, after Inductor's
    passes over joint graphs. No kernel is compiled. The forward pass runs once, uncompiled; afterwards, arguments,
    parameters, buffers, and the random number generators of torch, numpy and Python are restored. With fake tensors,
    the forward pass is fake, too, so a graph of any size takes no memory for its tensors.

    Args:
        model_or_fn: a module or function whose output depends on something that requires gradients.
        args, kwargs: its arguments.
        device: the device to capture the step for, whatever device the model is on: "a100", "a100-40gb", "h100" or
            "h200", with or without a GPU in the machine, or a torch device. The forward pass is then fake, and the
            model is restored. None for the device of the model. This keyword does not reach the model: use
            `functools.partial(model, device=...)` for a model that takes one.

    Raises:
        CaptureError: no gradient is required, the model breaks into several graphs (`remat.pytorch.capture_all` returns
            them all), fake and real tensors are mixed, or the model cannot be captured for the device.
        UnknownName: no device has this name.
        NotInstalled: the device is a named GPU, and Triton is missing; or it is "cuda", and this machine has no GPU.
        UnsupportedTorch: the installed torch lacks a function that capturing uses, or Triton does not match torch.
    """
    graphs = capture_all(model_or_fn, *args, device=device, **kwargs)
    if len(graphs) > 1:
        sizes = ", ".join(str(len(graph)) for graph in graphs)
        raise CaptureError(
            f"{name_of(model_or_fn)} has {len(graphs)} joint graphs (of {sizes} values), because of graph breaks "
            f"(TORCH_LOGS=graph_breaks names them) or nested_compile_region: use remat.pytorch.capture_all"
        )
    return graphs[0]


def capture_all(model_or_fn: Callable[..., Any], /, *args: Any, device: Any = None, **kwargs: Any) -> list[Graph]:
    """Captures all joint graphs of a model that may have several: one `Graph` each, in order.

    Dynamo makes several graphs at graph breaks, and one for the body of each `nested_compile_region`, however often it
    is called.
    """
    graphs: list[Graph] = []
    meta = {"model": name_of(model_or_fn), "captured": _today()}

    def read(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        graphs.append(extract(joint_graph, node_info, num_fwd_outputs, meta))

    visit_joint_graphs(read, model_or_fn, *args, device=device, **kwargs)
    return graphs


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def visit_joint_graphs(
    visit: JointVisitor, model_or_fn: Callable[..., Any], /, *args: Any, device: Any = None, **kwargs: Any
) -> None:
    """Calls `visit` with each joint graph when torch would choose the saved values. Args and errors: see `capture`."""
    if not callable(model_or_fn):
        raise CaptureError(f"capture() takes a module or a function, got {model_or_fn!r}")
    if torch.is_inference_mode_enabled():
        raise CaptureError("capture() needs gradients: leave torch.inference_mode() first")
    traced, visits = 0, 0

    def chooser(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        nonlocal visits
        visits += 1
        visit(joint_graph, node_info, num_fwd_outputs)
        return list(node_info.inputs)  # any legal choice is fine: the result is never differentiated

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal traced
        traced += 1
        return run_uncompiled(graph_module, inputs, SplitBy(partial(split_joint_graph, chooser=chooser)))

    def call(*args: Any, **kwargs: Any) -> Any:
        return model_or_fn(*args, **kwargs)

    # Dynamo stores what it compiles with the code object. After eight entries, or where it found nothing to compile, it
    # silently runs that code eagerly. `call` and its code object are new each time, so a capture affects neither the
    # code that all modules share nor the next capture.
    call.__code__ = call.__code__.replace()
    with (
        arguments_on(device, model_or_fn, args, kwargs) as (moved_args, moved_kwargs),
        in_their_mode(model_or_fn, moved_args, moved_kwargs),
        put_back(model_or_fn, moved_args, moved_kwargs),
        fresh_compilation(),
        without_log_of_errors(),
        torch.enable_grad(),
    ):
        torch_compile(call, backend=backend)(*moved_args, **moved_kwargs)
    if not visits:
        raise CaptureError(_why_nothing(name_of(model_or_fn), traced))


def _why_nothing(name: str, traced: int) -> str:
    if not traced:
        return f"Dynamo traced nothing of {name}: it skips, for example, {DYNAMO_SKIPS}"
    return (
        f"{name} has no joint graph to capture: either no parameter or input that its output depends on requires "
        f"gradients (call .requires_grad_() on one), or its backward pass needs nothing of the forward pass"
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
    meta = {"model": name, "captured": _today()}

    def chooser(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        graphs.append(extract(joint_graph, node_info, num_fwd_outputs, meta))
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
