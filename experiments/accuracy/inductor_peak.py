"""TorchInductor's own estimate of peak memory, for the graphs that a plan makes of a model.

Everything runs as in a compilation up to the point where kernels would be written: see
`remat.pytorch.inductor.lowered_graphs`. Then Inductor's planner is asked. Run with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from remat.answer.plan import Plan
from remat.pytorch.inductor.lowered_graphs import visit_lowerings
from remat.pytorch.seam.inductor_nodes import memory_planner, ordered_set


@dataclass(frozen=True)
class InductorPeak:
    """What Inductor expects one of its graphs to hold at most.

    Counted are the buffers of the graph, and those of its inputs that it may free: what the forward
    pass saved. Not counted: parameters, arguments and tangents; and buffers that only the kernel that
    makes them reads, which Inductor's own sum includes, though its code never allocates them.

    Attributes:
        backward: the graph is a backward pass.
        in_order_bytes: with its kernels in the order of the graph.
        bytes: in the order that Inductor chooses, after trying a few to lower this very number.
    """

    backward: bool
    in_order_bytes: int
    bytes: int


def inductor_peaks(
    model: Callable[..., Any],
    /,
    *args: Any,
    plans: Plan | Sequence[Plan],
    alive_anyway: Collection[str] = (),
) -> list[InductorPeak]:
    """Asks Inductor what a model holds under a plan: in each forward and each backward graph, in turn.

    Args:
        model: a module or function; it runs once, and is left as it was.
        args: what to call it with.
        plans: a plan for each joint graph.
        alive_anyway: saved values that take no memory: views of inputs. Inductor knows inputs by their
            names, and takes these for activations.

    Raises:
        UnsupportedTorch: the installed torch lacks what this relies on.
    """
    found: list[InductorPeak] = []

    def visit(lowering: Any) -> None:
        found.append(_estimate(lowering, frozenset(alive_anyway)))

    visit_lowerings(visit, model, args, plans, {"reorder_for_peak_memory": False})
    return found


def planned_peak(lowering: Any, alive_anyway: Collection[str] = ()) -> int:
    """Asks Inductor what one of its graphs holds at most, its kernels in the order that Inductor has given them.

    Args:
        lowering: while Inductor works on it, after scheduling.
        alive_anyway: as of `inductor_peaks`.
    """
    return _estimator(lowering, frozenset(alive_anyway))(lowering.scheduler.nodes)


def _estimate(lowering: Any, alive_anyway: frozenset[str]) -> InductorPeak:
    memory, scheduler = memory_planner(), lowering.scheduler
    inputs, outputs = ordered_set(lowering.graph_inputs), ordered_set(lowering.get_output_names())
    given = ordered_set(name for name in inputs if name not in alive_anyway)
    tables = scheduler.name_to_buf, scheduler.name_to_fused_node
    estimate = _estimator(lowering, alive_anyway)
    in_order = estimate(scheduler.nodes)
    best = estimate(memory.reorder_for_peak_memory(scheduler.nodes, *tables, given, outputs))
    return InductorPeak(bool(lowering.is_backward), in_order, best)


def _estimator(lowering: Any, alive_anyway: frozenset[str]) -> Callable[[list[Any]], int]:
    """Makes a function of kernels in some order: the peak."""
    memory, scheduler = memory_planner(), lowering.scheduler
    inputs, outputs = ordered_set(lowering.graph_inputs), ordered_set(lowering.get_output_names())
    given = ordered_set(name for name in inputs if name not in alive_anyway)

    def estimate(nodes: list[Any]) -> int:
        tables = scheduler.name_to_buf, scheduler.name_to_fused_node
        _, freeable = memory.prepare_planning_info(nodes, *tables, given, outputs)
        for buffer in scheduler.name_to_buf.values():  # what stays inside one kernel
            planned = buffer.mpi_buffer
            if not planned.succ_nodes and buffer.get_name() not in outputs:
                planned.size_alloc = planned.size_free = 0
        return memory.estimate_peak_memory(nodes, freeable, outputs)[0]

    return estimate
