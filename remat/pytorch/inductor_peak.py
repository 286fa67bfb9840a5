"""TorchInductor's own estimate of peak memory, for the graphs that a plan makes of a model.

Everything runs as in a compilation up to the point where kernels would be written: Inductor's passes,
lowering, fusion and scheduling. Then Inductor's planner is asked, and the graphs are interpreted. Run
with torch 2.13.0.
"""

# Inductor's internals carry few types: what comes out of them is unknown to a checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx

from remat.plan import Plan
from remat.pytorch import seam
from remat.pytorch.partitioner import Partitioner
from remat.pytorch.traffic_count import checked_modules
from remat.pytorch.undone import undone

_swap = threading.RLock()


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
        kernels: for each kernel, in the order of the graph: the FX nodes that it computes, and the
            bytes that are alive while it runs.
    """

    backward: bool
    in_order_bytes: int
    bytes: int
    kernels: tuple[tuple[tuple[str, ...], int], ...]


def inductor_peaks(
    model: Callable[..., Any],
    /,
    *args: Any,
    plans: Plan | Sequence[Plan],
    alive_anyway: Collection[str] = (),
) -> list[InductorPeak]:
    """Inductor's estimates for a model under a plan: of each forward and each backward graph, in turn.

    Args:
        model: a module or function; it runs once, and is left as it was.
        args: what to call it with.
        plans: a plan for each joint graph.
        alive_anyway: saved values that take no memory: views of inputs. Inductor knows inputs by their
            names, and takes these for activations.

    Raises:
        UnsupportedTorch: the installed torch lacks what this relies on.
    """
    inductor = _inductor()
    found: list[InductorPeak] = []

    def observe(lowering: Any) -> Any:
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        if not lowering.is_inference:
            found.append(_estimate(lowering, frozenset(alive_anyway)))

        def call(inputs: list[Any]) -> Any:
            return lowering.module(*inputs)

        return SimpleNamespace(call=call, __file__=None, key="", value="")

    options = {"custom_partitioner_fn": Partitioner.of(plan=plans), "reorder_for_peak_memory": False}

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches=options)

    functorch: Any = import_module("torch._functorch.config")
    torch_compile: Any = torch.compile
    with (
        _swap,
        patch.object(inductor["graph"].GraphLowering, "compile_to_module", observe),
        torch.compiler.config.patch(force_disable_caches=True),  # type: ignore[attr-defined]
        functorch.patch(force_non_lazy_backward_lowering=True),
        undone(model, args, {}),
        seam.fresh_compilation(),
        torch.enable_grad(),
    ):
        torch_compile(model, backend=backend, dynamic=False)(*args)
    return found


def _estimate(lowering: Any, alive_anyway: frozenset[str]) -> InductorPeak:
    memory, scheduler = _inductor()["memory"], lowering.scheduler
    inputs, outputs = _names(lowering.graph_inputs), _names(lowering.get_output_names())
    tables = scheduler.name_to_buf, scheduler.name_to_fused_node
    given = _names(name for name in inputs if name not in alive_anyway)

    def estimate(nodes: list[Any]) -> tuple[int, list[int]]:
        _, freeable = memory.prepare_planning_info(nodes, *tables, given, outputs)
        for buffer in scheduler.name_to_buf.values():  # what stays inside one kernel
            planned = buffer.mpi_buffer
            if not planned.succ_nodes and buffer.get_name() not in outputs:
                planned.size_alloc = planned.size_free = 0
        return memory.estimate_peak_memory(nodes, freeable, outputs)

    in_order, alive = estimate(scheduler.nodes)
    best, _ = estimate(memory.reorder_for_peak_memory(scheduler.nodes, *tables, given, outputs))
    operators = [
        tuple(dict.fromkeys(origin.name for part in node.get_nodes() for origin in part.node.get_origins()))
        for node in scheduler.nodes
    ]
    kernels = tuple(zip(operators, alive[: len(operators)], strict=True))
    return InductorPeak(bool(lowering.is_backward), in_order, best, kernels)


def _names(names: Any) -> Any:
    """As the kind of set that Inductor works with."""
    return _inductor()["ordered_set"].OrderedSet(names)


_USED = {
    "torch._inductor.memory": ("prepare_planning_info", "estimate_peak_memory", "reorder_for_peak_memory"),
    "torch._inductor.graph": ("GraphLowering.compile_to_module", "GraphLowering._update_scheduler"),
    "torch.utils._ordered_set": ("OrderedSet",),
}


@cache
def _inductor() -> dict[str, Any]:
    return checked_modules(_USED)
