"""TorchInductor's schedule of an FX graph, from inside one of Inductor's own passes.

A copy of the graph is lowered, fused and scheduled as it will be, and thrown away: no code is written, and
nothing of the compilation in progress changes. It takes about as long as that part of the compilation.
Run with torch 2.13.0.
"""

# Inductor's internals carry few types: what comes out of them is unknown to a checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from remat.pytorch.traffic_count import Kernel, checked_modules, scheduled_kernels


def dry_run(graph: fx.Graph) -> list[Kernel]:
    """The kernels that Inductor would make of `graph`, in order; call it from a post-grad pass.

    Raises:
        UnsupportedTorch: the installed torch lacks what this relies on.
    """
    inductor = _inductor()
    virtualized: Any = inductor["virtualized"].V
    trial = copied(graph)
    inputs = [node.meta["val"] for node in trial.find_nodes(op="placeholder")]
    module: Any = graph.owning_module
    lowering = inductor["graph"].GraphLowering(
        fx.GraphModule(module, trial), example_inputs=inputs, shape_env=virtualized.fake_mode.shape_env
    )
    with virtualized.set_graph_handler(lowering), virtualized.set_extern_kernel_nodes([]), torch.no_grad():
        lowering.run(*inputs)
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        return _named(scheduled_kernels(lowering), lowering)


def _named(kernels: list[Kernel], lowering: Any) -> list[Kernel]:
    """Kernels whose reads and writes are nodes of the graph, if there is one that they can stand for.

    What has no node is a result of a call with several, or a copy that a call needs of an operand: it was made
    while the call was lowered, so that the call is the last of its origins, and the operand the one before.
    """
    buffers = lowering.name_to_buffer
    last = {name: max(buffer.get_origins()).name for name, buffer in buffers.items() if buffer.get_origins()}
    calls = {last.get(name, name) for kernel in kernels if not kernel.generated for name, _ in kernel.writes}

    def stands_for(name: str) -> str:
        if name not in buffers:
            return name  # of a node already
        made_of = sorted(buffers[name].get_origins())
        if isinstance(buffers[name], _inductor()["ir"].ComputedBuffer):
            made_of = [node for node in made_of if node.name not in calls]
        return made_of[-1].name if made_of else name

    return [
        replace(
            kernel,
            reads=tuple((stands_for(name), size) for name, size in kernel.reads),
            writes=tuple((stands_for(name), size) for name, size in kernel.writes),
        )
        for kernel in kernels
    ]


def copied(graph: fx.Graph) -> fx.Graph:
    """The same graph with nodes of its own: same names, same fake values."""
    copy, twin = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        twin[node] = copy.node_copy(node, twin.__getitem__)
        twin[node].meta = dict(node.meta)
    return copy


def can_dry_run(graph: fx.Graph) -> bool:
    """Whether all that `graph` does is known here: fixed sizes, and no operator with a graph of its own inside."""
    return all(_is_plain(node) for node in graph.nodes)


def _is_plain(node: fx.Node) -> bool:
    if node.op == "placeholder":
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and not any(isinstance(size, torch.SymInt) for size in value.shape)
    # What a pass has put in has no fake value yet: Inductor fills it in after the last pass.
    known = node.op != "call_function" or "val" in node.meta
    return known and node.op != "call_module" and not isinstance(node.target, HigherOrderOperator)


_USED = {
    "torch._inductor.graph": tuple(
        f"GraphLowering.{name}" for name in ("run", "init_wrapper_code", "_update_scheduler")
    ),
    "torch._inductor.ir": ("ComputedBuffer",),
    "torch._inductor.virtualized": ("V",),
}


@cache
def _inductor() -> dict[str, Any]:
    return checked_modules(_USED)
