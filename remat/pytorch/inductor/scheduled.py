"""Lists the kernels that TorchInductor schedules, before it writes code, and the bytes of each.

The count is taken after all fusion: during a compilation, in the thread that compiles, or for a plan of a `Graph`
alone. Run with torch 2.11.0, 2.13.0 and 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from remat.answer.choice import Choice
from remat.answer.handover import externally_visible, handed_over
from remat.answer.plan import Plan
from remat.facts.argument_checks import checked_flag
from remat.facts.collection import collection_paused
from remat.facts.graph import Graph, checked_graph
from remat.predict.buffers.orders import has_torchs_order
from remat.proof.validate import legal_choice
from remat.pytorch.inductor.to_fx import JointGraph
from remat.pytorch.run.offload_copies import add_copies
from remat.pytorch.seam.inductor_lowering import (
    before_code,
    is_generated,
    is_inside_another,
    launched,
    lowered,
    output_strides,
    prepared,
)
from remat.pytorch.seam.torch_settings import nothing_cached
from remat.pytorch.seam.virtual_gpu import captured_for, device_of


@dataclass(frozen=True)
class InductorKernel:
    """Describes one launch in Inductor's code: a generated kernel, or the call of a library or of an eager operator."""

    name: str  # Inductor's name, unique in its graph
    backward: bool  # whether it runs in the backward pass
    generated: bool  # whether Inductor writes it; otherwise it is a call, such as a matrix product
    operators: tuple[str, ...]  # names of the FX nodes that it computes, in Inductor's order
    # bytes read and written: each buffer once, and at most what the kernel can reach. Inductor's own count: worst-case
    # inputs, best-case kernel.
    bytes: int
    # the buffers of `bytes`, each with its share, named by the FX node that computes it or by the placeholder. A buffer
    # that is both read and written is listed as written.
    reads: tuple[tuple[str, int], ...] = ()
    writes: tuple[tuple[str, int], ...] = ()

    def renamed(self, names: Mapping[str, str]) -> InductorKernel:
        """Replaces names of what the kernel accesses."""
        reads, writes = (
            tuple((names.get(name, name), bytes_) for name, bytes_ in accessed)
            for accessed in (self.reads, self.writes)
        )
        return replace(self, reads=reads, writes=writes)


@contextmanager
def counting_kernels() -> Generator[list[InductorKernel]]:
    """Yields a growing list of the kernels that Inductor schedules in this thread within the block.

    Caches are off inside, because a graph from a cache is never scheduled. The backward pass runs, and compiles, in the
    calling thread: since torch 2.13, settings belong to a thread, so autograd's GPU threads would use the
    cache. A branch of `torch.cond` and the body of a nested region count as one call, with their inputs and outputs, as
    in Inductor's own metrics.
    """
    kernels: list[InductorKernel] = []
    visited: list[Any] = []

    def visit(lowering: Any) -> None:
        # The C++ wrapper generates code twice for one graph.
        if not is_inside_another(lowering) and all(lowering is not other for other in visited):
            visited.append(lowering)
            kernels.extend(scheduled_kernels(lowering))

    with before_code(visit), nothing_cached(), torch.autograd.set_multithreading_enabled(False):
        yield kernels


def scheduled_kernels(lowering: Any) -> list[InductorKernel]:
    """Returns the kernels of one of Inductor's graphs after scheduling, in order."""
    return [_kernel(node, lowering) for node in launched(lowering)]


def _kernel(node: Any, lowering: Any) -> InductorKernel:
    accessed: dict[str, int] = node.get_read_write_buffer_accesses(include_reads=True, include_writes=True)
    written = {access.name for access in node.read_writes.writes}
    origins = (origin for part in node.get_nodes() for origin in part.node.get_origins())
    named = [(name, _origin(name, lowering), bytes_) for name, bytes_ in accessed.items()]
    return InductorKernel(
        name=node.get_name(),
        backward=bool(lowering.is_backward),
        generated=is_generated(node),
        operators=tuple(dict.fromkeys(origin.name for origin in origins)),
        bytes=sum(accessed.values()),
        reads=tuple((origin, bytes_) for name, origin, bytes_ in named if name not in written),
        writes=tuple((origin, bytes_) for name, origin, bytes_ in named if name in written),
    )


# The buffer of a placeholder already has the placeholder's name.
def _origin(name: str, lowering: Any) -> str:
    buffer = lowering.name_to_buffer.get(name)
    origin = buffer.get_origin_node() if buffer is not None and name not in lowering.graph_inputs else None
    return name if origin is None else origin.name


PassVisitor: TypeAlias = Callable[[Any, Mapping[str, str], Sequence[str]], None]
"""Receives a `GraphLowering` of a pass with its `scheduler`; the joint graph's names of the inputs, by placeholder; and
those of the outputs, "" for an output that is no value."""


class Scheduled:
    """Gets Inductor's kernels of a graph under any plan, without a model, Dynamo or AOTAutograd.

    The joint FX graph is rebuilt once from the graph's columns (`remat.pytorch.inductor.to_fx`). For each plan, torch's
    own extraction splits it, and Inductor's passes, lowering and scheduler follow. It accepts graphs from files, and
    parts of graphs: a block whose boundary values are inputs, tangents and outputs.

    The kernels are those of a compilation of the model, with two exceptions: the model has inputs that are not
    contiguous, or Inductor's rules about outputs apply to a value that is returned twice or to a saved input. Symbolic
    sizes have the values from the capture.
    """

    def __init__(self, graph: Graph, *, device: str | torch.device | None = None, copy_stream: bool = False) -> None:
        """Rebuilds the joint graph.

        Args:
            graph: a graph of `remat.capture`, or a part of one, whatever device it was captured for.
            device: the device of its tensors: a torch device, or the name of a GPU that may be missing: "a100",
                "a100-40gb", "h100", "h200". None for the device of the capture.
            copy_stream: whether offloaded values are copied in a CUDA stream of their own (see `remat.compile`).

        Raises:
            CannotRebuild: the graph has an operator that is not installed or is higher-order, or an argument of which
                only the type is known.
            InvalidOption: the graph is no `Graph`, or Inductor is set to decide by timing.
            NotInstalled: the device is "cuda" without a GPU in this machine, or a GPU by name without Triton.
        """
        self.graph, self.copy_stream = checked_graph(graph), checked_flag("copy_stream", copy_stream)
        self._device, self._for_device = device_of(captured_for(graph.meta) if device is None else device)
        with self._for_device():
            self.joint_graph = JointGraph.of(graph, self._device)

    def kernels(self, plan: Plan) -> list[InductorKernel]:
        """Returns the kernels of the forward and then of the backward pass, in Inductor's order."""
        kernels: list[InductorKernel] = []

        def visit(lowering: Any, inputs: Mapping[str, str], _: Sequence[str]) -> None:
            # Torch's partitioner gives placeholders names of its own; they get those of the joint graph.
            kernels.extend(kernel.renamed(inputs) for kernel in scheduled_kernels(lowering))

        self.visit(plan, visit)
        return kernels

    def visit(self, plan: Plan, visit: PassVisitor) -> None:
        """Calls a visitor with the forward and then the backward pass, while Inductor works on it."""
        legal_choice(self.graph, plan)
        if all(node.op != "call_function" for node in self.joint_graph.module.graph.nodes):
            return  # torch's partitioner does not accept a graph without operators
        strides: dict[str, tuple[int, ...] | None] = {}
        # Lowering makes many small objects: with the collector, two layers of GPT-2 style took 2.2 s instead of 1.5 s.
        with collection_paused(), self._for_device():
            for backward, module in enumerate(self.split(plan)):
                # Inductor compiles no graph without operators.
                if any(node.op == "call_function" for node in module.graph.nodes):
                    strides = self._lowered(module, strides, visit, backward=bool(backward))

    def split(self, plan: Plan) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Splits the joint graph by a plan, and does not check that the plan is legal (see `remat.check_plan`)."""
        Choice.from_plan(self.graph, plan, offload=True)
        handed = handed_over(self.graph, plan)

        def saved(joint_graph: fx.Graph, *_: object) -> list[fx.Node]:
            return [node for node in joint_graph.nodes if node.name in handed]

        forward, backward = self.joint_graph.partitioned(saved)
        add_copies(self.graph, plan, forward, backward, self.joint_graph.num_fwd_outputs, copy_stream=self.copy_stream)
        visible = [i for i, node in enumerate(outputs_of(forward)) if node is not None]
        forward.graph.output_node().meta["user_visible_output_idxs"] = visible[: self.joint_graph.num_fwd_outputs]
        gradients = [i for i, node in enumerate(outputs_of(backward)) if node is not None]
        backward.graph.output_node().meta["user_visible_output_idxs"] = gradients
        return forward, backward

    # Returns the strides of the outputs, by name; `strides` are those of the values that the forward pass saves.
    def _lowered(
        self,
        module: fx.GraphModule,
        strides: Mapping[str, tuple[int, ...] | None],
        visit: PassVisitor,
        *,
        backward: bool,
    ) -> dict[str, tuple[int, ...] | None]:
        placeholders = module.graph.find_nodes(op="placeholder")
        inputs = {str(node.target): node.name for node in placeholders}
        for node in placeholders:
            value, saved_strides = node.meta["val"], strides.get(node.name)
            if saved_strides is not None and saved_strides != value.stride():
                with self.joint_graph.fake_mode:
                    node.meta["val"] = value.as_strided(value.shape, saved_strides)
        outputs = [getattr(node, "name", "") for node in outputs_of(module)]
        fake_mode, own = self.joint_graph.fake_mode, ~self.graph.leaf & ~self.graph.derived(externally_visible)
        places = [self.graph.index.get(node.name, -1) for node in placeholders] if backward else []
        donated = [i for i, v in enumerate(places) if v >= 0 and own[v]]
        torchs_order = has_torchs_order(self.graph)
        with (
            prepared(module, fake_mode),
            lowered(module, donated, torchs_order=torchs_order, is_inference=False, is_backward=backward) as lowering,
        ):
            visit(lowering, inputs, outputs)
            return dict(zip(outputs, output_strides(lowering), strict=True))


def outputs_of(module: fx.GraphModule) -> Sequence[Any]:
    """Returns what a graph returns: nodes, or other objects in their place."""
    outputs: Any = module.graph.output_node().args[0]
    return outputs
