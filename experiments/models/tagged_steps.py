"""Traces whole training steps, and runs tagged ones as a graph-based trainer does, with a count of live bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate_fn, preserve_node_meta
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from remat.pytorch.seam.torch_names import storage_of

REPEATED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
OFFLOADED: CheckpointPolicy | None = getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", None)
"""None where torch does not have it yet."""
WAITING = {*REPEATED, OFFLOADED} - {None}


@dataclass(frozen=True)
class Step:
    """Holds a traced step: a function of parameters and inputs that returns the loss and the gradients."""

    module: fx.GraphModule
    inputs: tuple[Tensor, ...]


def traced(model: nn.Module, args: tuple[Tensor, ...], *, annotated: bool = True) -> Step:
    """Traces a step by `make_fx`; with the path of each module, as torchtitan notes it, if it is `annotated`."""
    weights = dict(model.named_parameters())
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for path, module in model.named_modules():
        if path and annotated:
            forwards[module] = module.forward
            module.forward = annotate_fn({"module_fqn": path})(module.forward)  # type: ignore[method-assign]

    def step(parameters: list[Tensor], *args: Tensor) -> tuple[Tensor, ...]:
        loss = functional_call(model, dict(zip(weights, parameters, strict=True)), args)
        return loss, *torch.autograd.grad(loss, parameters)

    inputs = (list(weights.values()), *args)
    with preserve_node_meta(), torch.autograd.set_multithreading_enabled(False):
        module = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for owner in forwards:
        del owner.forward
    return Step(module, (*weights.values(), *args))


def recomputing(module: fx.GraphModule) -> fx.GraphModule:
    """Follows the tags: duplicates what is recomputed right before its first reader in the backward pass.

    What goes to the host is copied there at once, and back right before its first reader in the backward pass.
    """
    graph, in_forward, again = fx.Graph(), dict[fx.Node, fx.Node](), dict[fx.Node, fx.Node]()
    order = {node: i for i, node in enumerate(module.graph.nodes)}

    def missing(node: fx.Node) -> list[fx.Node]:
        found, stack = set[fx.Node](), [*node.all_input_nodes]
        while stack:
            operand = stack.pop()
            if operand not in found | again.keys() and operand.meta.get("recompute") in WAITING:
                found.add(operand)
                stack += operand.all_input_nodes if operand.meta["recompute"] in REPEATED else ()
        return sorted(found, key=order.__getitem__)

    def in_backward(node: fx.Node) -> fx.Node:
        return again[node] if node in again else in_forward[node]

    hosted: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if not node.meta.get("autograd_backward"):
            in_forward[node] = graph.node_copy(node, in_forward.__getitem__)
            if OFFLOADED and node.meta.get("recompute") is OFFLOADED:
                hosted[node] = graph.call_function(torch.ops.aten.clone.default, (in_forward[node],))
                hosted[node].meta["host"] = True
            continue
        for operand in missing(node):
            if operand in hosted:
                again[operand] = graph.call_function(torch.ops.aten.clone.default, (hosted[operand],))
            else:
                again[operand] = graph.node_copy(operand, in_backward)
                again[operand].name = f"{operand.name}_recomputed"
        in_forward[node] = graph.node_copy(node, in_backward)
    _raise_elements(graph)
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


# Until all its elements are taken, a whole tuple stays in memory.
def _raise_elements(graph: fx.Graph) -> None:
    for element in reversed(graph.find_nodes(op="call_function", target=operator.getitem)):
        element.args[0].append(element)


@dataclass(frozen=True)
class Ran:
    """Holds what a step returned, and the most bytes alive beside its inputs."""

    results: tuple[Tensor, ...]
    peak_bytes: int


class _Counted(fx.Interpreter):
    """Runs operator by operator, frees each value after its last reader, and counts the storages that are alive."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.peak_bytes = 0
        self.foreign: dict[int, Tensor] = {}  # it holds them, because a freed storage's number is used again

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op in ("placeholder", "get_attr") or n.meta.get("host"):
            self.foreign |= {storage_of(tensor): tensor for tensor in _tensors(result)}
            return result
        if n.op == "output":
            return result
        alive = _tensors([*self.env.values(), result])
        sizes = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in alive}
        self.peak_bytes = max(self.peak_bytes, sum(size for at, size in sizes.items() if at not in self.foreign))
        return result if n.users else None


def run(module: fx.GraphModule, inputs: tuple[Tensor, ...]) -> Ran:
    """Runs a step on tensors."""
    interpreter = _Counted(module)
    with torch.no_grad():
        results = interpreter.run(*inputs)
    return Ran(tuple(tree_leaves(results)), interpreter.peak_bytes)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
