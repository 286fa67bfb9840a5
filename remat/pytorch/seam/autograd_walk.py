"""Computes `torch.autograd.grad` for fake tensors on a missing device, by a traversal of autograd's nodes.

libtorch's engine asks every accelerator for its streams, which needs a driver. AOTAutograd calls `grad` once per joint
graph and traces what the nodes do, but not their caller. Nodes run in the engine's order: the node that the forward
pass made last runs first. This module also does what the engine does between nodes: it adds up the gradients of each
tensor, and reverses broadcasts and promotions (`validate_outputs` in `torch/csrc/autograd/engine.cpp`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from remat.errors import CaptureError

_UNTRACED = (
    "is not traced for a GPU that this machine lacks: capture without device=, and name the GPU in the "
    "call that takes the graph"
)

Edge = tuple[Any, int]
"""A node of autograd, and the number of one of its inputs."""


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    del retain_graph  # nothing is freed here
    if is_grads_batched or materialize_grads or not allow_unused:  # AOTAutograd and torch.func pass allow_unused=True
        raise CaptureError(f"torch.autograd.grad within a model {_UNTRACED}")
    roots, leaves = _listed(outputs), _listed(inputs)
    firsts = _listed(grad_outputs) if grad_outputs is not None else (None,) * len(roots)
    walk = _Walk([_edge(tensor) for tensor in leaves])
    with torch.set_grad_enabled(create_graph):
        starts = [torch.ones_like(root) if first is None else first for root, first in zip(roots, firsts, strict=True)]
        gradients = walk.run([_edge(root) for root in roots], starts)
    if create_graph and not any(gradient is not None and gradient.requires_grad for gradient in gradients):
        # If nodes of one level of torch.func run at another level, their gradients cannot be traced further.
        raise CaptureError(f"a gradient of a gradient (torch.func.vjp or hessian) {_UNTRACED}")
    return tuple(gradients)


def no_hook(*_: object, **__: object) -> None:
    """Replaces `Tensor.register_hook` by an error: the engine would run the hook, this traversal cannot."""
    raise CaptureError(f"a hook on the gradient of a tensor within a model {_UNTRACED}")


def _listed(tensors: Any) -> tuple[Any, ...]:
    several = isinstance(tensors, list | tuple)
    return tuple(cast(Sequence[Any], tensors)) if several else (tensors,)


def _edge(tensor: Tensor) -> Edge:
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


class _Walk:
    """Runs nodes from the outputs to the inputs whose gradients are requested.

    Attributes:
        targets: one edge per requested gradient.
        arrived: for each node that has not run, the gradients of its inputs so far, by the number of the input.
        waiting: for each node, how many of its predecessors have not run.
    """

    def __init__(self, targets: Sequence[Edge]) -> None:
        self.targets = targets
        self.gradients: dict[Edge, Tensor | None] = {}
        self.arrived: dict[Any, dict[int, Tensor]] = {}
        self.waiting: dict[Any, int] = {}

    def run(self, roots: Sequence[Edge], gradients: Sequence[Tensor]) -> list[Tensor | None]:
        needed = self._needed([node for node, _ in roots])
        for edge, gradient in zip(roots, gradients, strict=True):
            self._add(edge, gradient)
        ready = [_turn(node) for node in {node for node, _ in roots} if not self.waiting.get(node)]
        heapq.heapify(ready)
        targets = set(self.targets)
        while ready:
            *_, node = heapq.heappop(ready)
            arrived = self.arrived.pop(node, {})
            self.gradients |= {(node, i): gradient for i, gradient in arrived.items() if (node, i) in targets}
            results = _results(node, arrived) if node in needed and arrived else (None,) * len(node.next_functions)
            following = [(edge, g) for edge, g in zip(node.next_functions, results, strict=True) if edge[0] is not None]
            fitting = [None if g is None else _fitting(g, after._input_metadata[i]) for (after, i), g in following]
            for ((after, i), _), gradient in zip(following, fitting, strict=True):
                if gradient is not None:
                    self._add((after, i), gradient)
                self.waiting[after] -= 1
                if not self.waiting[after]:
                    heapq.heappush(ready, _turn(after))
        return [self.gradients.get(edge) for edge in self.targets]

    def _needed(self, roots: Sequence[Any]) -> set[Any]:
        before: dict[Any, list[Any]] = {}
        stack, visited = [*roots], set[Any]()
        while stack:
            node = stack.pop()
            if node in visited:
                continue
            visited.add(node)
            for after, _ in node.next_functions:
                if after is not None:
                    self.waiting[after] = self.waiting.get(after, 0) + 1
                    before.setdefault(after, []).append(node)
                    stack.append(after)
        needed, stack = set[Any](), [earlier for node, _ in self.targets for earlier in before.get(node, ())]
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack += before.get(node, ())
        return needed

    def _add(self, edge: Edge, gradient: Tensor) -> None:
        node, i = edge
        arrived = self.arrived.setdefault(node, {})
        arrived[i] = arrived[i] + gradient if i in arrived else gradient


# The engine's order; the `id` makes the key unique.
def _turn(node: Any) -> tuple[int, int, Any]:
    return -node._sequence_nr(), id(node), node


# The engine passes zeros to a `torch.autograd.Function`, unless it has called `set_materialize_grads(False)`. That
# cannot be queried, so it always gets zeros here.
def _results(node: Any, arrived: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    expected = node._input_metadata
    incoming = [arrived.get(i) for i in range(len(expected))]
    if callable(node):
        return _listed(node(*incoming))
    filled = [
        torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device) if gradient is None else gradient
        for gradient, meta in zip(incoming, expected, strict=True)
    ]
    results = _listed(node.apply(*filled))
    # It returns a gradient per argument, but has edges only for tensors.
    needed = iter([gradient for gradient, need in zip(results, node.needs_input_grad, strict=False) if need])
    return tuple(None if after is None else next(needed) for after, _ in node.next_functions)


# Reverses a broadcast or a promotion of the tensor.
def _fitting(gradient: Tensor, like: Any) -> Tensor:
    if gradient.shape != (shape := torch.Size(like.shape)):
        gradient = gradient.sum_to_size(shape)
    if gradient.is_complex() and not like.dtype.is_complex:
        gradient = gradient.real
    return gradient.to(like.dtype) if gradient.dtype != like.dtype else gradient
