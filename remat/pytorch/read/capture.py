"""Captures the joint graph of a model's training step that the compiler would partition."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
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
from remat.pytorch.seam.restore import put_back
from remat.pytorch.seam.torch_names import CustomPartitionerFn, torch_compile
from remat.pytorch.seam.torch_partitioner import Chooser
from remat.pytorch.seam.torch_settings import fresh_compilation

JointVisitor = Callable[[fx.Graph, Any, int], None]
"""Receives a joint graph, torch's `NodeInfo` and the number of forward outputs, while torch partitions the graph."""


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
    meta = {"model": name_of(model_or_fn), "captured": datetime.datetime.now(datetime.UTC).date().isoformat()}

    def read(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        graphs.append(extract(joint_graph, node_info, num_fwd_outputs, meta | device_facts(joint_graph)))

    visit_joint_graphs(read, model_or_fn, *args, device=device, **kwargs)
    return graphs


def device_facts(joint_graph: fx.Graph) -> dict[str, str]:
    """Returns the device for `Graph.meta`: "cuda" and the GPU's name, or "cpu" and how many threads torch uses.

    The number of threads is left out if there is one for each processor, unless there is only one.
    """
    values = (node.meta.get("val") for node in joint_graph.nodes)
    kind = next(value.device.type for value in values if isinstance(value, torch.Tensor))
    if kind == "cuda":
        return {"device": kind, "gpu": torch.cuda.get_device_name()}
    threads = torch.get_num_threads()
    return {"device": kind} | ({} if 1 < threads == os.cpu_count() else {"threads": str(threads)})


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
        return run_uncompiled(graph_module, inputs, _Visit(chooser))

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


class _Visit(CustomPartitionerFn):
    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        return split_joint_graph(gm, joint_inputs, self.chooser, **kwargs)

    def uuid(self) -> None:
        return None
