"""The joint graph of a model's training step, as the compiler would partition it."""

# torch.compile is partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.utils._pytree import tree_leaves

from remat.errors import CaptureError
from remat.graph import Graph
from remat.pytorch import seam
from remat.pytorch.facts import extract
from remat.pytorch.split import split
from remat.pytorch.uncompiled import run_uncompiled

Visitor = Callable[[fx.Graph, Any, int], None]
"""(joint graph, torch's `NodeInfo`, number of forward outputs), while torch is partitioning it."""


def capture(model_or_fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Graph:
    """Captures the joint forward+backward graph of `model_or_fn(*args, **kwargs)`.

    It is the very graph that TorchInductor would partition: traced by Dynamo and AOTAutograd, after
    Inductor's passes over joint graphs. Nothing is compiled to kernels. The forward pass runs once,
    uncompiled; buffers, arguments and random number generators are put back as they were.

    Args:
        model_or_fn: a module or function whose output depends on something that requires gradients.
        args, kwargs: what to call it with.

    Raises:
        CaptureError: no gradient is required, or the model breaks into several graphs (then
            `remat.pytorch.capture_all` returns them all).
        UnsupportedTorch: the installed torch lacks what capturing relies on.
    """
    graphs = capture_all(model_or_fn, *args, **kwargs)
    if len(graphs) > 1:
        sizes = ", ".join(str(len(graph)) for graph in graphs)
        raise CaptureError(
            f"{_name_of(model_or_fn)} breaks into {len(graphs)} joint graphs (of {sizes} values); "
            f"remove the graph breaks (TORCH_LOGS=graph_breaks names them), or use remat.pytorch.capture_all"
        )
    return graphs[0]


def capture_all(model_or_fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Graph]:
    """As `capture`, for models that Dynamo breaks into several graphs: one `Graph` each, in order."""
    graphs: list[Graph] = []
    meta = {
        "model": _name_of(model_or_fn),
        "torch": torch.__version__,
        "captured": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }

    def read(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        graphs.append(extract(joint_graph, node_info, num_fwd_outputs, meta))

    visit_joint_graphs(read, model_or_fn, *args, **kwargs)
    return graphs


def visit_joint_graphs(visit: Visitor, model_or_fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Calls `visit` on each joint graph at the moment where torch would choose what to save.

    Raises:
        CaptureError: there was no joint graph.
    """
    visits = 0

    def chooser(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        nonlocal visits
        visits += 1
        visit(joint_graph, node_info, num_fwd_outputs)
        return list(node_info.inputs)  # any legal choice will do: the result is never differentiated

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return run_uncompiled(graph_module, inputs, _Visit(chooser))

    with _undone(model_or_fn, args, kwargs), seam.fresh_compilation(), torch.enable_grad():
        torch.compile(model_or_fn, backend=backend)(*args, **kwargs)
    if not visits:
        raise CaptureError(
            f"{_name_of(model_or_fn)} has no backward pass to capture: no parameter or input that its output "
            f"depends on requires gradients; call .requires_grad_() on one"
        )


@contextmanager
def _undone(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[None]:
    """Takes back what the forward pass changes: buffers, arguments, random number generators."""
    buffers = model_or_fn.buffers() if isinstance(model_or_fn, nn.Module) else ()
    tensors = [leaf for leaf in (*buffers, *tree_leaves((args, kwargs))) if isinstance(leaf, torch.Tensor)]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]  # pyright: ignore[reportPrivateUsage]
    with torch.random.fork_rng():
        yield
    with torch.no_grad():
        for tensor, version, content in before:
            if tensor._version != version:  # pyright: ignore[reportPrivateUsage]
                tensor.copy_(content)


class _Visit(CustomPartitionerFn):
    """Hands the joint graph to a chooser on the way through torch's partitioner."""

    def __init__(self, chooser: seam.Chooser) -> None:
        self.chooser = chooser

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        return split(gm, joint_inputs, self.chooser, **kwargs)

    def uuid(self) -> None:
        return None


def _name_of(model_or_fn: Callable[..., Any]) -> str:
    return getattr(model_or_fn, "__name__", type(model_or_fn).__name__)
