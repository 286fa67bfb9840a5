"""Rebuilds a joint FX graph from the columns of a `Graph`, with fake tensors; only constants are real.

Operators, arguments, shapes and dtypes are the original ones. What a graph does not record is chosen: inputs are
contiguous, tangents have the strides of the outputs to which they belong, constants contain zeros, and symbolic sizes
have their captured values. Each output comes once, in the order of the graph.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from remat.errors import CannotRebuild
from remat.facts.graph import Graph
from remat.pytorch.read.call_text import call_of
from remat.pytorch.read.sample_call import operator_named, result_mismatch
from remat.pytorch.seam.fakes import constant_zeros, in_mode
from remat.pytorch.seam.torch_names import (
    FakeTensorMode,
    enable_python_dispatcher,
    get_layout_constraint_tag,
    is_overload,
)
from remat.pytorch.seam.torch_partitioner import Chooser, partition

# Inductor needs constants as real tensors; large ones are refused, so that nothing large is allocated.
_LARGEST_CONSTANT_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class JointGraph:
    """Holds a joint graph that torch's partitioner accepts."""

    module: fx.GraphModule  # its nodes have the names of the graph's values; symbolic integers are left out
    fake_mode: FakeTensorMode  # of the fake tensors in `meta["val"]`
    num_fwd_outputs: int  # how many of the outputs belong to the forward pass; they come first
    # positions, among the inputs of the forward pass, of those that are as long-lived as the model.
    parameters: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, device: torch.device) -> JointGraph:
        return _Builder(graph, device).built()

    def partitioned(self, chooser: Chooser) -> tuple[fx.GraphModule, fx.GraphModule]:
        return partition(
            self.module,
            (),
            chooser,
            num_fwd_outputs=self.num_fwd_outputs,
            static_lifetime_input_indices=list(self.parameters),
        )


class _Builder:
    def __init__(self, graph: Graph, device: torch.device) -> None:
        self.graph, self.device = graph, device
        self.fx_graph, self.root = fx.Graph(), torch.nn.Module()
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.nodes: list[fx.Node | None] = []

    def built(self) -> JointGraph:
        graph = self.graph
        for value in range(len(graph)):
            self.nodes.append(self._node(value))
        outputs, gradients = (
            [node for v in np.flatnonzero(flags).tolist() if (node := self.nodes[v]) is not None]
            for flags in (graph.output, graph.gradient)
        )
        self.fx_graph.output((*outputs, *gradients))
        self._compute(outputs)
        inputs = [v for v in np.flatnonzero(graph.input).tolist() if self.nodes[v] is not None]
        parameters = tuple(i for i, v in enumerate(inputs) if graph.parameter[v])
        return JointGraph(fx.GraphModule(self.root, self.fx_graph), self.fake_mode, len(outputs), parameters)

    def _node(self, value: int) -> fx.Node | None:
        graph = self.graph
        name, op = graph.names[value], graph.ops[value]
        if graph.dtypes[value] == "symint":
            return None  # its readers have its hint
        if op == "placeholder":
            node = self.fx_graph.create_node("placeholder", self._target(value), name=name)
        elif op == "get_attr":
            node = self.fx_graph.create_node("get_attr", self._constant(value), name=name)
        else:
            node = self._call(value)
        if node.name != name:
            raise CannotRebuild(f"{name!r} cannot name an FX node; take {node.name!r}, for example")
        for policy, flags in (
            (CheckpointPolicy.MUST_SAVE, graph.must_save),
            (CheckpointPolicy.MUST_RECOMPUTE, graph.must_recompute),
            (CheckpointPolicy.PREFER_SAVE, graph.prefer_save),
            (CheckpointPolicy.PREFER_RECOMPUTE, graph.prefer_recompute),
        ):
            if flags[value]:
                node.meta |= {"recompute": policy, "ac_graph_id": 0}
        if graph.in_tangents[value] and op != "placeholder":
            # Only a write can be in the backward pass without depending on a tangent; its tag puts it there.
            of_tangent = graph.in_tangents[list(graph.operands[value])].any()
            node.meta["partitioner_tag"] = "is_backward" if of_tangent else "must_be_in_backward"
        return node

    # Torch recognizes a tangent by its name.
    def _target(self, value: int) -> str:
        name, tangent = self.graph.names[value], bool(self.graph.in_tangents[value])
        if ("tangents" in name) == tangent:
            return name
        return f"tangents_of_{name}" if tangent else f"input_{value}"

    def _constant(self, value: int) -> str:
        graph = self.graph
        if not graph.dtypes[value]:
            raise CannotRebuild(f"{graph.names[value]!r} is the body of a higher-order operator")
        if graph.bytes[value] > _LARGEST_CONSTANT_BYTES:
            raise CannotRebuild(f"{graph.names[value]!r} is a constant of more than {_LARGEST_CONSTANT_BYTES} bytes")
        name = f"constant_{value}"
        with self.fake_mode:
            fake: Any = torch.empty(graph.shapes[value], dtype=getattr(torch, graph.dtypes[value]), device=self.device)
        self.root.register_buffer(name, constant_zeros(fake))
        return name

    def _call(self, value: int) -> fx.Node:
        graph = self.graph
        name, op = graph.names[value], graph.ops[value]
        try:
            target = operator.getitem if op == "getitem" else operator_named(op)
            producers = [self.nodes[u] for u in graph.operands[value]]
            args, kwargs = call_of(graph.arguments[value], producers, self.device)
        except CannotRebuild as error:
            raise CannotRebuild(f"{name!r} ({op}) cannot be rebuilt from the graph: {error}") from None
        return self.fx_graph.create_node("call_function", target, tuple(args), kwargs, name=name)

    # The forward pass comes first, because tangents have the strides of its outputs.
    def _compute(self, outputs: list[fx.Node]) -> None:
        tangents = self.graph.in_tangents
        free = list(outputs)
        with self.fake_mode, enable_python_dispatcher(), torch.no_grad():
            for value in (*np.flatnonzero(~tangents).tolist(), *np.flatnonzero(tangents).tolist()):
                node = self.nodes[value]
                if node is None:
                    continue
                if node.op == "placeholder":
                    node.meta["val"] = self._input(value, free if tangents[value] else [])
                elif node.op == "get_attr":
                    node.meta["val"] = in_mode(self.fake_mode, getattr(self.root, str(node.target)))
                else:
                    node.meta["val"] = self._result(value, node)

    # A tangent is like the first output to which it may belong; all other inputs are contiguous.
    def _input(self, value: int, free: list[fx.Node]) -> torch.Tensor:
        graph = self.graph
        name, shape = graph.names[value], graph.shapes[value]
        dtype = getattr(torch, graph.dtypes[value], None)
        if not isinstance(dtype, torch.dtype):
            raise CannotRebuild(f"{name!r} is an input, but no tensor")
        made = torch.empty(shape, dtype=dtype, device=self.device)
        for output in free:
            like = output.meta["val"]
            if like.shape == made.shape and like.dtype == dtype:
                free.remove(output)
                # AOTAutograd copies a tangent that has another layout.
                return torch.empty_strided(shape, torch.empty_like(like).stride(), dtype=dtype, device=self.device)
        return made

    def _result(self, value: int, node: fx.Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        target: Any = node.target
        if is_overload(target) and get_layout_constraint_tag(target) == torch.Tag.needs_exact_strides:
            node.meta["eager_input_vals"] = args, kwargs  # custom operators get the arguments of eager mode
        try:
            result = target(*args, **kwargs)
        except Exception as error:
            raise CannotRebuild(f"{node.name!r} ({self.graph.ops[value]}) fails on its arguments: {error}") from None
        wrong = result_mismatch(self.graph, value, result)
        if wrong:
            raise CannotRebuild(f"{node.name!r} ({self.graph.ops[value]}) gives {wrong}")
        return result
