"""Asks TorchInductor for its schedule of an FX graph, from inside one of Inductor's own passes.

A copy of the graph is lowered, fused and scheduled as it will be, and thrown away: no code is written, and
nothing of the compilation in progress changes. It takes about as long as that part of the compilation.
Run with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.seam.inductor_lowering import is_computed, lowered
from remat.pytorch.seam.torch_names import HigherOrderOperator, tree_leaves


def dry_run(graph: fx.Graph) -> list[InductorKernel]:
    """Lists the kernels that Inductor would make of `graph`, in order; to be called from a post-grad pass."""
    module: Any = graph.owning_module
    with lowered(fx.GraphModule(module, copied(graph))) as lowering:
        return _named(scheduled_kernels(lowering), lowering)


# What has no node is a result of a call with several, or a copy that a call needs of an operand: it was made while the
# call was lowered, so that the call is the last of its origins, and the operand the one before.
def _named(kernels: list[InductorKernel], lowering: Any) -> list[InductorKernel]:
    buffers = {name: buffer for name, buffer in lowering.name_to_buffer.items() if _origins(buffer)}
    last = {name: max(_origins(buffer)).name for name, buffer in buffers.items()}
    calls = {last.get(name, name) for kernel in kernels if not kernel.generated for name, _ in kernel.writes}

    def stands_for(name: str) -> str:
        if name not in buffers:
            return name  # of a node already
        made_of = sorted(_origins(buffers[name]))
        if is_computed(buffers[name]):
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


# Of a buffer that a call writes over, the call.
def _origins(buffer: Any) -> Collection[fx.Node]:
    operation = buffer.get_defining_op()
    return () if operation is None else operation.get_origins()


def copied(graph: fx.Graph) -> fx.Graph:
    """Copies a graph: other nodes, with the same names and the same fake values."""
    copy, twin = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        twin[node] = copy.node_copy(node, twin.__getitem__)
        twin[node].meta = dict(node.meta)
    return copy


def can_dry_run(graph: fx.Graph) -> bool:
    """Returns whether Inductor can schedule a copy of `graph` alone.

    It can if all sizes are fixed, and no operator has a graph of its own. A graph that returns one value instead of a
    list is the body of such an operator (a branch of a condition, or a function of attention scores), and has to wait.
    """
    *nodes, end = graph.nodes
    return isinstance(end.args[0], (tuple, list)) and all(_is_plain(node) for node in nodes)


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op == "placeholder" and not isinstance(value, torch.Tensor):
        return False
    # What a pass has put in has no fake value yet: Inductor fills it in after the last pass.
    known = node.op != "call_function" or "val" in node.meta
    if not known or node.op == "call_module" or isinstance(node.target, HigherOrderOperator):
        return False
    # Not all are those of inputs: `x[x > 0]` has a size that only running it tells.
    return not any(isinstance(size, torch.SymInt) for leaf in tree_leaves(value) for size in _sizes(leaf))


def _sizes(value: object) -> Sequence[object]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)
