"""Gets TorchInductor's schedule of an FX graph from inside one of Inductor's own passes.

A copy of the graph is lowered, fused and scheduled, and then discarded: no code is written, and the compilation in
progress does not change. This takes about as long as that part of the compilation. Run with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.seam.inductor_lowering import is_computed, lowered
from remat.pytorch.seam.torch_names import HigherOrderOperator, tree_leaves


def dry_run(graph: fx.Graph) -> list[InductorKernel]:
    """Returns the kernels that Inductor would generate for `graph`, in order. Call it from a post-grad pass."""
    module: Any = graph.owning_module
    with lowered(fx.GraphModule(module, copied(graph))) as lowering:
        return _named(scheduled_kernels(lowering), lowering)


# A buffer without a node is one result of a call that has several, or a copy of an operand for a call. It was made
# while the call was lowered, so the call is the last of its origins, and the operand the one before.
def _named(kernels: list[InductorKernel], lowering: Any) -> list[InductorKernel]:
    buffers = {name: buffer for name, buffer in lowering.name_to_buffer.items() if _origins(buffer)}
    last = {name: max(_origins(buffer)).name for name, buffer in buffers.items()}
    calls = {last.get(name, name) for kernel in kernels if not kernel.generated for name, _ in kernel.writes}
    names: dict[str, str] = {}
    for name, buffer in buffers.items():
        made_of = [node for node in sorted(_origins(buffer)) if node.name not in calls or not is_computed(buffer)]
        names[name] = made_of[-1].name if made_of else name
    return [kernel.renamed(names) for kernel in kernels]


# For a buffer that a call overwrites, this is the call.
def _origins(buffer: Any) -> Collection[fx.Node]:
    operation = buffer.get_defining_op()
    return () if operation is None else operation.get_origins()


def copied(graph: fx.Graph) -> fx.Graph:
    """Copies a graph: new nodes with the same names and fake values."""
    copy, twin = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        twin[node] = copy.node_copy(node, twin.__getitem__)
        twin[node].meta = dict(node.meta)
    return copy


def can_dry_run(graph: fx.Graph) -> bool:
    """Returns whether Inductor can schedule a copy of `graph` alone.

    It can if all sizes are fixed and no operator has a graph of its own. A graph that returns a single value instead of
    a list is the body of such an operator (a branch of a condition, or a score function of attention), and is refused.
    """
    *nodes, end = graph.nodes
    return isinstance(end.args[0], (tuple, list)) and all(_is_plain(node) for node in nodes)


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op == "placeholder" and not isinstance(value, torch.Tensor):
        return False
    # A node that a pass has inserted has no fake value yet: Inductor adds it after the last pass.
    if (
        (node.op == "call_function" and "val" not in node.meta)
        or node.op == "call_module"
        or isinstance(node.target, HigherOrderOperator)
    ):
        return False
    # Sizes can be symbolic although those of all inputs are fixed: that of `x[x > 0]` is known only at run time.
    return not any(isinstance(size, torch.SymInt) for leaf in tree_leaves(value) for size in _sizes(leaf))


def _sizes(value: object) -> Sequence[object]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)
