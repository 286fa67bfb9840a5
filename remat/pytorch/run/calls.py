"""Counts the calls whose saved values are alive: from the forward pass of a compiled graph to its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, fx

from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.pytorch.run.on_device import check_device, plan_on_device
from remat.pytorch.run.planned_graph import ChosenPlan
from remat.pytorch.run.shared_budget import CompiledGraph, SharedBudget
from remat.pytorch.run.shared_storages import Boundary, activations_of
from remat.pytorch.seam.compilations import is_whole
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.reachable import reachable_tensors
from remat.pytorch.seam.torch_names import storage_of, tree_leaves


@dataclass
class ModelCall:
    """Describes a call of a model by its user."""

    budget: SharedBudget  # that the model's graphs share
    model: Callable[..., Any]
    arguments: Any = ()
    graphs: int = 0  # how many compiled graphs have run in it so far

    def made_elsewhere(self, inputs: Sequence[Any]) -> dict[int, int]:
        """Finds the inputs without a gradient that other graphs of the model computed: the bytes of each storage.

        A mask is one. Inputs that need a gradient are known when the graph is compiled.
        """
        tensors = [value for value in inputs if isinstance(value, Tensor) and not value.requires_grad]
        known = _storages(owned(self.model, self.arguments)) if tensors else {}
        return {storage: size for storage, size in _storages(tensors).items() if storage not in known}


@dataclass
class Compilation:
    """Holds what a plan of a graph depends on, while Dynamo has the graph compiled within a budget."""

    budget: SharedBudget
    others: bool  # whether other graphs may follow in the same step
    inputs: Sequence[Tensor]  # of the graph
    owned: Sequence[Tensor]  # the model's parameters, buffers and arguments; empty if no device is limited
    made_before: frozenset[int]  # which of its inputs are activations of the run, by position
    piece: CompiledGraph | None = field(default=None)  # the compiled graph; None as long as there is no plan

    def plan(self, graph: Graph, joint_graph: fx.Graph, solver: Solver | None, *, copy_stream: bool) -> ChosenPlan:
        """Chooses a plan for the graph (see `SharedBudget.plan_for`)."""
        model = self.budget.cost_model
        if model.device_limits:
            check_device(model, is_alone=not self.others)
            planned = graph.bytes[graph.input & (np.array(graph.dtypes) != "")].sum()
            larger = max(int(planned) - sum(tensor.nbytes for tensor in self.inputs), 0)
            found = plan_on_device(graph, model, solver, [*self.owned, *self.inputs], larger_bytes=larger)
            return ChosenPlan.of(found)
        made_before = self.made_before_of(joint_graph)
        return self.budget.plan_for(graph, solver, made_before, others=self.others, copy_stream=copy_stream)

    def settle(self, graph: Graph, plan: Plan, joint_graph: fx.Graph) -> bool:
        """Records the plan that the graph runs, and says whether larger sizes of it may save up to the whole budget."""
        boundary, made_before = Boundary.of(graph, joint_graph), self.made_before_of(joint_graph)
        self.piece = self.budget.compiled(graph, plan, made_before, boundary, others=self.others)
        return self.piece.may_take_all

    def sizes_seen(self, joint_graph: fx.Graph) -> dict[str, int]:
        """Returns the sizes that the same graph was planned for before, for the caller to change."""
        structure = hash(tuple((node.name, str(node.target)) for node in joint_graph.nodes))
        return self.budget.largest.setdefault(structure, {})

    def made_before_of(self, joint_graph: fx.Graph) -> list[str]:
        inputs = joint_graph.find_nodes(op="placeholder")
        return [node.name for node in inputs if getattr(node.meta.get("desc"), "idx", None) in self.made_before]


# A tensor without a storage of its own, such as a sparse one, is left out.
def _storages(tensors: Sequence[Tensor]) -> dict[int, int]:
    found: dict[int, int] = {}
    for tensor in tensors:
        with suppress(NotImplementedError):
            found[storage_of(tensor)] = tensor.untyped_storage().nbytes()
    return found


_call: ContextVar[ModelCall | None] = ContextVar("_call", default=None)
_compilation: ContextVar[Compilation | None] = ContextVar("_compilation", default=None)


def compilation() -> Compilation | None:
    """Returns the compilation under way in this thread, if its graph shares a budget."""
    return _compilation.get()


@contextmanager
def called(budget: SharedBudget, model: Callable[..., Any], arguments: Any) -> Generator[None]:
    """Counts what runs in the block as one call of a model."""
    token = _call.set(ModelCall(budget, model, arguments))
    try:
        yield
    finally:
        _call.reset(token)


@contextmanager
def compiling(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Generator[Compilation | None]:
    """Makes what is compiled in the block share the budget of the call under way, if there is one."""
    call = _call.get()
    if call is None:
        yield None
        return
    others = not (call.budget.is_alone and not call.graphs and is_whole(graph_module, call.model))
    tensors = [(i, value) for i, value in enumerate(inputs) if isinstance(value, Tensor)]
    made = frozenset(i for i, tensor in tensors if others and tensor.requires_grad and not tensor.is_leaf)
    # With the arguments, which a graph need not read.
    limited = call.budget.cost_model.device_limits
    alive = [*reachable_tensors(call.model, call.arguments), *owned(call.model, call.arguments)] if limited else []
    token = _compilation.set(Compilation(call.budget, others, [tensor for _, tensor in tensors], alive, made))
    try:
        yield _compilation.get()
    finally:
        _compilation.reset(token)


def counted(compiled: Callable[..., Any], piece: CompiledGraph) -> Callable[..., Any]:
    """Wraps a compiled graph, so that the budget hears when a call has saved values, and when these are freed."""

    def run(*args: Any) -> Any:
        call = _call.get()
        is_new = call is not None and call.budget.is_alone and piece.is_careful
        elsewhere = call.made_elsewhere(args) if call is not None and is_new else {}
        results = compiled(*args)
        if call is not None:
            call.graphs += 1
            node = compiled_node([leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)])
            if node is not None:
                activations = activations_of(piece.boundary, piece.made_before, elsewhere, args, results)
                call.budget.began(piece, elsewhere, activations, node)
        return results

    return run


def compiled_node(tensors: Sequence[Tensor]) -> Any:
    """Finds the nearest compiled node of the autograd graph behind some tensors; None if there is none."""
    stack: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(stack)
    for node in stack:
        if node.name() == "CompiledFunctionBackward":  # AOTAutograd's, whichever compiler follows
            return node
        following = [source for source, _ in node.next_functions if source is not None and source not in seen]
        seen.update(following)
        stack.extend(following)
    return None
