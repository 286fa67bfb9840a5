"""What the parts of a graph that Inductor has scheduled are."""

from __future__ import annotations

from typing import Any

from remat.pytorch.seam.internals import internals


def launched(lowering: Any) -> list[Any]:
    """Lists the scheduler's nodes that launch something, in order.

    Two kinds do not: a concatenation in place, and one result out of a call's several.
    """
    nothing, element = internals("torch._inductor.scheduler").NopKernelSchedulerNode, _ir().MultiOutput
    nodes: list[Any] = lowering.scheduler.nodes
    return [node for node in nodes if not isinstance(node, nothing) and not isinstance(node.node, element)]


def is_generated(node: Any) -> bool:
    """Whether Inductor writes the kernel of a scheduler's node; otherwise it calls a library."""
    return not isinstance(node, internals("torch._inductor.scheduler").ExternKernelSchedulerNode)


def is_inside_another(lowering: Any) -> bool:
    """Whether the lowered graph is the body of an operator of another one."""
    return isinstance(lowering, internals("torch._inductor.graph").SubgraphLowering)


def is_computed(buffer: Any) -> bool:
    """Whether a kernel of Inductor's fills the buffer."""
    return isinstance(buffer, _ir().ComputedBuffer)


def output_strides(lowering: Any) -> list[tuple[int, ...] | None]:
    """Lists the strides that Inductor gives to each output; None for what has none."""
    return [
        tuple(map(int, output.get_layout().stride))
        if isinstance(output, _ir().IRNode) and output.has_tensor_output()
        else None
        for output in lowering.graph_outputs
    ]


def _ir() -> Any:
    return internals("torch._inductor.ir")
