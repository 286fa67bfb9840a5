"""Tells a shared budget of each graph that is compiled, and of each call that saves values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from remat.pytorch.run.shared_budget import CompiledGraph, SharedBudget
from remat.pytorch.run.shared_storages import activations_of
from remat.pytorch.seam.compilations import covers_whole_call
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.reachable import reachable_tensors
from remat.pytorch.seam.torch_names import storage_of, tree_leaves


@dataclass
class ModelCall:
    """Describes a call of a model by its user."""

    budget: SharedBudget  # the one that the model's graphs share
    model: Callable[..., Any]
    arguments: Any = ()
    graphs: int = 0  # how many compiled graphs have run in this call so far

    def from_other_graphs(self, inputs: Sequence[Any]) -> dict[int, int]:
        """Finds the inputs of a graph that other graphs of the model computed and that need no gradient, such as masks.

        Inputs that need a gradient are known already when the graph is compiled.

        Returns:
            for each of their storages, its bytes.
        """
        tensors = [value for value in inputs if isinstance(value, Tensor) and not value.requires_grad]
        known = _storages(owned(self.model, self.arguments)) if tensors else {}
        return {storage: size for storage, size in _storages(tensors).items() if storage not in known}


@dataclass
class Compilation:
    """Holds what the plan of a graph depends on, while Dynamo compiles the graph within a budget."""

    budget: SharedBudget
    others: bool  # whether other graphs may follow in the same step
    inputs: Sequence[Tensor]  # of the graph
    # parameters, buffers and arguments of the model; empty if the memory of no device is limited.
    owned: Sequence[Tensor]
    activation_inputs: frozenset[int]  # positions of the inputs that earlier graphs computed, and that need gradients
    compiled_graph: CompiledGraph | None = None  # the compiled graph; None as long as there is no plan


# A tensor without a storage of its own, such as a sparse one, is left out.
def _storages(tensors: Sequence[Tensor]) -> dict[int, int]:
    found: dict[int, int] = {}
    for tensor in tensors:
        with suppress(NotImplementedError):
            found[storage_of(tensor)] = tensor.untyped_storage().nbytes()
    return found


_call: ContextVar[ModelCall | None] = ContextVar("_call", default=None)
_compilation: ContextVar[Compilation | None] = ContextVar("_compilation", default=None)


def current_compilation() -> Compilation | None:
    """Returns the compilation that is running in this thread; None if its graph shares no budget."""
    return _compilation.get()


@contextmanager
def counting_call(budget: SharedBudget, model: Callable[..., Any], arguments: Any) -> Generator[None]:
    """Makes all graphs that run in the block belong to one call of a model."""
    token = _call.set(ModelCall(budget, model, arguments))
    try:
        yield
    finally:
        _call.reset(token)


@contextmanager
def sharing_budget(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Generator[Compilation | None]:
    """Makes a graph that is compiled in the block share the budget of the running call; yields None without a call."""
    call = _call.get()
    if call is None:
        yield None
        return
    others = not (call.budget.is_alone and not call.graphs and covers_whole_call(graph_module, call.model))
    tensors = [(i, value) for i, value in enumerate(inputs) if isinstance(value, Tensor)]
    made = frozenset(i for i, tensor in tensors if others and tensor.requires_grad and not tensor.is_leaf)
    # The arguments are alive even if the graph does not read them.
    limited = call.budget.cost_model.device_limits
    alive = [*reachable_tensors(call.model, call.arguments), *owned(call.model, call.arguments)] if limited else []
    token = _compilation.set(Compilation(call.budget, others, [tensor for _, tensor in tensors], alive, made))
    try:
        yield _compilation.get()
    finally:
        _compilation.reset(token)


def with_counted_calls(compiled: Callable[..., Any], compiled_graph: CompiledGraph) -> Callable[..., Any]:
    """Wraps a compiled graph, so that the budget counts each call from its forward pass to its backward pass."""

    def run(*args: Any) -> Any:
        call = _call.get()
        is_new = call is not None and call.budget.is_alone and compiled_graph.is_careful
        elsewhere = call.from_other_graphs(args) if call is not None and is_new else {}
        results = compiled(*args)
        if call is not None:
            call.graphs += 1
            node = compiled_node([leaf.grad_fn for leaf in tree_leaves(results) if isinstance(leaf, Tensor)])
            if node is not None:
                activations = activations_of(
                    compiled_graph.boundary, compiled_graph.activation_inputs, elsewhere, args, results
                )
                call.budget.begin_call(compiled_graph, elsewhere, activations, node)
        return results

    return run


def compiled_node(nodes: Sequence[Any], ends: AbstractSet[Any] = frozenset()) -> Any:
    """Finds the nearest compiled node among some nodes of autograd, and what these read; None if there is none.

    Args:
        nodes: nodes of autograd; None for a tensor without one.
        ends: nodes behind which it does not search.
    """
    stack = [node for node in nodes if node is not None]
    seen = {*stack, *ends, None}
    for node in stack:
        if is_compiled(node):
            return node
        following = [source for source, _ in node.next_functions if source not in seen]
        seen.update(following)
        stack.extend(following)
    return None


def is_compiled(node: Any) -> bool:
    """Tells whether a node of autograd is the backward pass of a compiled graph."""
    return node.name() == "CompiledFunctionBackward"  # the name that AOTAutograd gives, whatever compiler it calls
